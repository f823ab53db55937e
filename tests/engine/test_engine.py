"""The engine thread: states, messages across threads, death."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from loops import VOCABULARY
from tiny_drafters import KINDS
from tiny_models import tiny

from engine import (
    Chunk,
    EngineClient,
    EngineError,
    EngineOptions,
    Finished,
    GenerateRequest,
    ModelError,
    NotReady,
    Priority,
)
from engine.doubles import reorder_rows
from engine.drafters.random_checkpoint import write_random_drafter
from engine.engine import Engine
from engine.prefix_cache.messages import CacheOptions
from engine.testing import ByteCodec, fake_model

PROMPT = tuple(range(20, 32)) * 4


def tiny_load(family: str = "qwen3_5", alter=None, codec=None):
    def load(options, progress):
        progress("reading weights", 0.5)
        model, config = tiny(family)
        if alter is not None:
            alter(model)
        return SimpleNamespace(
            model=model, config=config, codec=codec or ByteCodec(), info=fake_model(512)
        )

    return load


async def started(load, memory: int = 1 << 30, **options) -> EngineClient:
    cache = CacheOptions(memory=memory)
    client = EngineClient(Engine(EngineOptions(**options), cache=cache, load=load))
    client.start()
    await client.ready()
    return client


async def test_load_reply_status_stop():
    client = await started(tiny_load())
    status = client.status()
    assert (status.state, status.drafters, status.active) == ("ready", ("copy",), 0)
    assert status.exactness is not None
    assert (status.exactness.exact, status.exactness.width) == (True, 16)
    assert status.memory_bytes > 0
    request = GenerateRequest(id="a", prompt=PROMPT, max_tokens=12, ignore_eos=True)
    events = [event async for event in client.generate(request)]
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert len(finished.tokens) == 12
    assert [t for e in events if isinstance(e, Chunk) for t in e.tokens] == list(finished.tokens)
    status = client.status()
    assert status.totals.completion_tokens == 12
    assert status.cache.nodes >= 1
    await client.stop()
    await client.stop()
    assert client.status().state == "stopped"
    with pytest.raises(NotReady, match="stopped"):
        client.generate(request)


async def test_the_states_while_loading_are_told():
    seen: list[tuple[str, str]] = []
    gate = threading.Event()

    def load(options, progress):
        gate.wait()
        return tiny_load()(options, progress)

    client = EngineClient(Engine(EngineOptions(), load=load))
    client.start()
    with pytest.raises(NotReady, match="loading"):
        client.generate(GenerateRequest(id="a", prompt=(1,)))
    with pytest.raises(NotReady, match="loading"):
        await client.encode("x")
    gate.set()
    while client.status().state == "loading":
        await client.changed()
        seen.append((client.status().state, client.status().detail))
    assert seen[-1] == ("ready", "")
    await client.stop()


async def test_a_model_that_does_not_load_is_a_state_with_a_reason():
    def load(options, progress):
        raise ModelError("model.safetensors: truncated, 10 of 20 bytes; pull it again")

    client = EngineClient(Engine(EngineOptions(), load=load))
    client.start()
    with pytest.raises(NotReady, match="truncated, 10 of 20 bytes"):
        await client.ready()
    assert client.status().state == "failed"
    await client.stop()


class BrokenCodec(ByteCodec):
    def detokenizer(self):
        raise ZeroDivisionError("a bug of ours")


class PressingCodec(ByteCodec):
    """While the third reply's text is made, in the middle of a round, `press` is called."""

    def __init__(self, press):
        super().__init__()
        self._press = press

    def detokenizer(self):
        detokenizer = super().detokenizer()
        add, tokens = detokenizer.add, []

        def counted(token):
            tokens.append(token)
            if len(tokens) == 3:
                self._press()
            return add(token)

        detokenizer.add = counted
        return detokenizer


async def test_a_key_pressed_in_the_middle_of_a_round_has_the_very_next_turns():
    turns, over = [], threading.Event()
    keys = [
        GenerateRequest(
            id=f"key{n}",
            prompt=(*PROMPT, n),
            max_tokens=2,
            priority=Priority.INTERACTIVE,
            ignore_eos=True,
        )
        for n in range(3)
    ]

    def press():
        turns.append("pressed")
        for key in keys:
            engine.post(key)

    def emit(event):
        if isinstance(event, Finished) and event.id == "agent":
            over.set()

    engine = Engine(
        EngineOptions(draft="none", audit=False),
        cache=CacheOptions(memory=0),
        load=tiny_load(codec=PressingCodec(press)),
        turned=turns.append,
    )
    ready = threading.Event()
    engine.start(emit, lambda: engine.status().state == "ready" and ready.set())
    assert ready.wait(60)
    engine.post(GenerateRequest(id="agent", prompt=PROMPT, max_tokens=12, ignore_eos=True))
    assert over.wait(60)
    engine.stop()
    at = turns.index("pressed")
    # The round in which it was pressed, and then nothing but keys until they are over.
    assert turns[at + 1] == "agent"
    first, last = at + 2, max(n for n, id in enumerate(turns) if id.startswith("key"))
    assert first < last
    assert {id[:3] for id in turns[first : last + 1]} == {"key"}
    assert "agent" in turns[last:]


@pytest.mark.filterwarnings("ignore")
async def test_death_answers_everyone_and_refuses_the_rest(capfd):
    client = await started(tiny_load(codec=BrokenCodec()))
    replies = [
        client.generate(GenerateRequest(id=f"r{n}", prompt=PROMPT, max_tokens=500))
        for n in range(5)
    ]
    endings = await asyncio.gather(*(r.finished() for r in replies), return_exceptions=True)
    assert all(isinstance(e, EngineError) and "a bug of ours" in e.message for e in endings)
    assert client.status().state == "failed"
    with pytest.raises(NotReady, match="a bug of ours"):
        client.generate(GenerateRequest(id="late", prompt=PROMPT))
    await client.stop()
    assert "ZeroDivisionError" in capfd.readouterr().err


async def test_stopping_ends_what_is_open():
    client = await started(tiny_load())
    reply = client.generate(GenerateRequest(id="a", prompt=PROMPT, ignore_eos=True))
    await anext(reply)
    await client.stop()
    with pytest.raises(EngineError, match="stopped"):
        await reply.finished()


async def test_leaving_a_reply_frees_the_engine():
    client = await started(tiny_load())
    async with client.generate(GenerateRequest(id="a", prompt=PROMPT, ignore_eos=True)) as reply:
        await anext(reply)
    short = GenerateRequest(
        id="b", prompt=PROMPT, max_tokens=1, priority=Priority.INTERACTIVE, ignore_eos=True
    )
    await client.generate(short).finished()
    assert client.open_requests == 0
    assert client.status().totals.cancelled == 1
    await client.stop()


async def test_many_at_once_equal_one_after_the_other():
    def request(number: int, round_: str) -> GenerateRequest:
        return GenerateRequest(
            id=f"{round_}{number}",
            prompt=(*PROMPT, number),
            max_tokens=15,
            ignore_eos=True,
            priority=Priority(number % 3),
        )

    client = await started(tiny_load(), memory=0, max_active=3)
    alone = [(await client.generate(request(n, "a")).finished()).tokens for n in range(8)]
    replies = [client.generate(request(n, "b")) for n in range(8)]
    together = await asyncio.gather(*(reply.finished() for reply in replies))
    assert [f.tokens for f in together] == alone
    await client.stop()


async def test_a_machine_with_uneven_kernels_says_so_in_status_and_reply():
    def alter(model):
        reorder_rows(model, from_rows=3)

    client = await started(tiny_load("qwen3", alter))
    exactness = client.status().exactness
    assert exactness is not None
    assert (exactness.exact, exactness.width) == (False, 2)
    finished = await client.generate(
        GenerateRequest(id="a", prompt=PROMPT, max_tokens=5, ignore_eos=True)
    ).finished()
    assert (finished.width, finished.exact) == (2, True)
    assert finished.width_reason == exactness.reason
    assert "3 rows behind 8 tokens" in exactness.reason
    await client.stop()


async def test_a_drafter_in_the_engine_and_one_that_cannot_be_used(tmp_path):
    write_random_drafter(tmp_path / "mine", KINDS["v1"])
    client = await started(tiny_load(), draft=str(tmp_path / "mine"))
    assert client.status().drafters == ("copy", "mine")
    finished = await client.generate(
        GenerateRequest(id="a", prompt=PROMPT, max_tokens=9, ignore_eos=True, policy="always")
    ).finished()
    assert finished.rejected > 0
    await client.stop()

    config = KINDS["v1"] | {"num_target_layers": 2}
    write_random_drafter(tmp_path / "latent", config)
    client = await started(tiny_load("glm4_moe_lite"), draft=str(tmp_path / "latent"))
    status = client.status()
    assert status.drafters == ()
    assert "latent is not used: glm4_moe_lite: 2 rows" in status.notes[0]
    await client.stop()


async def test_draft_none_is_target_only():
    client = await started(tiny_load(), draft="none")
    assert client.status().drafters == ()
    finished = await client.generate(
        GenerateRequest(id="a", prompt=PROMPT, max_tokens=30, ignore_eos=True)
    ).finished()
    assert (finished.width, finished.accepted + finished.rejected) == (1, 0)
    await client.stop()


async def test_two_open_requests_of_one_id_are_refused():
    client = await started(tiny_load())
    request = GenerateRequest(id="a", prompt=PROMPT, max_tokens=200, ignore_eos=True)
    first = client.generate(request)
    with pytest.raises(EngineError, match="already open"):
        client.generate(request)
    first.cancel()
    assert (await first.finished()).finish_reason == "cancelled"
    await client.stop()


def test_tiny_models_and_the_byte_codec_share_a_vocabulary():
    assert fake_model().vocab_size == VOCABULARY == 261


EXIT_AFTER_STOP = """
import asyncio, sys
from engine import EngineClient, EngineOptions
from engine.engine import Engine
from test_engine import started, tiny_load

async def main():
    client = await started(tiny_load(), draft="none")
    await client.stop()

asyncio.run(main())
sys.exit(7)
"""


@pytest.mark.slow
def test_a_process_that_stops_its_engine_keeps_its_exit_code():
    """MLX aborts some of them while the engine thread is still ending. By chance, so a pass proves
    little; a failure is real."""
    command = [sys.executable, "-c", EXIT_AFTER_STOP]
    codes = [
        subprocess.run(command, cwd=Path(__file__).parent, stderr=subprocess.DEVNULL).returncode
        for _ in range(8)
    ]
    assert codes == [7] * 8
