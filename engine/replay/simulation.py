"""Decoding on paper: a text, a cost curve and a controller, in simulated and so exact time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct

from engine.decoding.cost_curve import CostCurve
from engine.decoding.costs import BUCKET, Costs
from engine.decoding.surplus import Choice, SurplusController
from engine.replay.trace import Text

WRONG = -1
"""A draft that the target does not choose. The token at position p is called p."""


class Outcome(Struct, frozen=True, kw_only=True):
    """What decoding a text took.

    slowest: the largest ratio to target-only time that any prefix of the reply had. widths: how
    many rounds had how many rows. drafted: by drafter.
    """

    seconds: float
    target_only: float
    slowest: float
    widths: dict[int, int]
    drafted: dict[str, int]

    @property
    def usual_width(self) -> int:
        """Of most rounds that drafted; 1 if none did."""
        drafted = {width: rounds for width, rounds in self.widths.items() if width > 1}
        return max(drafted, key=lambda width: drafted[width], default=1)


def decode(
    text: Text,
    curve: CostCurve,
    controller: SurplusController,
    *,
    slowdown: Callable[[float], float] = lambda seconds: 1.0,
    watch: Callable[[Choice, int], None] = lambda choice, committed: None,
) -> Outcome:
    """Decode `text` as the controller chooses, on a machine that costs what `curve` says.

    slowdown: factor on all costs, by the time that has passed. watch: sees every choice and what
    it committed.
    """
    costs, track = Costs(curve), controller.begin()
    widest, tokens = curve.forward.counts[-1], len(text)
    position, seconds, target_only, slowest = 0, 0.0, 0.0, 0.0
    widths, drafted = Counter[int](), Counter[str]()
    while position < tokens:
        room = min(widest, tokens - position)
        offers = text.offers(position)
        choice = controller.choose(track, text.regime(position), position, offers, room)
        proposals = {
            ask.drafter: _proposal(position, text.right(position, ask, choice), ask.drafts)
            for ask in choice.asks
        }
        drafts = proposals.get(choice.drafter, [])[: choice.drafts]
        run = _run(position, drafts)
        took = sum(costs.draft(ask.drafter, ask.drafts, position) for ask in choice.asks)
        took = (took + costs.verify("", len(drafts), position)) * slowdown(seconds)
        target_only += len(run) * costs.target(position) * slowdown(seconds)
        seconds += took
        position += len(run)
        slowest = max(slowest, seconds / target_only)
        widths[len(drafts) + 1] += 1
        drafted[choice.drafter] += 1
        watch(choice, len(run))
        ended = position >= tokens
        controller.settle(track, choice, proposals, run, ended=ended, seconds=took)
    return Outcome(
        seconds=seconds,
        target_only=target_only,
        slowest=slowest,
        widths=dict(widths),
        drafted=dict(drafted),
    )


def _proposal(position: int, right: int, drafts: int) -> list[int]:
    return [*range(position + 1, position + 1 + right), *[WRONG] * (drafts - right)]


def _run(position: int, drafts: list[int]) -> list[int]:
    """What the target commits behind `position`."""
    right = drafts.index(WRONG) if WRONG in drafts else len(drafts)
    return list(range(position + 1, position + right + 2))


Arm = tuple[str, int]
"""Always this drafter with so many rows, target-only where it offers nothing; ``("", 1)`` is
target-only throughout."""


def hindsight(text: Text, curve: CostCurve) -> tuple[dict[Arm, float], dict[str, dict[Arm, float]]]:
    """Seconds of every arm on the whole text, and by regime. The first drafts of an offer must be
    right however many are asked for."""
    tokens, widest = len(text), curve.forward.counts[-1]
    offers = [text.offers(position) for position in range(tokens)]
    regimes = [text.regime(position) for position in range(tokens)]
    whole: dict[Arm, float] = {}
    by_regime: dict[str, dict[Arm, float]] = {}
    for drafter in ("", *sorted({offer.drafter for each in offers for offer in each})):
        offered, right = [0] * tokens, [0] * tokens
        for position, each in enumerate(offers):
            for offer in each:
                if offer.drafter == drafter:
                    offered[position] = offer.drafts
                    right[position] = text.right(position, offer, None)
        prices = _prices(drafter, tokens, curve)
        for width in range(2, widest + 1) if drafter else (1,):
            most = [drafts if drafts < width else width - 1 for drafts in offered]
            spent = _always(most, right, regimes, prices)
            whole[drafter, width] = sum(spent.values())
            for regime, seconds in spent.items():
                by_regime.setdefault(regime, {})[drafter, width] = seconds
    return whole, by_regime


def _prices(drafter: str, tokens: int, curve: CostCurve) -> list[list[float]]:
    """Seconds of a round by `BUCKET` of context and number of drafts."""
    costs = Costs(curve)
    return [
        [
            costs.draft(drafter, drafts, context) + costs.verify("", drafts, context)
            for drafts in range(curve.forward.counts[-1])
        ]
        for context in range(0, tokens, BUCKET)
    ]


def _always(
    most: Sequence[int], right: Sequence[int], regimes: Sequence[str], prices: list[list[float]]
) -> dict[str, float]:
    """Seconds by the regime that a round begins in. most: drafts at every position."""
    spent = dict.fromkeys(regimes, 0.0)
    position, last = 0, len(most) - 1
    while position <= last:
        drafts, accepted = most[position], right[position]
        if drafts > last - position:
            drafts = last - position
        spent[regimes[position]] += prices[position // BUCKET][drafts]
        position += (accepted if accepted < drafts else drafts) + 1
    return spent
