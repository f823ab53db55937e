from __future__ import annotations

import itertools

import msgspec
import pytest

from engine.decoding.acceptance import Learnt
from engine.decoding.cost_curve import CostCurve, Grid
from engine.decoding.costs import Costs
from engine.decoding.looks import LAST_LOOK, Key
from engine.decoding.surplus import (
    CALIBRATE,
    CALIBRATING,
    INHERITED,
    MOST_UNREAD,
    NO_GAIN,
    NOTHING,
    SAVED_UP,
    UNPAYABLE,
    Choice,
    SurplusController,
    Track,
)
from engine.drafters.drafter import Offer

GOOD, BAD = Learnt(accepted=(95.0,) * 7, tried=(100.0,) * 7), Learnt(accepted=(0.0,), tried=(99.0,))
DFLASH, COPY = Offer("dflash", 7), Offer("copy", 7)


def row(*seconds: float) -> Grid:
    return Grid(contexts=(0,), counts=tuple(range(1, len(seconds) + 1)), seconds=(seconds,))


def controller(
    learnt: dict[Key, Learnt] | None = None, *, account: float = 9.0, draft: float = 0.2
) -> tuple[SurplusController, Track]:
    """On a machine where a row costs a tenth of the first one."""
    curve = CostCurve(
        forward=row(*(1 + 0.1 * n for n in range(8))),
        drafters={"dflash": row(*[draft] * 7), "copy": row(*[1e-6] * 7)},
    )
    made = SurplusController(Costs(curve), learnt)
    track = made.begin()
    made.account, made.curiosity = account, min(account, SAVED_UP)
    return made, track


def known(learnt: Learnt, drafter: str = "dflash", regime: str = "code") -> dict[Key, Learnt]:
    return {Key(regime, drafter, 0): learnt}


def settle(
    made: SurplusController, track: Track, choice: Choice, right: int = 0, **options: bool
) -> None:
    """The round of `choice` with so many right drafts in every proposal."""
    at = choice.context
    proposals = {
        ask.drafter: [at + 1 + i if i < right else -1 for i in range(ask.drafts)]
        for ask in choice.asks
    }
    verified = min(right, choice.drafts)
    made.settle(track, choice, proposals, list(range(at + 1, at + verified + 2)), **options)


def test_drafts_as_far_as_it_pays() -> None:
    made, track = controller(known(GOOD))
    choice = made.choose(track, "code", 0, [DFLASH], 8)
    assert (choice.drafter, choice.drafts, choice.reason) == ("dflash", 7, "")
    assert made.choose(track, "code", 0, [DFLASH], 4).drafts == 3


@pytest.mark.parametrize(
    ("learnt", "account", "offers", "room", "reason"),
    [
        (GOOD, 9.0, [], 8, NOTHING),
        (GOOD, 9.0, [DFLASH], 1, NOTHING),
        (GOOD, 9.0, [Offer("dflash", 0)], 8, NOTHING),
        (BAD, 9.0, [DFLASH], 8, NO_GAIN),
        (GOOD, 0.0, [DFLASH], 8, UNPAYABLE),
    ],
)
def test_target_only_has_a_reason(
    learnt: Learnt, account: float, offers: list[Offer], room: int, reason: str
) -> None:
    made, track = controller(known(learnt), account=account)
    choice = made.choose(track, "code", 0, offers, room)
    assert (choice.drafter, choice.drafts, choice.reason) == ("", 0, reason)


def test_with_little_to_lose_it_drafts_less() -> None:
    made, track = controller(known(GOOD), account=0.35)
    assert made.choose(track, "code", 0, [DFLASH], 8).drafts == 1


def test_takes_the_drafter_that_commits_more_a_second() -> None:
    made, track = controller(known(GOOD) | known(GOOD, "copy"))
    assert made.choose(track, "code", 0, [DFLASH, COPY], 8).drafter == "copy"
    weak = Learnt(accepted=(40.0,), tried=(100.0,))
    made, track = controller(known(GOOD) | known(weak, "copy"))
    choice = made.choose(track, "code", 0, [DFLASH, COPY], 8)
    # Copying is free, so what it would have said is looked at all the same.
    assert choice.drafter == "dflash"
    assert Offer("copy", 7) in choice.asks


def test_acceptance_is_kept_apart_by_regime_and_confidence() -> None:
    made, track = controller(
        {
            Key("code", "copy", 5): GOOD,
            Key("code", "copy", 2): BAD,
            Key("tool_call", "copy", 5): BAD,
        }
    )
    assert made.choose(track, "code", 0, [Offer("copy", 7, 5)], 8).drafts == 7
    assert made.choose(track, "code", 0, [Offer("copy", 7, 2)], 8).drafts == 0
    assert made.choose(track, "tool_call", 0, [Offer("copy", 7, 5)], 8).drafts == 0


def test_a_look_teaches_what_verifying_would_have() -> None:
    made, track = controller(known(BAD, "copy"))
    choice = made.choose(track, "code", 0, [COPY], 8)
    assert (choice.drafts, choice.asks) == (0, (COPY,))
    made.settle(track, choice, {"copy": [1, 2, 3, 4, 5, 6, -1]}, [1])
    for token in range(2, 8):
        settle(made, track, made.choose(track, "code", token - 1, [], 8))
    learnt = made.learnt()[Key("code", "copy", 0)]
    assert learnt.accepted[1:] == (1.0,) * 5 + (0.0,)
    assert learnt.tried[1:] == (1.0,) * 6


def looks(made: SurplusController, track: Track, regime: str, rounds: range) -> list[int]:
    """The rounds in which a drafter that is never right was looked at."""
    looked = []
    for number in rounds:
        choice = made.choose(track, regime, number, [DFLASH], 8)
        assert choice.drafts == 0
        looked += [number] if choice.asks else []
        settle(made, track, choice)
    return looked


def test_looks_back_off_and_never_end() -> None:
    made, track = controller(known(BAD))
    looked = looks(made, track, "code", range(800))
    gaps = [b - a for a, b in itertools.pairwise(looked)]
    assert gaps == sorted(gaps)
    assert gaps[0] == 1
    assert gaps[-1] == LAST_LOOK


def test_what_lies_behind_the_width_is_looked_at_even_if_it_once_was_bad() -> None:
    short = Learnt(accepted=(95.0, 0.0), tried=(100.0, 100.0))
    made, track = controller(known(short))
    dear = {"dflash": row(*(0.1 * n for n in range(1, 8)))}
    made.costs.renew(msgspec.structs.replace(made.costs.curve, drafters=dear))
    asked = []
    for number in range(40):
        choice = made.choose(track, "code", number, [DFLASH], 8)
        assert choice.drafts == 1
        asked.append(choice.asks[0].drafts)
        settle(made, track, choice, right=1)
    assert set(asked) == {1, 2}


def test_a_free_look_hides_no_time_and_a_dear_one_does() -> None:
    made, track = controller(known(BAD) | known(BAD, "copy"))
    copied = Choice("code", 0, "", 0, (COPY,), NO_GAIN)
    made.settle(track, copied, {"copy": []}, [1], seconds=1.4)
    assert made.costs.drift > 1.05
    drift = made.costs.drift
    looked = Choice("code", 0, "", 0, (DFLASH,), NO_GAIN)
    made.settle(track, looked, {"dflash": []}, [1], seconds=9.0)
    assert made.costs.drift == drift


def test_a_regime_change_looks_again_soon() -> None:
    made, track = controller(known(BAD) | known(BAD, regime="prose"))
    looks(made, track, "code", range(500))
    assert len(looks(made, track, "prose", range(500, 510))) >= 2


def test_nothing_is_spent_on_looks_while_saving_for_a_draft_that_pays() -> None:
    made, track = controller(known(GOOD), account=0.2)
    choice = made.choose(track, "code", 0, [DFLASH], 8)
    assert (choice.reason, choice.asks) == (UNPAYABLE, ())


def test_looks_that_cannot_be_paid_for_are_not_made() -> None:
    made, track = controller(known(BAD), account=0.0)
    assert made.choose(track, "code", 0, [DFLASH], 8).asks == ()


def test_a_target_only_round_now_and_then_keeps_its_time_known() -> None:
    made, track = controller(known(GOOD))
    reasons = []
    for number in range(2 * CALIBRATE + 4):
        choice = made.choose(track, "code", 8 * number, [DFLASH], 8)
        reasons.append(choice.reason)
        settle(made, track, choice, right=7)
    assert [n for n, reason in enumerate(reasons) if reason == CALIBRATING] == [
        CALIBRATE,
        2 * CALIBRATE + 1,
    ]


def test_drafts_behind_the_end_of_a_reply_were_not_wrong() -> None:
    made, track = controller(known(GOOD))
    acceptance = made.acceptance(Key("code", "dflash", 0))
    before = acceptance.by_position(7)
    settle(made, track, made.choose(track, "code", 0, [DFLASH], 8), right=2, ended=True)
    assert all(b <= a for b, a in zip(before, acceptance.by_position(7), strict=True))


def test_a_drafter_may_propose_less_than_asked_or_nothing() -> None:
    made, track = controller(known(GOOD))
    choice = made.choose(track, "code", 0, [DFLASH], 8)
    made.settle(track, choice, {"dflash": []}, [1])
    assert made.account == pytest.approx(9.0 + 1.015 - 1.2)
    made.settle(track, choice, {"dflash": [1, 2]}, [1, 2, 3])
    assert made.account == pytest.approx(9.0 + 1.015 - 1.2 + 3 * 1.015 - 1.4)


def test_a_reply_inherits_little() -> None:
    made, _ = controller(account=500.0)
    made.begin()
    assert made.account == INHERITED


def test_the_same_rounds_lead_to_the_same_choices() -> None:
    def choices() -> list[Choice]:
        made, track = controller()
        chosen = []
        for number in range(300):
            regime = "code" if number % 90 < 60 else "tool_call"
            chosen.append(made.choose(track, regime, number, [DFLASH, COPY], 8))
            settle(made, track, chosen[-1], right=number * 7 % 5 if regime == "code" else 0)
        return chosen

    assert choices() == choices()


def test_a_drafter_that_is_far_behind_must_first_be_worth_reading() -> None:
    made, track = controller(known(GOOD), account=3.0)
    made.costs.renew(msgspec.structs.replace(made.costs.curve, reading={"dflash": 0.05}))
    assert made.choose(track, "code", 0, [DFLASH._replace(behind=50)], 8).drafts == 7
    far = made.choose(track, "code", 0, [DFLASH._replace(behind=500)], 8)
    assert (far.drafts, far.reason) == (0, UNPAYABLE)
    near = made.choose(track, "code", 0, [DFLASH._replace(behind=50)], 8)
    settle(made, track, near, right=7)
    # Seven rows more than one, a draft, and what it was behind by more than a round's tokens.
    assert made.account == pytest.approx(3.0 + 8 * 1.015 - 1.7 - 0.2 - 34 * 0.05)


def test_reading_has_to_pay_within_some_rounds() -> None:
    made, track = controller(known(Learnt(accepted=(50.0,) * 7, tried=(100.0,) * 7)), account=99.0)
    made.costs.renew(msgspec.structs.replace(made.costs.curve, reading={"dflash": 0.05}))
    assert made.choose(track, "code", 0, [DFLASH], 8).drafts
    assert not made.choose(track, "code", 0, [DFLASH._replace(behind=200)], 8).drafts


def test_reading_has_to_pay_within_the_rounds_that_a_drafter_stays_in_use() -> None:
    made, track = controller(known(GOOD), account=99.0)
    made.costs.renew(msgspec.structs.replace(made.costs.curve, reading={"dflash": 0.05}))
    behind, copied = Offer("dflash", 7, behind=200), Choice("code", 0, "copy", 7, (COPY,), "")
    track.enter("code", None)
    assert made.choose(track, "code", 0, [behind], 8).drafter == "dflash"
    for _ in range(20):
        # Between copies it gets one round each.
        for choice in (Choice("code", 0, "dflash", 7, (DFLASH,), ""), copied):
            settle(made, track, choice, 7)
    assert made.choose(track, "code", 0, [behind], 8).drafter == ""
    assert made.choose(track, "code", 0, [DFLASH], 8).drafter == "dflash"


def test_after_a_round_that_was_all_right_nobody_else_is_asked() -> None:
    made, track = controller(known(GOOD) | known(GOOD, "copy"))
    first = made.choose(track, "code", 0, [DFLASH, COPY], 8)
    settle(made, track, first, 7)
    again = made.choose(track, "code", 0, [DFLASH, COPY], 8)
    assert (again.drafter, again.drafts, again.asks) == ("copy", 7, (COPY,))
    # Half of it was wrong, it has less to say, or this is another text: all are weighed again.
    settle(made, track, again, 3)
    assert track.again is None
    settle(made, track, made.choose(track, "code", 0, [DFLASH, COPY], 8), 7)
    assert made.choose(track, "code", 0, [DFLASH, Offer("copy", 2)], 8).drafter == "dflash"
    made.choose(track, "prose", 0, [DFLASH, COPY], 8)
    assert track.again is None
    settle(made, track, made.choose(track, "code", 0, [DFLASH, COPY], 8), 7)
    made.account = 0.0
    assert made.choose(track, "code", 0, [DFLASH, COPY], 8).reason == UNPAYABLE


def test_a_reply_begins_with_what_was_all_right_at_the_beginning_of_the_last() -> None:
    copying = {Key("code", "copy", confidence): GOOD for confidence in (0, 3, 4)}
    made, track = controller(known(GOOD) | copying)
    sure = COPY._replace(confidence=3)
    first = made.choose(track, "code", 0, [DFLASH, sure], 8)
    assert len(first.asks) == 2
    settle(made, track, first, 7)
    track = made.begin()
    again = made.choose(track, "code", 0, [DFLASH, sure._replace(confidence=4)], 8)
    assert (again.drafter, again.drafts, len(again.asks)) == ("copy", 7, 1)
    # In another text, or where the drafter is less sure, all are weighed.
    assert len(made.choose(made.begin(), "prose", 0, [DFLASH, sure], 8).asks) == 2
    assert len(made.choose(made.begin(), "code", 0, [DFLASH, COPY], 8).asks) == 2
    # It was wrong this time.
    settle(made, track, again, 3)
    assert len(made.choose(made.begin(), "code", 0, [DFLASH, sure], 8).asks) == 2


def test_looks_at_a_drafter_that_is_behind_cost_the_reading() -> None:
    made, track = controller(known(BAD), account=1.0)
    made.costs.renew(msgspec.structs.replace(made.costs.curve, reading={"dflash": 0.05}))
    assert made.choose(track, "code", 0, [DFLASH._replace(behind=500)], 8).asks == ()
    assert made.choose(track, "code", 0, [DFLASH._replace(behind=20)], 8).asks


def test_a_drafter_that_does_not_pay_reads_fewer_and_fewer_replies_and_never_none() -> None:
    made, _ = controller(known(BAD))
    read = [made.worth_reading("dflash", 7, 0) for _ in range(200)]
    gaps = [b - a for a, b in itertools.pairwise(n for n, was in enumerate(read) if was)]
    assert not read[0]
    assert gaps == sorted(gaps)
    assert gaps[0] <= 3
    assert gaps[-1] == MOST_UNREAD + 1


@pytest.mark.parametrize("learnt", [{}, known(GOOD), known(BAD) | known(GOOD, regime="prose")])
def test_a_drafter_that_may_pay_somewhere_reads_every_reply(learnt: dict[Key, Learnt]) -> None:
    made, _ = controller(learnt)
    assert all(made.worth_reading("dflash", 7, 0) for _ in range(50))


def test_looks_take_a_hundredth_of_the_time_at_most() -> None:
    """Whatever drafting has gained; the rest of the account is for rounds that are expected to
    pay."""
    made, _ = controller(known(BAD), account=1000.0)
    looked = 0
    for reply in range(60):
        track = made.begin()
        # Every reply is short and begins anew.
        looked += len(looks(made, track, "code", range(100 * reply, 100 * reply + 20)))
    assert looked * 0.2 <= 0.01 * 60 * 20 + SAVED_UP
