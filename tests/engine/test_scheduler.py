from __future__ import annotations

import random

import pytest

from engine.errors import Overloaded
from engine.messages import Priority
from engine.scheduler import Scheduler

AGENT, IDLE, INTERACTIVE = Priority.AGENT, Priority.IDLE, Priority.INTERACTIVE


def turns(scheduler: Scheduler, count: int) -> str:
    return "".join(scheduler.pick() or "-" for _ in range(count))


def test_a_keystroke_runs_at_the_next_turn_whatever_else_is_open():
    scheduler = Scheduler(max_active=2, max_queue=10)
    for name in "abc":
        scheduler.add(name, AGENT)
    assert turns(scheduler, 4) == "abab"
    scheduler.add("k", INTERACTIVE)
    assert turns(scheduler, 3) == "kkk"
    scheduler.remove("k")
    assert turns(scheduler, 2) == "ab"


def test_idle_work_waits_for_everything():
    scheduler = Scheduler(max_active=4, max_queue=10)
    scheduler.add("i", IDLE)
    scheduler.add("a", AGENT)
    assert turns(scheduler, 3) == "aaa"
    scheduler.remove("a")
    assert turns(scheduler, 2) == "ii"


def test_a_request_can_be_made_to_wait_for_more_and_for_less():
    scheduler = Scheduler(max_active=1, max_queue=10)
    for name in "ab":
        scheduler.add(name, AGENT)
    assert turns(scheduler, 2) == "aa"
    scheduler.change("a", IDLE)
    # What yields does not keep others waiting for its place.
    assert turns(scheduler, 2) == "bb"
    scheduler.change("nobody", IDLE)
    scheduler.change("a", AGENT)
    assert sorted(turns(scheduler, 2)) == ["a", "b"]
    scheduler.remove("b")
    scheduler.remove("a")
    assert scheduler.pick() is None


def test_what_is_idle_takes_no_place_of_an_agent():
    scheduler = Scheduler(max_active=2, max_queue=10)
    for name in "ij":
        scheduler.add(name, IDLE)
    assert sorted(turns(scheduler, 2)) == ["i", "j"]
    for name in "abc":
        scheduler.add(name, AGENT)
    assert sorted(turns(scheduler, 2)) == ["a", "b"]
    scheduler.remove("i")
    scheduler.add("k", IDLE)
    assert scheduler.queued == 2


def test_a_keystroke_is_refused_for_other_keystrokes_only():
    scheduler = Scheduler(max_active=1, max_queue=2)
    for name in "ab":
        scheduler.add(name, AGENT)
    with pytest.raises(Overloaded, match="2 requests are waiting"):
        scheduler.add("c", AGENT)
    for name in "xy":
        scheduler.add(name, INTERACTIVE)
    assert sorted(turns(scheduler, 2)) == ["x", "y"]
    with pytest.raises(Overloaded, match="2 keystrokes' requests are open"):
        scheduler.add("z", INTERACTIVE)
    scheduler.remove("x")
    scheduler.add("z", INTERACTIVE)


def test_a_short_request_is_not_stuck_behind_a_long_one():
    scheduler = Scheduler(max_active=8, max_queue=10)
    scheduler.add("l", AGENT)
    assert turns(scheduler, 5) == "lllll"
    scheduler.add("s", AGENT)
    assert "s" in turns(scheduler, 2)


def test_waiting_requests_come_in_order_as_places_free_up():
    scheduler = Scheduler(max_active=1, max_queue=10)
    for name in "abc":
        scheduler.add(name, AGENT)
    assert turns(scheduler, 2) == "aa"
    assert (scheduler.active, scheduler.queued) == (1, 2)
    scheduler.remove("a")
    assert turns(scheduler, 2) == "bb"
    scheduler.remove("c")
    scheduler.remove("b")
    assert scheduler.pick() is None
    assert (scheduler.active, scheduler.queued) == (0, 0)


def test_a_full_queue_refuses_and_keeps_what_it_had():
    scheduler = Scheduler(max_active=1, max_queue=2)
    scheduler.add("a", AGENT)
    scheduler.pick()
    scheduler.add("b", AGENT)
    scheduler.add("c", AGENT)
    with pytest.raises(Overloaded, match="max_queue = 2"):
        scheduler.add("d", AGENT)
    scheduler.remove("d")
    assert scheduler.queued == 2
    assert turns(scheduler, 1) == "a"


def test_what_waits_for_the_disk_lets_others_by():
    scheduler = Scheduler(max_active=4, max_queue=10)
    for name, priority in (("k", INTERACTIVE), ("a", AGENT), ("b", AGENT), ("i", IDLE)):
        scheduler.add(name, priority)
    waiting = {"k"}
    picked = [scheduler.pick(waiting.__contains__) for _ in range(4)]
    assert picked == ["a", "b", "a", "b"]
    waiting = {"k", "a"}
    assert {scheduler.pick(waiting.__contains__) for _ in range(4)} == {"b"}
    # Idle work is not begun in front of a keystroke that may go on in a moment.
    waiting = {"k", "a", "b"}
    assert {scheduler.pick(waiting.__contains__) for _ in range(4)} == {"k"}
    waiting = set()
    assert scheduler.pick(waiting.__contains__) == "k"
    for name in "kab":
        scheduler.remove(name)
    scheduler.add("j", IDLE)
    assert {scheduler.pick({"i"}.__contains__) for _ in range(4)} == {"j"}


@pytest.mark.parametrize("seed", range(8))
def test_overload_loses_nothing_that_was_accepted(seed):
    chance = random.Random(seed)
    scheduler = Scheduler(max_active=2, max_queue=3)
    accepted: dict[str, Priority] = {}
    refused = 0
    for number in range(400):
        name, priority = str(number), chance.choice(list(Priority))
        try:
            scheduler.add(name, priority)
            accepted[name] = priority
        except Overloaded:
            refused += 1
        action = chance.random()
        if accepted and action < 0.4:
            name = chance.choice(sorted(accepted))
            scheduler.remove(name)
            del accepted[name]
        elif accepted and action < 0.6:
            # As an aside does, which is never a keystroke.
            name = chance.choice(sorted(accepted))
            if accepted[name] is not INTERACTIVE:
                scheduler.change(name, chance.choice([AGENT, IDLE]))
        waiting = set(chance.sample(sorted(accepted), len(accepted) // 2))
        picked = scheduler.pick(waiting.__contains__)
        assert (picked is None) == (not accepted)
        assert picked is None or picked in accepted
        assert scheduler.active + scheduler.queued == len(accepted)
    assert refused
    order = []
    while (picked := scheduler.pick()) is not None:
        order.append(picked)
        scheduler.remove(picked)
    assert sorted(order) == sorted(accepted)
