from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.drafter import Drafter, Offer
from engine.drafters.prediction import LONGEST_CHANGE, WINDOW, PredictionDrafter

TEXT = list(range(100, 200))


def rounds(drafter: Drafter, reply: list[int], drafts: int) -> int:
    """Target forwards until the reply is there, verifying at most `drafts` a round."""
    at = count = 0
    while at < len(reply):
        proposed = drafter.propose(drafts)
        right = 0
        while right < len(proposed) and at + right < len(reply):
            if proposed[right] != reply[at + right]:
                break
            right += 1
        run = reply[at : at + right + 1]
        drafter.commit(run)
        at += len(run)
        count += 1
    return count


def test_drafts_the_prediction_behind_the_prompt() -> None:
    drafter: Drafter = PredictionDrafter(TEXT, behind=3)
    drafter.commit([1, 2])
    drafter.commit([3, 100, 101])
    assert drafter.propose(4) == [102, 103, 104, 105]
    assert drafter.propose(0) == []
    assert drafter.offer(4) == Offer("prediction", 4, 5)
    drafter.commit(TEXT[2:98])
    assert drafter.propose(4) == [198, 199]
    assert drafter.offer(4).drafts == 2
    drafter.commit([198, 199, 7])
    assert drafter.offer(4) == Offer("prediction", 0)


def test_an_unchanged_reply_takes_whole_rounds() -> None:
    assert rounds(PredictionDrafter(TEXT), TEXT, 9) == 10


def test_goes_on_at_the_first_token_that_fits() -> None:
    drafter = PredictionDrafter(TEXT)
    drafter.commit([*TEXT[:10], 1])
    assert drafter.offer(8) == Offer("prediction", 0)
    # Two tokens were replaced by two others: 112 fits.
    drafter.commit([2, 112])
    assert drafter.propose(3) == [113, 114, 115]
    assert drafter.offer(8).confidence == 1
    drafter.commit([113, 114])
    assert drafter.offer(8).confidence > 2


def test_what_is_put_in_and_what_is_left_out() -> None:
    drafter = PredictionDrafter(TEXT)
    drafter.commit([*TEXT[:10], 1, 2, 3, 110])
    assert drafter.propose(2) == [111, 112]
    drafter.commit([*TEXT[11:20], 125])
    assert drafter.propose(2) == [126, 127]


def test_makes_a_change_again() -> None:
    name, new = [1, 2], [7, 8, 9]
    text = [10, *name, 11, 12, 13, *name, 14, 15, 16, *name, 17]
    reply = [10, *new, 11, 12, 13, *new, 14, 15, 16, *new, 17]
    drafter = PredictionDrafter(text)
    drafter.commit(reply[:7])
    assert drafter.propose(20) == reply[7:]
    # Also from the middle of it on.
    drafter.commit(reply[7:8])
    assert drafter.propose(20) == reply[8:]
    # Its tokens, what is behind it until it is settled, and the rest in one round.
    assert rounds(PredictionDrafter(text), reply, 20) == 6


def test_a_change_that_is_not_made_everywhere_is_dropped() -> None:
    text = [10, 1, 11, 12, 13, 1, 14, 15, 16, 1, 17]
    drafter = PredictionDrafter(text)
    drafter.commit([10, 7, 11, 12, 13])
    assert drafter.propose(2) == [7, 14]
    drafter.commit([1])
    assert drafter.propose(5) == [14, 15, 16, 1, 17]


def test_a_token_that_fits_by_chance_is_only_believed_until_it_does_not() -> None:
    text = [1, 2, 3, 4, 5, 6, 3, 7, 8, 9, 10]
    drafter = PredictionDrafter(text)
    # 2 became 20, 3 and 30: the 3 is none of the text's.
    drafter.commit([1, 20, 3])
    assert drafter.propose(1) == [4]
    drafter.commit([30])
    assert drafter.propose(1) == []
    drafter.commit([3, 4, 5])
    assert drafter.propose(9) == text[5:]


def test_gives_up_what_is_far_away() -> None:
    drafter = PredictionDrafter(TEXT)
    far = TEXT[WINDOW + 20]
    drafter.commit([*TEXT[:2], far])
    assert drafter.propose(3) == []
    # In a long change single tokens fit somewhere by chance.
    drafter.commit([0] * (3 * WINDOW) + [110])
    assert drafter.propose(3) == []
    drafter.commit([111, 112])
    assert drafter.propose(3) == [113, 114, 115]


def test_long_changes_are_not_made_again() -> None:
    text = [*TEXT[:5], 1, *TEXT[5:10], 1, *TEXT[10:]]
    drafter = PredictionDrafter(text)
    drafter.commit([*TEXT[:5], *range(300, 301 + LONGEST_CHANGE), *TEXT[5:10]])
    assert drafter.propose(1) == [1]


def test_no_prediction() -> None:
    drafter = PredictionDrafter([])
    drafter.commit([1, 2, 3])
    assert drafter.propose(4) == []
    assert drafter.offer(4).drafts == 0


tokens = st.lists(st.integers(0, 4), max_size=40)


@settings(max_examples=200, deadline=None)
@given(text=tokens, reply=tokens, limit=st.integers(0, 20), data=st.data())
def test_any_reply(text: list[int], reply: list[int], limit: int, data: st.DataObject) -> None:
    drafter, at = PredictionDrafter(text), 0
    while at < len(reply):
        offered, proposed = drafter.offer(limit), drafter.propose(limit)
        assert proposed == drafter.propose(limit)
        assert offered.drafts == len(proposed) <= limit
        assert drafter.propose(limit // 2) == proposed[: limit // 2]
        run = reply[at : at + data.draw(st.integers(1, 5))]
        drafter.commit(run)
        at += len(run)


@settings(max_examples=100, deadline=None)
@given(text=st.lists(st.integers(0, 3), max_size=60), data=st.data())
def test_runs_do_not_matter(text: list[int], data: st.DataObject) -> None:
    reply = data.draw(st.lists(st.integers(0, 3), max_size=60))
    whole, single = PredictionDrafter(text), PredictionDrafter(text)
    whole.commit(reply)
    for token in reply:
        single.commit([token])
    assert whole.propose(10) == single.propose(10)
    assert whole.offer(10) == single.offer(10)
