"""A cost curve that follows its machine while it decodes."""

from __future__ import annotations

from engine.decoding.cost_curve import CostCurve

# A round that takes this many times as long as predicted counts as no worse than that: the
# machine did something else meanwhile.
OUTLIER = 1.5
# Shares of a surprise that are believed at once. A drafted round that is slow more likely means
# that the machine has become slower than that the curve is wrong at its width.
TARGET_DRIFT, DRAFTED_DRIFT, RESIDUAL = 0.2, 0.07, 0.03
# What drafted rounds alone say about the drift is believed that far.
UNCONFIRMED = 1.08
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
        self.drift = self._confirmed = 1.0
        # Grows when costs change against each other.
        self.version = 0
        self._residuals: dict[str, list[float]] = {}
        self._learnt: dict[str, list[float]] = {}
        self._rows: dict[tuple[str, int], list[float]] = {}

    def renew(self, curve: CostCurve) -> None:
        """Go on with a curve that was measured just now."""
        self.curve = curve
        self.drift = self._confirmed = 1.0
        self.version += 1
        self._residuals.clear()
        self._learnt.clear()
        self._rows.clear()

    @property
    def stale(self) -> bool:
        return not 1 / STALE < self.drift < STALE

    @property
    def unconfirmed(self) -> bool:
        """Whether a target-only round is due, to see what it takes now."""
        return not 1 / UNCONFIRMED < self.drift / self._confirmed < UNCONFIRMED

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

    def proposals(self, drafter: str, most: int, context: int) -> list[float]:
        """In units of a target-only round, proposals of 0, 1, 2, ... `most` drafts."""
        target, row = self._row("", context)[0], self._row(drafter, context)
        if not row:
            return [0.0] * (most + 1)
        return [0.0, *(row[min(n, len(row)) - 1] / target for n in range(1, most + 1))]

    def reading(self, drafter: str, behind: int, context: int) -> float:
        """In units of a target-only round, taking in what a drafter is behind. The few tokens of
        one round are part of what a proposal was measured to take."""
        rows = max(0, behind - ROUND)
        return rows * self.curve.reading.get(drafter, 0.0) / self._row("", context)[0]

    def rounds(self, drafter: str, most: int, context: int) -> list[float]:
        """In units of a target-only round, rounds with 1, 2, ... `most` drafts, all verified."""
        forward, applied = self._row("", context), self._residual(drafter)
        proposals = self.proposals(drafter, most, context)
        return [
            proposals[drafts] + forward[drafts] / forward[0] * applied[drafts]
            for drafts in range(1, min(most, len(forward) - 1) + 1)
        ]

    def observe(self, drafter: str, drafts: int, asked: int, context: int, seconds: float) -> None:
        """Learn from a round that verified `drafts` of the `asked` ones."""
        predicted = self.draft(drafter, asked, context) + self.verify(drafter, drafts, context)
        surprise = min(max(seconds / predicted, 1 / OUTLIER), OUTLIER)
        if drafts:
            self._correct(drafter, drafts, surprise**RESIDUAL)
            self.drift *= surprise**DRAFTED_DRIFT
        else:
            self.drift *= surprise**TARGET_DRIFT
            self._confirmed = self.drift

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
