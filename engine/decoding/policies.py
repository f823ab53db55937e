"""Ways to choose what to draft: by surplus, which is what replies get, and fixed ones, against
which it is measured and with which exactness is proven."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from engine.decoding.costs import Costs
from engine.decoding.surplus import NOTHING, Choice, SurplusController
from engine.drafters.drafter import Offer
from engine.drafters.portfolio import Portfolio

# Copying is free and nearly always right behind a match this long (in bits: eight tokens); a
# shorter match loses to a trained drafter. A prediction's place is as good once it is settled.
LONG_MATCH = 4
COPIES = ("prediction", "copy")
BY_TURNS = "whoever's turn it is does not draft"


class Policy(Protocol):
    """Of one reply."""

    def choose(self, regime: str, context: int, offers: Sequence[Offer], room: int) -> Choice:
        """See `SurplusController.choose`."""

    def settle(
        self,
        choice: Choice,
        proposals: Mapping[str, Sequence[int]],
        run: Sequence[int],
        *,
        ended: bool,
        seconds: float,
    ) -> None:
        """See `SurplusController.settle`."""


class BySurplus:
    """Draft while that commits more tokens a second."""

    def __init__(self, controller: SurplusController) -> None:
        self._controller = controller
        self._track = controller.begin()

    def thin_out(self, portfolio: Portfolio, drafts: int, context: int) -> None:
        """Leave out the context drafter of a reply that it is not worth reading for."""
        drafter = portfolio.context
        if drafter is not None and not self._controller.worth_reading(
            drafter.name, drafts, context
        ):
            portfolio.drop_context()

    def choose(self, regime: str, context: int, offers: Sequence[Offer], room: int) -> Choice:
        return self._controller.choose(self._track, regime, context, offers, room)

    def settle(
        self,
        choice: Choice,
        proposals: Mapping[str, Sequence[int]],
        run: Sequence[int],
        *,
        ended: bool,
        seconds: float,
    ) -> None:
        self._controller.settle(self._track, choice, proposals, run, ended=ended, seconds=seconds)


class _Fixed:
    """Learns nothing."""

    def settle(
        self,
        choice: Choice,
        proposals: Mapping[str, Sequence[int]],
        run: Sequence[int],
        *,
        ended: bool,
        seconds: float,
    ) -> None:
        return


class Never(_Fixed):
    """Target-only, for a reason. costs: what such rounds teach about."""

    def __init__(self, reason: str, costs: Costs | None = None) -> None:
        self._reason = reason
        self._costs = costs

    def choose(self, regime: str, context: int, offers: Sequence[Offer], room: int) -> Choice:
        return Choice(regime, context, "", 0, (), self._reason)

    def settle(
        self,
        choice: Choice,
        proposals: Mapping[str, Sequence[int]],
        run: Sequence[int],
        *,
        ended: bool,
        seconds: float,
    ) -> None:
        if self._costs is not None:
            self._costs.observe("", 0, 0, choice.context, seconds)


class Always(_Fixed):
    """As many drafts as there are, every round: what the grammar forces, else the prediction or a
    copy behind a long match, else the trained drafter's.

    turns: whose turn it is instead, round by round and then again from the first.
    """

    def __init__(self, turns: Sequence[str] = ()) -> None:
        self._turns = itertools.cycle(turns) if turns else None

    def choose(self, regime: str, context: int, offers: Sequence[Offer], room: int) -> Choice:
        offer = self._pick(offers)
        reason = NOTHING if self._turns is None else BY_TURNS
        return _all_of(offer, regime, context, room, reason)

    def _pick(self, offers: Sequence[Offer]) -> Offer | None:
        by_name = {offer.drafter: offer for offer in offers}
        if self._turns is not None and "grammar" not in by_name:
            return by_name.get(next(self._turns))
        copies = [by_name.pop(name) for name in COPIES if name in by_name]
        sure = [copy for copy in copies if copy.confidence >= LONG_MATCH]
        return next(iter([*sure, *by_name.values(), *copies]), None)


class Switching(_Fixed):
    """Another drafter, width and look every round, at random and sometimes none: what a reply is
    must not depend on any of it."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def choose(self, regime: str, context: int, offers: Sequence[Offer], room: int) -> Choice:
        chance = self._chance
        offer = chance.choice([None, *offers]) if offers else None
        if offer is not None:
            offer = offer._replace(drafts=chance.randint(1, offer.drafts))
        choice = _all_of(offer, regime, context, room, "at random")
        looks = [o for o in offers if o.drafter != choice.drafter and chance.random() < 0.2]
        return choice._replace(asks=(*choice.asks, *looks))


class Watching(_Fixed):
    """Target-only, and every drafter is asked for all it has: how acceptance is recorded."""

    def choose(self, regime: str, context: int, offers: Sequence[Offer], room: int) -> Choice:
        return Choice(regime, context, "", 0, tuple(offers), "only watching")


def _all_of(offer: Offer | None, regime: str, context: int, room: int, reason: str) -> Choice:
    drafts = min(offer.drafts, room - 1) if offer is not None else 0
    if offer is None or drafts < 1:
        return Choice(regime, context, "", 0, (), reason)
    asked = offer._replace(drafts=drafts)
    return Choice(regime, context, offer.drafter, drafts, (asked,), "")
