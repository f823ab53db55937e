"""What each drafter is worth now, kept for as long as nothing that it depends on has changed.

A round of a small model takes a few milliseconds, so choosing must take microseconds. All times
here are in target-only rounds: then a machine that slows down changes none of them.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.decoding.acceptance import Acceptance
from engine.decoding.costs import BUCKET, Costs
from engine.decoding.looks import Key

_MOST_PLANS = 4096
# A round must be this much better than target-only: choosing takes time, too.
LEAST_GAIN = 1.01


class Arm(NamedTuple):
    """Verifying so many drafts: a round's cost, and the tokens that it commits for that."""

    rate: float
    cost: float
    drafts: int


class Plan(NamedTuple):
    """One drafter in one regime and length of context.

    arms: those that commit notably more than target-only does (rate 1), the best first, and behind
    each the best one with fewer drafts. hope: the best rate that is possible as far as is known,
    with `reach` drafts. ceiling: the best rate were it always right. most: drafts at most. draft:
    cost of proposing 0, 1, 2, ... drafts.
    """

    arms: tuple[Arm, ...]
    hope: float
    reach: int
    ceiling: float
    most: int
    draft: list[float]


class Plans:
    """Makes plans and remembers them."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._known: dict[tuple[Key, int, int], tuple[int, int, Plan]] = {}

    def plan(self, key: Key, acceptance: Acceptance, most: int, context: int) -> Plan:
        """With at most `most` drafts, at least 1."""
        place = (key, most, context // BUCKET)
        known = self._known.get(place)
        versions = (acceptance.version, self._costs.version)
        if known is not None and known[:2] == versions:
            return known[2]
        if len(self._known) >= _MOST_PLANS:
            self._known.clear()
        plan = self._made(key.drafter, acceptance, most, context)
        self._known[place] = (*versions, plan)
        return plan

    def _made(self, drafter: str, acceptance: Acceptance, most: int, context: int) -> Plan:
        costs = self._costs.rounds(drafter, context)
        most = min(most, len(costs))
        expected, hoped = acceptance.forecast(most)
        arms, best, hope, reach, ceiling = [], LEAST_GAIN, 0.0, 0, 0.0
        for drafts, (cost, mean, high) in enumerate(zip(costs, expected, hoped, strict=False), 1):
            if mean > best * cost:
                best = mean / cost
                arms.append(Arm(best, cost, drafts))
            if high > hope * cost:
                hope, reach = high / cost, drafts
            if drafts + 1 > ceiling * cost:
                ceiling = (drafts + 1) / cost
        arms.reverse()
        draft = self._costs.proposals(drafter, context)
        return Plan(tuple(arms), hope, reach, ceiling, most, draft)
