from __future__ import annotations

import sys

import pytest
from fake_servers import fake_server, start

from engine import EngineError
from sidecar.jobs.race.chat_stream import ChatStream, stream_chat
from sidecar.jobs.race.contenders import Served, measured
from sidecar.jobs.race.server_process import ServerProcess, free_port
from sidecar.jobs.race.tasks import Task

HELLO = ({"role": "user", "content": "Hello"},)
TASK = Task(name="hello", regime="chat", messages=HELLO, prompt=tuple(range(70)))


def ask(server: ServerProcess, seconds: float = 20.0) -> ChatStream:
    return stream_chat(server.port, HELLO, model="m", max_tokens=8, seconds=seconds)


def test_a_reply_is_read_with_what_the_server_counts() -> None:
    with fake_server("good") as server:
        streamed = ask(server)
    assert streamed.text == "def total(): pass"
    assert (streamed.tokens, streamed.prompt_tokens, streamed.cached_tokens) == (5, 70, 0)
    assert 0 < streamed.first <= streamed.last <= streamed.whole


def test_where_it_counts_nothing_pieces_count() -> None:
    with fake_server("counts nothing") as server:
        streamed = ask(server)
    assert streamed.tokens == 4
    made = measured(streamed, 33, remembered=False)
    assert made.prompt_tokens == 33


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("garbage", "this is no JSON: '{not json'"),
        ("error", "the model fell over"),
        ("refuses", "status 400: .*no such model"),
        ("mute", "the reply has no text"),
        ("dies", "the connection broke"),
    ],
)
def test_what_goes_wrong_is_said(mode: str, why: str) -> None:
    with fake_server(mode) as server, pytest.raises(EngineError, match=why):
        ask(server)


def test_a_reply_may_be_a_call_where_that_is_said() -> None:
    with fake_server("calls") as server:
        with pytest.raises(EngineError, match="the reply has no text"):
            ask(server)
        streamed = stream_chat(
            server.port, HELLO, model="m", max_tokens=8, seconds=20, wordless=True
        )
    assert streamed.text == ""
    assert 0 < streamed.first <= streamed.whole


def test_a_server_that_only_sends_comments_hangs() -> None:
    with fake_server("hangs") as server:
        with pytest.raises(EngineError, match="no whole reply within 1 seconds"):
            ask(server, seconds=0.6)


async def test_a_server_that_died_is_asked_for_its_last_words() -> None:
    with fake_server("dies") as server:
        served = Served(name="fake", server=server, model="m")
        with pytest.raises(EngineError, match="fake ended with exit code 7: out of memory"):
            await served.reply(TASK, 8)


async def test_only_the_first_reply_of_a_server_that_remembers_is_cold() -> None:
    with fake_server("good") as server:
        served = Served(name="fake", server=server, model="m", remembers=True)
        assert (await served.reply(TASK, 8)).read == 70
        assert (await served.reply(TASK, 8)).read == 0
        assert served.peak_bytes() > 1 << 20 or sys.platform == "darwin"


async def test_a_server_may_keep_its_own_time() -> None:
    with fake_server("own clock") as server:
        made = await Served(name="fake", server=server, model="m").reply(TASK, 8)
    assert made.decode_speed == pytest.approx(20.0)
    assert made.prompt_speed == pytest.approx(140.0)
    assert made.drafted == 3


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(EngineError, match="exit code 1: ImportError: no module named metal"):
        start("does not start")


def test_a_server_that_is_never_ready_is_given_up() -> None:
    with pytest.raises(EngineError, match="did not answer /health within 1 seconds"):
        start("never ready", seconds=1.0)


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(EngineError, match="fake does not start: No such file"):
        ServerProcess.start("fake", ["./no-such"], port=free_port(), environment={})


def test_stopping_twice_is_stopping() -> None:
    with fake_server("good") as server:
        server.stop()
        with pytest.raises(EngineError, match="fake ended"):
            server.check()
