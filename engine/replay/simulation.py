"""Decoding on paper: a text, a cost curve and a controller, in simulated and so exact time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from engine.decoding.cost_curve import CostCurve
from engine.decoding.costs import Costs
from engine.decoding.surplus import Choice, SurplusController
from engine.drafters.drafter import Offer
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
    """Seconds of every arm on the whole text, and by regime."""
    costs = Costs(curve)
    names = sorted({offer.drafter for p in range(len(text)) for offer in text.offers(p)})
    arms = [("", 1), *((d, w) for d in names for w in range(2, curve.forward.counts[-1] + 1))]
    whole: dict[Arm, float] = {}
    by_regime: dict[str, dict[Arm, float]] = {}
    for arm in arms:
        spent = _always(arm, text, costs)
        whole[arm] = sum(spent.values())
        for regime, seconds in spent.items():
            by_regime.setdefault(regime, {})[arm] = seconds
    return whole, by_regime


def _always(arm: Arm, text: Text, costs: Costs) -> dict[str, float]:
    """Seconds by the regime that a round begins in."""
    drafter, width = arm
    spent: dict[str, float] = {}
    position, tokens = 0, len(text)
    while position < tokens:
        drafts = right = 0
        for offer in text.offers(position) if drafter else ():
            if offer.drafter == drafter:
                drafts = min(offer.drafts, width - 1, tokens - position - 1)
                right = text.right(position, Offer(drafter, drafts, offer.confidence), None)
        took = costs.draft(drafter, drafts, position) + costs.verify("", drafts, position)
        regime = text.regime(position)
        spent[regime] = spent.get(regime, 0.0) + took
        position += right + 1
    return spent
