"""One reply's drafting: what to draft in its next round, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engine.decoding.costs import Costs
from engine.decoding.policies import Policy
from engine.decoding.round_log import RoundLog
from engine.decoding.surplus import Choice
from engine.decoding.surplus_report import Tally, Timeline
from engine.drafters.drafter import Offer
from engine.drafters.portfolio import Portfolio
from engine.text.regimes import RegimeParser


class Drafting:
    """Every round is a `propose` and then a `settle`, target-only ones too.

    portfolio: None for a reply that never drafts. costs: where they are known, what target-only
    rounds take. explain: keep a timeline and a log. clock: seconds.
    """

    def __init__(
        self,
        portfolio: Portfolio | None,
        policy: Policy,
        regimes: RegimeParser,
        costs: Costs | None,
        *,
        explain: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.regimes = regimes
        self.tally = Tally()
        self.timeline = Timeline() if explain else None
        self.log = RoundLog() if explain else None
        self._portfolio = portfolio
        self._policy = policy
        self._costs = costs
        self._clock = clock
        self._began = 0.0
        self._room = 1
        self._offers: list[Offer] = []
        self._choice = Choice("", 0, "", 0, (), "")
        self._proposals: dict[str, list[int]] = {}

    def propose(self, context: int, room: int) -> list[int]:
        """The drafts to verify behind `context` tokens, at most `room` - 1; maybe none."""
        portfolio = self._portfolio
        if portfolio is not None:
            # What a prompt out of the cache left to read is no part of a round.
            portfolio.read_on()
        self._began = self._clock()
        self._room = room
        self._offers = portfolio.offers(room - 1) if portfolio is not None and room > 1 else []
        choice = self._policy.choose(self.regimes.regime.value, context, self._offers, room)
        self._choice, self._proposals = choice, {}
        if portfolio is not None:
            for drafter, drafts, *_ in choice.asks:
                self._proposals[drafter] = portfolio.propose(drafter, drafts)
        return self._proposals.get(choice.drafter, [])[: choice.drafts]

    def settle(self, drafts: int, run: Sequence[int], *, ended: bool) -> None:
        """The round is over: `drafts` were verified and `run` was committed; it may have `ended`
        the reply."""
        # Microseconds are enough, and a log of them is short.
        seconds = round(self._clock() - self._began, 6)
        choice = self._choice
        target_seconds = self._costs.target(choice.context) if self._costs is not None else 0.0
        self._policy.settle(choice, self._proposals, run, ended=ended, seconds=seconds)
        self.tally.add(choice, drafts, len(run), seconds, target_seconds)
        if self.timeline is not None and self.log is not None:
            self.timeline.add(choice, drafts, len(run), seconds)
            self.log.add(choice, self._offers, self._room, self._proposals, len(run), seconds)
