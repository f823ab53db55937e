"""What decoding took and gained, by kind of text: of one reply, and of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median

from msgspec import Struct

from engine.decoding.surplus import Choice

FEW = 5
"""Rounds of one kind whose median says no more than their sum."""


class DrafterSurplus(Struct, frozen=True, kw_only=True):
    """One drafter in one regime. tried, accepted: drafts by position in their block, of those
    that the target's choice decided about."""

    drafter: str
    rounds: int
    tried: tuple[int, ...]
    accepted: tuple[int, ...]


class RegimeSurplus(Struct, frozen=True, kw_only=True):
    """One regime; times are in seconds.

    rounds, tokens, seconds: of decoding. tok_s: tokens a second.
    saved: what target-only would have taken (as the cost curve has it now) less what it took, with
        each round of a reply taken for as long as the median one of its kind, so that neither
        side answers for a machine that stalls; surplus_ms: that for each token, in milliseconds.
    widths: how many rounds had how many rows. looks: proposals that were not verified.
    target_only: seconds of rounds without drafts, by reason.
    """

    regime: str
    rounds: int
    tokens: int
    seconds: float
    tok_s: float
    saved: float
    surplus_ms: float
    widths: dict[int, int]
    looks: int
    target_only: dict[str, float]
    drafters: tuple[DrafterSurplus, ...]


class Span(Struct, frozen=True, kw_only=True):
    """Rounds in a row with the same regime, drafter (``""`` for none) and rows."""

    regime: str
    drafter: str
    width: int
    rounds: int
    tokens: int
    seconds: float


@dataclass
class _Drafter:
    rounds: int = 0
    tried: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)


@dataclass
class _Kind:
    """Rounds of one reply that do the same. target: what target-only would have taken, in all."""

    target: float = 0.0
    seconds: list[float] = field(default_factory=list)

    @property
    def saved(self) -> float:
        rounds = len(self.seconds)
        took = sum(self.seconds) if rounds < FEW else rounds * median(self.seconds)
        return self.target - took


@dataclass
class _Regime:
    rounds: int = 0
    tokens: int = 0
    seconds: float = 0.0
    settled: float = 0.0
    looks: int = 0
    widths: Counter[int] = field(default_factory=Counter)
    target_only: dict[str, float] = field(default_factory=dict)
    drafters: dict[str, _Drafter] = field(default_factory=dict)
    kinds: dict[Hashable, _Kind] = field(default_factory=dict)

    @property
    def saved(self) -> float:
        """settled: of earlier replies."""
        return self.settled + sum(kind.saved for kind in self.kinds.values())


class Tally:
    """Counts rounds."""

    def __init__(self) -> None:
        self._regimes: dict[str, _Regime] = {}

    def add(
        self, choice: Choice, drafts: int, tokens: int, seconds: float, target_seconds: float
    ) -> None:
        """A round that verified `drafts` and committed `tokens` in `seconds`; a target-only round
        would have taken `target_seconds`, or 0 where that is not known."""
        row = self._regimes.setdefault(choice.regime, _Regime())
        row.rounds += 1
        row.tokens += tokens
        row.seconds += seconds
        if target_seconds:
            kind = row.kinds.setdefault(_kind(choice, drafts), _Kind())
            kind.target += tokens * target_seconds
            kind.seconds.append(seconds)
        row.widths[drafts + 1] += 1
        row.looks += sum(ask.drafter != choice.drafter or not drafts for ask in choice.asks)
        if not drafts:
            # A grammar may leave nothing of what was chosen.
            reason = choice.reason or "its drafts were ruled out"
            row.target_only[reason] = row.target_only.get(reason, 0.0) + seconds
            return
        drafter = row.drafters.setdefault(choice.drafter, _Drafter())
        drafter.rounds += 1
        accepted = min(tokens - 1, drafts)
        for position in range(min(accepted + 1, drafts)):
            drafter.tried[position] += 1
            drafter.accepted[position] += position < accepted

    def include(self, other: Tally) -> None:
        """Add everything that `other` counted."""
        for regime, more in other._regimes.items():
            row = self._regimes.setdefault(regime, _Regime())
            row.rounds += more.rounds
            row.tokens += more.tokens
            row.seconds += more.seconds
            row.settled += more.saved
            row.looks += more.looks
            row.widths.update(more.widths)
            for reason, seconds in more.target_only.items():
                row.target_only[reason] = row.target_only.get(reason, 0.0) + seconds
            for name, theirs in more.drafters.items():
                drafter = row.drafters.setdefault(name, _Drafter())
                drafter.rounds += theirs.rounds
                drafter.tried.update(theirs.tried)
                drafter.accepted.update(theirs.accepted)

    def report(self) -> tuple[RegimeSurplus, ...]:
        """A row for every regime, in the order in which they first came."""
        return tuple(
            RegimeSurplus(
                regime=regime,
                rounds=row.rounds,
                tokens=row.tokens,
                seconds=round(row.seconds, 6),
                tok_s=round(row.tokens / row.seconds, 3) if row.seconds else 0.0,
                saved=round(row.saved, 6),
                surplus_ms=round(1e3 * row.saved / row.tokens, 4) if row.tokens else 0.0,
                widths=dict(sorted(row.widths.items())),
                looks=row.looks,
                target_only={why: round(s, 6) for why, s in row.target_only.items()},
                drafters=tuple(
                    DrafterSurplus(
                        drafter=name,
                        rounds=drafter.rounds,
                        tried=_by_position(drafter.tried),
                        accepted=_by_position(drafter.accepted, len(drafter.tried)),
                    )
                    for name, drafter in row.drafters.items()
                ),
            )
            for regime, row in self._regimes.items()
        )


def _kind(choice: Choice, drafts: int) -> Hashable:
    """What a round's time depends on beside the machine: also what was looked at and, roughly, how
    much was read for it."""
    asks = tuple((ask.drafter, ask.drafts, ask.behind.bit_length()) for ask in choice.asks)
    return choice.drafter if drafts else "", drafts, asks


def _by_position(counts: Counter[int], positions: int | None = None) -> tuple[int, ...]:
    return tuple(counts[position] for position in range(positions or len(counts)))


class Timeline:
    """Joins rounds to spans."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def add(self, choice: Choice, drafts: int, tokens: int, seconds: float) -> None:
        span = Span(
            regime=choice.regime,
            drafter=choice.drafter if drafts else "",
            width=drafts + 1,
            rounds=1,
            tokens=tokens,
            seconds=seconds,
        )
        if self._spans and _alike(self._spans[-1], span):
            last = self._spans.pop()
            span = Span(
                regime=span.regime,
                drafter=span.drafter,
                width=span.width,
                rounds=last.rounds + 1,
                tokens=last.tokens + tokens,
                seconds=last.seconds + seconds,
            )
        self._spans.append(span)

    def spans(self) -> tuple[Span, ...]:
        return tuple(self._spans)


def _alike(one: Span, other: Span) -> bool:
    return (one.regime, one.drafter, one.width) == (other.regime, other.drafter, other.width)
