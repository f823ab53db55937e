from __future__ import annotations

import pytest
from fake_contenders import FakeClock, FakeContender

from sidecar.jobs.race.race import NO_TIME, Race, entrants
from sidecar.jobs.race.tasks import CHAT, REWRITE, Task

TASKS = [Task(name="rename", regime=REWRITE), Task(name="advice", regime=CHAT)]


async def ended(_number: int) -> None:
    """Nothing is written."""


async def test_repeats_are_interleaved_and_take_turns() -> None:
    clock = FakeClock()
    order: list[str] = []

    class Noting(FakeContender):
        async def reply(self, task, max_tokens):  # type: ignore[no-untyped-def]  # as its base
            order.append(self.name)
            return await super().reply(task, max_tokens)

    race = Race(TASKS, 8, deadline=1e6, clock=clock)
    await race.run([Noting("a", clock=clock), Noting("b", clock=clock)], 2, ended)
    # A warm-up of each, and then each task by both before the next.
    assert "".join(order) == "abababbaba"
    assert race.runs["a", "rename"].keys() == {0, 1}


async def test_one_that_dies_is_lost_and_the_others_go_on() -> None:
    good, bad = FakeContender("good"), FakeContender("bad", dies_at=3)
    race = Race(TASKS, 8, deadline=1e6)
    rounds: list[int] = []

    async def each(number: int) -> None:
        rounds.append(number)

    await race.run([good, bad], 3, each)
    assert race.lost == {"bad": "rename: it fell over"}
    assert rounds == [0, 1, 2]
    assert race.runs["good", "advice"].keys() == {0, 1, 2}
    assert race.runs["bad", "advice"].keys() == {0}


async def test_one_that_does_not_answer_at_all_is_lost_at_the_warm_up() -> None:
    race = Race(TASKS, 8, deadline=1e6)
    await race.run([FakeContender("bad", dies_at=0)], 3, ended)
    assert race.lost == {"bad": "warm-up: it fell over"}
    assert race.runs == {}


async def test_a_system_is_asked_its_own_regimes_only() -> None:
    some = FakeContender("some", regimes=(CHAT,))
    await Race(TASKS, 8, deadline=1e6).run([some], 1, ended)
    assert some.asked == ["warm-up", "advice"]


async def test_nobody_is_asked_behind_the_deadline() -> None:
    clock = FakeClock()
    slow = FakeContender("slow", decode=100.0, clock=clock)
    late = FakeContender("late", decode=100.0, clock=clock)
    race = Race(TASKS, 8, deadline=250.0, clock=clock)
    await race.run([slow, late], 5, ended)
    # Two warm-ups and a reply have taken the time.
    assert race.lost == {"late": NO_TIME}
    assert race.runs.keys() == {("slow", "rename")}


async def test_slow_systems_repeat_while_there_is_time() -> None:
    clock = FakeClock()
    quick = FakeContender("quick", decode=1.0, clock=clock)
    slow = FakeContender("slow", decode=49.0, clock=clock)
    race = Race(TASKS, 8, deadline=280.0, clock=clock)
    await race.run([quick, slow], 4, ended)
    assert race.runs["quick", "advice"].keys() == {0, 1, 2, 3}
    assert race.runs["slow", "advice"].keys() == {0, 1}
    assert clock.now < 280.0


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(10.0, ["a", "b"]), (85.0, ["a", "slow", "b"]), (200.0, ["a", "slow", "b", "slower"])],
)
def test_who_takes_part_in_a_round(seconds: float, expected: list[str]) -> None:
    passes = {"a": 5.0, "slow": 60.0, "b": 6.0, "slower": 90.0}
    assert entrants(passes, 2, seconds) == expected
