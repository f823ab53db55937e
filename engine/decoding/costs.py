"""A cost curve that follows its machine while it decodes."""

from __future__ import annotations

from engine.decoding.cost_curve import CostCurve
from engine.drafters.drafter import Offer

# A round that takes this many times as long as predicted counts as no worse than that: the
# machine did something else meanwhile.
OUTLIER = 1.5
# Shares of a surprise that are believed at once. While target-only rounds say how fast the machine
# is, a drafted round that surprises says that the curve is wrong at its width; later it more
# likely says that the machine has changed.
TARGET_DRIFT, KNOWN, UNKNOWN = 0.2, (0.0, 0.06), (0.04, 0.02)
# Share of what a round says about taking in a token that is believed at once, and how many times
# as long as was thought it may say.
READING, MOST_READING = 0.3, 4.0
# Drafted rounds for which the last target-only one is good.
FRESH = 16
# When drafted rounds alone have changed what is believed by so much, a target-only one is due.
UNCONFIRMED = 1.12
# A width's own correction counts once it is this much.
NOTABLE = 1.02
# A curve that is further off than this is better measured again.
STALE = 1.25
# Costs change slowly with the context; this many tokens share a row of the curve.
BUCKET = 64
_MOST_BUCKETS = 4096
# Tokens that a round may commit without a drafter being behind.
ROUND = 16


class Costs:
    """Predicts seconds. Heat and other programs slow every round down by one factor (`drift`);
    beside it, a (drafter, rows) whose rounds take longer than the curve says has its own."""

    def __init__(self, curve: CostCurve) -> None:
        self.curve = curve
        self.drift = self._shift = 1.0
        # Rounds since the last target-only one.
        self._drafted = 0
        # Grows when costs change against each other.
        self.version = 0
        self._residuals: dict[str, list[float]] = {}
        self._learnt: dict[str, list[float]] = {}
        self._reading = dict(curve.reading)
        self._rows: dict[tuple[str, int], list[float]] = {}
        self._prices: dict[tuple[str, int], tuple[int, list[float], list[float]]] = {}

    def renew(self, curve: CostCurve) -> None:
        """Go on with a curve that was measured just now."""
        self.curve = curve
        self.drift = self._shift = 1.0
        self.version += 1
        self._residuals.clear()
        self._learnt.clear()
        self._reading = dict(curve.reading)
        self._rows.clear()
        self._prices.clear()

    @property
    def stale(self) -> bool:
        return not 1 / STALE < self.drift < STALE

    @property
    def unconfirmed(self) -> bool:
        """Whether a target-only round is due, to tell a changed machine from a wrong curve."""
        return not 1 / UNCONFIRMED < self._shift < UNCONFIRMED

    def target(self, context: int) -> float:
        """A target-only round."""
        return self.drift * self._row("", context)[0]

    def draft(self, drafter: str, drafts: int, context: int) -> float:
        """One proposal of that many drafts."""
        row = self._row(drafter, context)
        return self.drift * row[min(drafts, len(row)) - 1] if drafts and row else 0.0

    def verify(self, drafter: str, drafts: int, context: int) -> float:
        """A target forward over that many drafts and the anchor."""
        row = self._row("", context)
        drafts = min(drafts, len(row) - 1)
        return self.drift * row[drafts] * (self._residual(drafter)[drafts] if drafts else 1.0)

    def proposals(self, drafter: str, context: int) -> list[float]:
        """In units of a target-only round, proposals of 0, 1, 2, ... drafts."""
        return self._relative(drafter, context)[0]

    def reading(self, drafter: str, behind: int, context: int) -> float:
        """In units of a target-only round, taking in what a drafter is behind. The few tokens of
        one round are part of what a proposal was measured to take."""
        rows, seconds = behind - ROUND, self._reading.get(drafter, 0.0)
        return rows * seconds / self._row("", context)[0] if rows > 0 and seconds else 0.0

    def rounds(self, drafter: str, context: int) -> list[float]:
        """In units of a target-only round, rounds with 1, 2, ... drafts, all verified."""
        return self._relative(drafter, context)[1]

    def _relative(self, drafter: str, context: int) -> tuple[list[float], list[float]]:
        key = (drafter, context // BUCKET)
        known = self._prices.get(key)
        if known is None or known[0] != self.version:
            if len(self._prices) >= _MOST_BUCKETS:
                self._prices.clear()
            forward, row = self._row("", context), self._row(drafter, context)
            target, residual = forward[0], self._residual(drafter)
            most = len(forward) - 1
            proposals = [0.0] * (most + 1)
            if row:
                proposals = [0.0, *(row[min(n, len(row)) - 1] / target for n in range(1, most + 1))]
            rounds = [proposals[n] + forward[n] / target * residual[n] for n in range(1, most + 1)]
            known = self._prices[key] = (self.version, proposals, rounds)
        return known[1:]

    def observe(self, drafter: str, drafts: int, asked: int, context: int, seconds: float) -> None:
        """Learn from a round that verified `drafts` of the `asked` ones."""
        predicted = self.draft(drafter, asked, context) + self.verify(drafter, drafts, context)
        surprise = min(max(seconds / predicted, 1 / OUTLIER), OUTLIER)
        if drafts:
            drift, residual = KNOWN if self._drafted < FRESH else UNKNOWN
            self._correct(drafter, drafts, surprise**residual)
            self.drift *= surprise**drift
            self._shift *= surprise ** (drift + residual)
            self._drafted += 1
        else:
            self.drift *= surprise**TARGET_DRIFT
            self._shift, self._drafted = 1.0, 0

    def observe_reading(
        self, drafter: str, drafts: int, reader: Offer, context: int, seconds: float
    ) -> None:
        """Learn from a round that verified `drafts` of `drafter`, and for which `reader` has taken
        in what it was behind, and then proposed."""
        known, rows = self._reading[reader.drafter], reader.behind - ROUND
        rest = self.verify(drafter, drafts, context)
        rest += self.draft(reader.drafter, reader.drafts, context)
        found = min(max((seconds - rest) / (self.drift * rows), 0.0), MOST_READING * known)
        self._reading[reader.drafter] = known + READING * (found - known)

    def _correct(self, drafter: str, drafts: int, factor: float) -> None:
        """What is learnt is applied once it makes a difference: plans are kept until then."""
        applied = self._residual(drafter)
        index = min(drafts, len(applied) - 1)
        learnt = self._learnt[drafter][index] = self._learnt[drafter][index] * factor
        if not 1 / NOTABLE < learnt / applied[index] < NOTABLE:
            applied[index] = learnt
            self.version += 1

    def _residual(self, drafter: str) -> list[float]:
        """By drafts, of a round with that many."""
        known = self._residuals.get(drafter)
        if known is None:
            known = self._residuals[drafter] = [1.0] * self.curve.forward.counts[-1]
            self._learnt[drafter] = known.copy()
        return known

    def _row(self, drafter: str, context: int) -> list[float]:
        """Of the curve: forwards by rows for ``""``, else proposals by drafts."""
        key = (drafter, context // BUCKET)
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= _MOST_BUCKETS:
                self._rows.clear()
            grid = self.curve.drafters.get(drafter) if drafter else self.curve.forward
            row = self._rows[key] = grid.row(context) if grid is not None else []
        return row
