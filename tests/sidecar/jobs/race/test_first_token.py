from __future__ import annotations

import pytest
from fake_servers import start

from engine import EngineError
from sidecar.jobs.race.contenders import Served
from sidecar.jobs.race.first_token import first_token, in_use
from sidecar.jobs.race.tasks import first_turn, second_turn


def served(mode: str) -> Served:
    more = {"cache_prompt": False, "plain": True}
    return Served(name="fake", server=start(mode), model="m", more=more)


async def test_a_server_is_asked_twice_and_once_more_when_it_is_back() -> None:
    before = served("good")

    async def again() -> Served:
        with pytest.raises(EngineError, match="fake ended"):
            before.server.check()
        return served("good")

    found, after = await first_token(before, again, 3, pause=0.0)
    try:
        after.server.check()
        assert found.name == "fake"
        assert min(found.cold, found.second_turn, found.restart, found.started) > 0
        assert found.prompt_tokens == (70, 70)
    finally:
        await after.stop()


async def test_one_that_does_not_come_back_says_so() -> None:
    before = served("good")

    async def again() -> Served:
        return served("does not start")

    with pytest.raises(EngineError, match="no module named metal"):
        await first_token(before, again, 0, pause=0.0)
    with pytest.raises(EngineError, match="fake ended"):
        before.server.check()


async def test_one_that_dies_on_the_way_is_stopped() -> None:
    before = served("dies")

    async def again() -> Served:
        raise AssertionError("it is not started again")

    with pytest.raises(EngineError, match="out of memory"):
        await first_token(before, again, 0, pause=0.0)


def test_the_prompt_cache_is_on_as_in_use() -> None:
    server = Served(name="x", server=start("good"), model="m", more={"cache_prompt": False, "a": 1})
    try:
        assert in_use(server) == {"a": 1}
    finally:
        server.server.stop()


def test_no_two_conversations_share_a_beginning_and_a_turn_extends_the_last() -> None:
    assert first_turn(1)[0]["content"][:4] != first_turn(2)[0]["content"][:4]
    assert second_turn(1, "It adds.")[:1] == first_turn(1)
    assert len(second_turn(1, "It adds.")) == 3
