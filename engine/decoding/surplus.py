"""Whether to draft, with which drafter and how far: what commits the most tokens a second.

Surplus is time: tokens committed x t(1) - (draft + verify), where t(1) is a target-only round. A
round is drafted only if that is expected to be positive, and only if its worst case can be paid
for: an account holds what drafting has gained on target-only decoding so far, plus a small share
of the time spent, and no round may overdraw it. So no text, however hostile, makes replies slower
than target-only by more than that share.

Pure: neither clock nor mlx. The same rounds lead to the same choices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.decoding.acceptance import Acceptance, Learnt
from engine.decoding.costs import Costs
from engine.decoding.looks import Key, Look, Watch
from engine.decoding.plans import Plan, Plans
from engine.drafters.drafter import Offer

# Share of target-only time that drafting may lose at worst. Promised is 2 %; the rest is for
# costs that are not quite as predicted.
SHARE = 0.015
# Target-only rounds' worth of gain that a reply may inherit from those before it.
INHERITED = 4.0
# Share of the time that may go into looks at drafters that do not pay, and how much of it may be
# saved up. It is of all replies together: many are too short to pay for one of their own.
CURIOSITY, SAVED_UP = 0.01, 3.0
# A look that costs less than this share of a target-only round is always worth it.
FREE = 0.005
# Rounds in which a drafter has to earn what reading took that it is behind, until it is known for
# how many it stays in use: between copies it may not get more than one or two.
REPAID = 8.0
# Share of such a stay that is believed at once.
STAY = 0.2
# Replies in a row that a drafter which does not pay need not read.
MOST_UNREAD = 32
# A target-only round after so many drafted ones keeps t(1) known.
CALIBRATE = 256

NOTHING, NO_GAIN, UNPAYABLE, CALIBRATING = (
    "nothing to draft",
    "does not pay",
    "the worst case cannot be paid for yet",
    "to know its time",
)


class Choice(NamedTuple):
    """One round, chosen for a `regime` and behind `context` tokens.

    drafter, drafts: what to verify; ``""`` and 0 are target-only, for the `reason` given.
    asks: the proposals to make. What is not verified of them is a look.
    """

    regime: str
    context: int
    drafter: str
    drafts: int
    asks: tuple[Offer, ...]
    reason: str


@dataclass
class Track:
    """What the controller keeps of one reply. using: who drafted last, for `rounds` in a row. room:
    for drafts in the last round. again: what that verified, if there was hardly a way to do better:
    it filled half the room at least, cost nothing and was right. opens: the round is the first in
    its regime, where `again` is what began the last reply in it."""

    regime: str = ""
    watches: dict[str, Watch] = field(default_factory=dict)
    using: str = ""
    rounds: int = 0
    room: int = 0
    again: Offer | None = None
    opens: bool = False

    def watch(self, drafter: str) -> Watch:
        watch = self.watches.get(drafter)
        if watch is None:
            watch = self.watches[drafter] = Watch()
        return watch

    def enter(self, regime: str, again: Offer | None) -> None:
        self.regime, self.again, self.opens = regime, again, True
        for watch in self.watches.values():
            watch.look_soon()


class SurplusController:
    """One for a loaded model; its replies share what is learnt.

    account: what drafting has gained and may lose again; curiosity: what may go into looks. Both in
    target-only rounds.
    """

    def __init__(self, costs: Costs, learnt: Mapping[Key, Learnt] | None = None) -> None:
        self.costs = costs
        self.account = self.curiosity = 0.0
        self._plans = Plans(costs)
        # Replies that a drafter did not read since the last that it did, and how many it may miss.
        self._unread = 0
        self._patience = 1
        # Rounds for which drafters stay in use, by regime and name.
        self._stays: dict[tuple[str, str], float] = {}
        # By regime, what the next reply in it may begin with (`Track.again`).
        self._openings: dict[str, Offer | None] = {}
        self._acceptance = {key: Acceptance(known) for key, known in (learnt or {}).items()}
        self._drafted = 0

    def begin(self) -> Track:
        """A reply begins. Of what others have gained it may lose a little only."""
        self.account = min(self.account, INHERITED)
        return Track()

    def worth_reading(self, drafter: str, drafts: int, context: int) -> bool:
        """Whether a drafter that reads along, which takes time in the prompt already, shall do so
        in the reply that begins: where it may pay in some regime as far as is known, and now and
        then all the same."""
        known = [(key, one) for key, one in self._acceptance.items() if key.drafter == drafter]
        plans = [self._plans.plan(key, one, drafts, context) for key, one in known]
        if not plans or any(plan.hope > 1 for plan in plans):
            self._unread, self._patience = 0, 1
            return True
        self._unread += 1
        if self._unread <= self._patience:
            return False
        self._unread, self._patience = 0, min(2 * self._patience, MOST_UNREAD)
        return True

    def learnt(self) -> dict[Key, Learnt]:
        """To be given to the controller of the next run."""
        return {key: known.learnt() for key, known in self._acceptance.items()}

    def acceptance(self, key: Key) -> Acceptance:
        """What is known of a drafter in a regime, maybe nothing yet."""
        known = self._acceptance.get(key)
        if known is None:
            known = self._acceptance[key] = Acceptance()
        return known

    def choose(
        self, track: Track, regime: str, context: int, offers: Sequence[Offer], room: int
    ) -> Choice:
        """The next round of a reply. offers: at most one a drafter. room: rows at most."""
        if regime != track.regime:
            track.enter(regime, self._openings.get(regime))
        track.room = room - 1
        again = self._again(track, context, offers)
        if again is not None:
            return again
        plans = [
            (offer, self._plan(regime, offer, min(offer.drafts, room - 1), context))
            for offer in offers
            if offer.drafts > 0 and room > 1
        ]
        if not plans:
            return Choice(regime, context, "", 0, (), NOTHING)
        if self._drafted >= CALIBRATE or self.costs.unconfirmed:
            return Choice(regime, context, "", 0, (), CALIBRATING)
        spare = self.account + 1 + SHARE
        best, cost, rate, reason = Offer("", 0), 1.0, 1.0, NO_GAIN
        for offer, plan in plans:
            reading = self.costs.reading(offer.drafter, offer.behind, context)
            for arm in plan.arms:
                if arm.rate <= rate:
                    break
                stay = self._stays.get((regime, offer.drafter), REPAID)
                repaid = arm.rate * arm.cost / (arm.cost + reading / stay)
                if repaid <= rate:
                    continue
                if arm.cost + reading > spare:
                    reason = UNPAYABLE
                    continue
                best, cost = offer._replace(drafts=arm.drafts), arm.cost + reading
                rate = repaid
                break
        if best.drafts:
            reason = ""
        # What a drafter that pays still lacks for its first round is not spent on looks.
        spare = 0.0 if reason == UNPAYABLE else spare - cost
        asks = self._asks(track, context, plans, best, rate, spare)
        return Choice(regime, context, best.drafter, best.drafts, asks, reason)

    def _again(self, track: Track, context: int, offers: Sequence[Offer]) -> Choice | None:
        """The last round once more, where hardly one can be better. Most of a rewrite is made of
        such rounds, and weighing others would take a notable share of them."""
        known = track.again
        if known is None or self._drafted >= CALIBRATE or self.costs.unconfirmed:
            return None
        offer = next((one for one in offers if one.drafter == known.drafter), None)
        if offer is None or offer.confidence < known.confidence:
            return None
        if min(offer.drafts, track.room) < known.drafts:
            return None
        if self.costs.rounds(offer.drafter, context)[known.drafts - 1] > self.account + 1 + SHARE:
            return None
        offer = offer._replace(drafts=known.drafts)
        return Choice(track.regime, context, offer.drafter, offer.drafts, (offer,), "")

    def _stayed(self, track: Track, drafter: str) -> None:
        """`drafter` drafted a round."""
        if drafter != track.using:
            if track.using:
                known = self._stays.get((track.regime, track.using), REPAID)
                self._stays[track.regime, track.using] = known + STAY * (track.rounds - known)
            track.using, track.rounds = drafter, 0
        track.rounds += 1

    def _plan(self, regime: str, offer: Offer, most: int, context: int) -> Plan:
        key = Key(regime, offer.drafter, offer.confidence)
        return self._plans.plan(key, self.acceptance(key), most, context)

    def _asks(
        self,
        track: Track,
        context: int,
        plans: Sequence[tuple[Offer, Plan]],
        best: Offer,
        rate: float,
        spare: float,
    ) -> tuple[Offer, ...]:
        """The proposals to make: what is verified, and looks as far as `spare` goes; at drafters
        that do not pay also only as far as curiosity does.

        rate: tokens for a target-only round's time that are expected of what is verified.
        """
        asks, curiosity = [], min(spare, self.curiosity)
        for offer, plan in plans:
            watch = track.watch(offer.drafter)
            watch.hopeful = plan.hope > rate
            used = best.drafts if offer.drafter == best.drafter else 0
            asked = _asked(watch, plan, used)
            more = plan.draft[asked] - plan.draft[used]
            if asked and not used:
                more += self.costs.reading(offer.drafter, offer.behind, context)
            # Where nothing that it says could make it the better choice, it need not be asked.
            idle = not used and plan.ceiling <= rate
            if more > (FREE if idle else max(spare if used else curiosity, FREE)):
                asked, more = used, 0.0
            spare -= more
            curiosity -= more
            if asked:
                asks.append(offer._replace(drafts=asked))
        return tuple(asks)

    def settle(
        self,
        track: Track,
        choice: Choice,
        proposals: Mapping[str, Sequence[int]],
        run: Sequence[int],
        *,
        ended: bool = False,
        seconds: float = 0.0,
    ) -> None:
        """Learn from a round. proposals: by drafter, for every ask. run: the tokens it committed;
        if they `ended` the reply, drafts behind them were not wrong. seconds: what it took, 0 if
        that was not measured."""
        drafts = proposals.get(choice.drafter, ())[: choice.drafts]
        self._pay(choice, len(drafts), len(run))
        track.again = None
        if drafts:
            self._stayed(track, choice.drafter)
            good = 2 * len(drafts) >= track.room and len(run) > len(drafts)
            asked = self.costs.draft(choice.drafter, len(drafts), choice.context)
            if good and asked <= FREE * self.costs.target(choice.context):
                offer = next(ask for ask in choice.asks if ask.drafter == choice.drafter)
                track.again = offer._replace(drafts=len(drafts))
        if track.opens:
            self._openings[choice.regime], track.opens = track.again, False
        if seconds > 0:
            self._time(choice, len(drafts), seconds)
        for watch in track.watches.values():
            watch.pass_round()
            if watch.look is not None:
                self._follow(watch, watch.look, run, idle=not drafts)
        for ask in choice.asks:
            proposal = proposals[ask.drafter]
            used = len(drafts) if ask.drafter == choice.drafter else 0
            key = Key(choice.regime, ask.drafter, ask.confidence)
            right = common_prefix(drafts, run) if used else 0
            if used:
                self.acceptance(key).observe(right, right if ended else used)
            self._begin_look(track.watch(ask.drafter), key, proposal, used, right, run)

    def _pay(self, choice: Choice, drafts: int, committed: int) -> None:
        costs, context, cost, looks = self.costs, choice.context, 1.0, 0.0
        target = costs.target(context)
        if drafts:
            cost = costs.verify(choice.drafter, drafts, context) / target
        for ask in choice.asks:
            asked = costs.draft(ask.drafter, ask.drafts, context) / target
            asked += costs.reading(ask.drafter, ask.behind, context)
            cost += asked
            if ask.drafter != choice.drafter:
                looks += asked
        self.account += (1 + SHARE) * committed - cost
        self.curiosity = min(self.curiosity + CURIOSITY * (cost - looks) - looks, SAVED_UP)
        self._drafted = self._drafted + 1 if drafts else 0

    def _time(self, choice: Choice, drafts: int, seconds: float) -> None:
        """A round in which something was looked at that takes time says little about what it was
        for, and one in which something was read about that alone."""
        costs, context, asked = self.costs, choice.context, 0
        drafter = choice.drafter if drafts else ""
        free = FREE * costs.target(context)
        for ask in choice.asks:
            if costs.reading(ask.drafter, ask.behind, context):
                costs.observe_reading(drafter, drafts, ask, context, seconds)
                return
            if ask.drafter == drafter:
                asked = ask.drafts
            elif costs.draft(ask.drafter, ask.drafts, context) > free:
                return
        costs.observe(drafter, drafts, asked, context, seconds)

    def _begin_look(
        self,
        watch: Watch,
        key: Key,
        proposal: Sequence[int],
        used: int,
        right: int,
        run: Sequence[int],
    ) -> None:
        """Keep what was not verified, unless something verified was wrong already."""
        beyond = len(proposal) > used
        if used:
            watch.used(beyond)
        else:
            watch.looked()
        if beyond and watch.look is None and right == used and len(run) > used:
            watch.look = Look(key, list(proposal[used:]), used)
            self._follow(watch, watch.look, run[used:], idle=not used)

    def _follow(self, watch: Watch, look: Look, run: Sequence[int], *, idle: bool) -> None:
        """idle: nobody drafted this round."""
        position = look.start + look.at
        right, tried = look.follow(run)
        self.acceptance(look.key).observe(right, tried, position, old=look.start > 0)
        if right and idle and watch.hopeful and not look.start:
            watch.look_soon()
        if look.over:
            watch.look = None


def _asked(watch: Watch, plan: Plan, used: int) -> int:
    """How many drafts to ask for, of which `used` are verified."""
    most = plan.most
    if watch.look is not None:
        return used
    if plan.draft[most] - plan.draft[used] <= FREE:
        return most
    if not watch.due(used):
        return used
    # One more than is used in any case: what was once bad luck must not be believed for ever.
    return min(max(used + 1, plan.reach), most)


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
