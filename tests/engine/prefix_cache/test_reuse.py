"""Sequences on real (tiny) models: what is computed, and that replies are those without a cache."""

from __future__ import annotations

import functools
import gc
import random
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import mlx.core as mx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from loops import LoopUnderTest
from tiny_drafters import tiny_drafter
from tiny_models import tiny

from engine.drafters.copy import CopyDrafter
from engine.drafters.dflash_drafter import DFlashDrafter
from engine.drafters.portfolio import Portfolio
from engine.messages import Finished, GenerateRequest, Priority, Sampling
from engine.prefix_cache.messages import Segment
from engine.targets.target import Target, bind

LONG = tuple(7 * n % 251 for n in range(400))
SAMPLED = Sampling(temperature=0.8, top_p=0.95)


class CountedTarget(Target):
    """Counts its forwards and their rows."""

    rows = forwards = 0

    def forward(self, tokens, caches):
        self.rows += len(tokens)
        self.forwards += 1
        return super().forward(tokens, caches)

    def prefill(self, tokens, caches):
        self.rows += len(tokens)
        self.forwards += 1
        super().prefill(tokens, caches)


def counted(family: str) -> CountedTarget:
    model, config = tiny(family)
    return CountedTarget(model, str(config["model_type"]))


HYBRID = "qwen3_5"
KINDS = ["llama", HYBRID, "gemma4_text"]


@pytest.mark.parametrize("family", KINDS)
def test_a_prompt_asked_again_computes_nothing(family):
    target = counted(family)
    loop = LoopUnderTest(target)
    first = loop.reply(LONG[:50], max_tokens=1)
    target.rows = 0
    again = loop.reply(LONG[:50], max_tokens=1)
    assert again.tokens == first.tokens
    assert target.rows == 0
    assert (again.cached_tokens, again.cache.memory, again.cache.kind) == (50, 50, "turn")


@pytest.mark.parametrize("family", KINDS)
def test_a_warm_request_computes_the_prompt_and_no_token(family):
    target = counted(family)
    loop = LoopUnderTest(target)
    ending = loop.reply(LONG[:90], warm=True, priority=Priority.IDLE)
    assert (ending.finish_reason, ending.tokens) == ("warmed", ())
    assert target.rows == 89
    typed = (*LONG[:90], 5, 6)
    reply = loop.reply(typed, max_tokens=4, priority=Priority.INTERACTIVE)
    assert reply.cached_tokens == 89
    assert reply.cache.kind == "keystroke"
    assert (
        reply.tokens
        == LoopUnderTest(target, prefix_cache_bytes=0).reply(typed, max_tokens=4).tokens
    )


@pytest.mark.parametrize(
    ("behind", "boundaries", "forwards"),
    [
        # The last message ends four tokens before the reply: those and the choice are one forward.
        (60, (100, 156), 2),
        # The reply's opening is longer than a round.
        (60, (100, 140), 3),
        # The next turn begins with all of it, so nothing is kept in between.
        (60, (100, 120, 160), 2),
        (5, (100, 105), 1),
    ],
)
@pytest.mark.parametrize("family", KINDS[1:])
def test_a_turn_takes_as_few_forwards_as_can_be(family, behind, boundaries, forwards):
    target = counted(family)
    loop = LoopUnderTest(target, chunk=256)
    loop.reply(LONG[:100], boundaries=(100,), max_tokens=1)
    prompt, target.forwards = LONG[: 100 + behind], 0
    reply = loop.reply(prompt, boundaries=boundaries, max_tokens=1)
    assert (target.forwards, reply.cached_tokens) == (forwards, 100)
    again = (*prompt[: boundaries[-1]], 250, 249)
    for branch in (prompt, again):
        ending = loop.reply(branch, max_tokens=6)
        assert ending.cached_tokens >= boundaries[-1]
        fresh = LoopUnderTest(target, prefix_cache_bytes=0)
        assert ending.tokens == fresh.reply(branch, max_tokens=6).tokens


def test_what_is_put_off_is_there_for_the_next_and_for_nobody_else():
    """Copies wait for the first token; another request, and a cancel, do not."""
    target = counted(HYBRID)
    loop = LoopUnderTest(target, chunk=256)
    ask = {"boundaries": (180,), "max_tokens": 4}
    loop.open(GenerateRequest(id="a", prompt=LONG[:200], **ask))
    loop.turn()
    assert loop.reuse.status().nodes == 0
    keystroke = {**ask, "priority": Priority.INTERACTIVE}
    loop.open(GenerateRequest(id="b", prompt=(*LONG[:180], 9), **keystroke))
    loop.until_idle()
    assert loop.ending("b").cached_tokens == 180
    before = loop.reuse.status().nodes
    loop.open(GenerateRequest(id="c", prompt=LONG[200:400], **ask))
    loop.turn()
    assert loop.reuse.status().nodes == before
    loop.cancel("c")
    assert loop.reply((*LONG[200:380], 9), **ask).cached_tokens == 180
    loop.reuse.cache.check_integrity()


def test_a_warm_request_lets_a_keystroke_through_at_once():
    loop = LoopUnderTest(bind(*tiny(HYBRID)), chunk=16)
    loop.open(GenerateRequest(id="warm", prompt=LONG, warm=True, priority=Priority.IDLE))
    loop.turn()
    loop.open(GenerateRequest(id="key", prompt=(1, 2), max_tokens=2, priority=Priority.INTERACTIVE))
    loop.turn()
    loop.turn()
    loop.turn()
    assert any(event.id == "key" for event in loop.events if hasattr(event, "finish_reason"))
    loop.until_idle()
    assert loop.ending("warm").finish_reason == "warmed"


@pytest.mark.parametrize("family", KINDS)
def test_requests_that_arrive_together_compute_their_prefix_once(family):
    target = counted(family)
    loop = LoopUnderTest(target, chunk=64)
    prompts = {name: (*LONG[:300], n, n, n) for n, name in enumerate("abc")}
    for name, prompt in prompts.items():
        loop.open(GenerateRequest(id=name, prompt=prompt, max_tokens=1))
    loop.until_idle()
    assert target.rows <= 303 + 2 * 5
    fresh = LoopUnderTest(target, prefix_cache_bytes=0)
    for name, prompt in prompts.items():
        assert loop.ending(name).tokens == fresh.reply(prompt, max_tokens=1).tokens
    assert loop.reuse.status().shared_tokens >= 400
    loop.reuse.cache.check_integrity()


def test_who_waited_for_a_request_that_is_cancelled_goes_on():
    target = counted(HYBRID)
    loop = LoopUnderTest(target, chunk=64)
    loop.open(GenerateRequest(id="a", prompt=(*LONG[:300], 1), max_tokens=1))
    loop.open(GenerateRequest(id="b", prompt=(*LONG[:300], 2), max_tokens=1))
    for _ in range(3):
        loop.turn()
    loop.cancel("a")
    loop.until_idle()
    assert loop.ending("b").finish_reason == "length"
    assert target.rows <= 302
    loop.reuse.cache.check_integrity()


@pytest.mark.parametrize("family", KINDS)
def test_a_change_inside_a_long_prompt_costs_its_tail(family):
    target = counted(family)
    loop = LoopUnderTest(target, chunk=32)
    loop.reply(LONG, max_tokens=1)
    changed = (*LONG[:300], 250, *LONG[301:])
    reply = loop.reply(changed, max_tokens=1)
    assert 150 < reply.cached_tokens <= 300
    assert (
        reply.tokens
        == LoopUnderTest(target, prefix_cache_bytes=0).reply(changed, max_tokens=1).tokens
    )


@pytest.mark.parametrize("family", KINDS)
def test_a_changed_file_costs_from_its_segment_on(family):
    loop = LoopUnderTest(bind(*tiny(family)), chunk=64)
    ends = (80, 150, 230)
    segments = tuple(Segment(end=end, path=f"{end}.py", content=b"1") for end in ends)
    fields = {"segments": segments, "max_tokens": 2, "priority": Priority.INTERACTIVE}
    loop.reply(LONG[:260], **fields)
    changed = (*LONG[:160], 99, *LONG[161:260])
    reply = loop.reply(changed, **fields)
    assert reply.cached_tokens in (150, 160)
    assert reply.cache.kind == "file"
    paths = {node.path for node in loop.reuse.cache.memory.tree}
    if family == HYBRID:
        assert {"80.py", "150.py", "230.py"} <= paths


def session_turn(turn: int) -> tuple[int, ...]:
    """A session's prompt at its `turn`, each 40 tokens longer than the one before."""
    return tuple(11 * n % 250 for n in range(200 + 40 * turn))


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        pytest.param(HYBRID, marks=pytest.mark.slow),
        pytest.param("gemma4_text", marks=pytest.mark.slow),
    ],
)
def test_titles_and_a_second_agent_do_not_evict_the_session(family):
    """From the third turn on there are titles, a summary and another agent's first looks between
    two turns, under a budget that the session alone takes two thirds of."""
    alone = LoopUnderTest(bind(*tiny(family)))
    for turn in range(6):
        alone.reply(session_turn(turn), boundaries=(100, 195 + 40 * turn), max_tokens=2)
    budget = int(1.5 * alone.reuse.status().memory_bytes)
    loop = LoopUnderTest(bind(*tiny(family)), prefix_cache_bytes=budget)
    for turn in range(6):
        prompt = session_turn(turn)
        reply = loop.reply(prompt, boundaries=(100, len(prompt) - 5), max_tokens=2)
        if turn:
            # The new message, and one segment's edge.
            assert reply.prompt_tokens - reply.cached_tokens <= 40 + 40
        for n in range(3 if turn > 1 else 0):
            other = (*range(240, 245), turn, n, *LONG[: 80 + 60 * n])
            loop.reply(other, boundaries=(70,), max_tokens=2)
        loop.reply((*prompt[:-5], 249, 248), max_tokens=2)
    assert loop.reuse.status().evictions
    loop.reuse.cache.check_integrity()


def test_a_cache_gone_cold_comes_back_from_disk(tmp_path):
    target = counted(HYBRID)
    loop = LoopUnderTest(target, cache_dir=tmp_path)
    opened(loop)
    first = loop.reply(LONG[:200], boundaries=(100,), max_tokens=4)
    loop.reuse.close()
    again = LoopUnderTest(target, cache_dir=tmp_path)
    opened(again)
    target.rows = 0
    reply = again.reply((*LONG[:200], *first.tokens[:-1], 9), max_tokens=4)
    assert reply.cached_tokens == 203
    assert (reply.cache.disk, reply.cache.kind) == (203, "restart")
    assert target.rows <= 1 + 3 * 8
    fresh = LoopUnderTest(target, prefix_cache_bytes=0)
    assert reply.tokens == fresh.reply((*LONG[:200], *first.tokens[:-1], 9), max_tokens=4).tokens
    again.reuse.close()


def test_a_turn_waits_for_the_disk_no_longer_than_it_takes(tmp_path, monkeypatch):
    first = LoopUnderTest(counted(HYBRID), cache_dir=tmp_path)
    opened(first)
    first.reply(LONG[:200], max_tokens=4)
    first.reuse.close()
    again = LoopUnderTest(counted(HYBRID), cache_dir=tmp_path)
    opened(again)
    # Whoever would sleep for that long never comes to an end.
    monkeypatch.setattr("engine.prefix_cache.reuse.WAIT_SECONDS", 10_000)
    again.open(GenerateRequest(id="a", prompt=(*LONG[:199], 9), max_tokens=2))
    again.turn()
    assert again.reuse.cache.memory.tree.nbytes
    again.until_idle()
    assert again.ending("a").cache.disk >= 128
    again.reuse.close()


def test_others_have_turns_while_a_keystrokes_prefix_comes_from_disk(tmp_path, monkeypatch):
    first = LoopUnderTest(counted(HYBRID), cache_dir=tmp_path)
    opened(first)
    first.reply(LONG[:200], max_tokens=4)
    first.reuse.close()
    loop = LoopUnderTest(counted(HYBRID), cache_dir=tmp_path)
    opened(loop)
    disk = loop.reuse.cache.disk
    assert disk is not None
    read, asked, held = disk.load, [], Future()

    def slow(found):
        asked.append(read(found))
        return held

    monkeypatch.setattr(disk, "load", slow)
    monkeypatch.setattr("engine.prefix_cache.prefix_cache.LEAST_FETCH_SECONDS", 10_000)
    monkeypatch.setattr("engine.prefix_cache.prefix_cache.FETCH_SECONDS", 10_000)
    monkeypatch.setattr("engine.prefix_cache.reuse.WAIT_SECONDS", 0)
    turns: list[str] = []
    loop.turned = turns.append
    idle, agent, key = Priority.IDLE, Priority.AGENT, Priority.INTERACTIVE
    for name, prompt, priority, tokens in (
        ("idle", (5, 6, 7), idle, 4),
        ("agent", tuple(range(40)), agent, 200),
        ("key", (*LONG[:199], 9), key, 2),
    ):
        loop.open(
            GenerateRequest(
                id=name, prompt=prompt, priority=priority, max_tokens=tokens, ignore_eos=True
            )
        )
    for _ in range(8):
        loop.turn()
    assert asked
    assert turns == ["key"] + ["agent"] * 7
    assert loop.text("agent")
    held.set_result(asked[0].result(60))
    while "key" not in {e.id for e in loop.events if isinstance(e, Finished)}:
        loop.turn()
    assert set(turns[8:]) == {"key"}
    assert loop.ending("key").cache.disk >= 128
    loop.cancel("agent")
    loop.cancel("idle")
    loop.reuse.close()


def opened(loop: LoopUnderTest) -> None:
    disk = loop.reuse.cache.disk
    assert disk is not None
    deadline = time.monotonic() + 30
    while not disk.opened:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_the_bytes_counted_are_the_bytes_held(dtype, request):
    # MLX hands out buffers again for arrays of half their size, which shows in a tiny model.
    request.addfinalizer(functools.partial(mx.set_cache_limit, mx.set_cache_limit(0)))
    mx.clear_cache()
    loop = LoopUnderTest(bind(*tiny(HYBRID, dtype)), context=4096)
    freed, counted = [], 0
    # Other engines of the process may allocate meanwhile, seldom in the moment that clearing takes.
    for _ in range(3):
        for n in range(6):
            prompt = (*LONG, n, *range(n, n + 60))
            loop.reply(prompt, boundaries=(200, 401), max_tokens=3)
        gc.collect()
        counted = loop.reuse.status().memory_bytes
        before = mx.get_active_memory()
        loop.reuse.cache.memory.clear()
        freed.append(before - mx.get_active_memory())
    held = sorted(freed)[1]
    assert held < 1.25 * counted
    assert counted < 1.6 * held


def random_session(loop: LoopUnderTest, fresh: LoopUnderTest, seed: int, steps: int) -> int:
    """Branch, cancel and evict at random; how many replies differed from those without a cache."""
    draw, stems, differences = random.Random(seed), [LONG[:40]], 0
    for step in range(steps):
        stem = draw.choice(stems[-12:])
        prompt = (
            *stem[: draw.randrange(1, len(stem) + 1)],
            *draw.choices(range(250), k=draw.randrange(1, 12)),
        )
        prompt = prompt[-200:]
        fields = {
            "max_tokens": draw.randrange(1, 10),
            "ignore_eos": True,
            "seed": step,
            "sampling": draw.choice([Sampling(), SAMPLED]),
            "draft": draw.random() < 0.7,
            "boundaries": tuple(
                sorted(draw.sample(range(1, len(prompt) + 1), min(2, len(prompt))))
            ),
            "warm": draw.random() < 0.1,
            "priority": draw.choice(list(Priority)),
        }
        if draw.random() < 0.2:
            loop.open(GenerateRequest(id=f"c{step}", prompt=prompt, **fields))
            for _ in range(draw.randrange(4)):
                loop.turn()
            loop.cancel(f"c{step}")
        reply = loop.reply(prompt, id=f"r{step}", **fields)
        if not fields["warm"]:
            differences += reply.tokens != fresh.reply(prompt, id=f"f{step}", **fields).tokens
        stems.append((*prompt, *reply.tokens))
        if draw.random() < 0.03:
            loop.reuse.cache.memory.clear()
        loop.reuse.cache.check_integrity()
        loop.events.clear()
        fresh.events.clear()
    return differences


def loops(family: str, budget: int, folder: Path) -> tuple[LoopUnderTest, LoopUnderTest]:
    """With a cache of so many bytes, and without one; both draft with a tiny DFlash."""
    model, config = tiny(family)
    target = bind(model, config)
    drafter = tiny_drafter("v1", len(model.layers))
    target.tap(drafter.config.target_layer_ids)

    def new_portfolio(request: GenerateRequest, seed: int) -> Portfolio:
        context = DFlashDrafter(
            drafter, embed=target.embed, head=target.head, sampling=request.sampling, seed=seed
        )
        return Portfolio(CopyDrafter(), context)

    cached = LoopUnderTest(target, prefix_cache_bytes=budget, cache_dir=folder, audit=False)
    fresh = LoopUnderTest(target, prefix_cache_bytes=0, audit=False)
    cached.new_portfolio = fresh.new_portfolio = new_portfolio
    return cached, fresh


@pytest.mark.parametrize("family", KINDS)
def test_replies_are_those_without_a_cache(family, tmp_path):
    cached, fresh = loops(family, 300_000, tmp_path)
    assert random_session(cached, fresh, seed=1, steps=12) == 0
    assert cached.totals.cached_tokens > 100
    cached.reuse.close()


@pytest.mark.slow
@pytest.mark.parametrize("family", [*KINDS, "nemotron_h", "muse_glimmer"])
def test_500_branchings_cancels_and_evictions(family, tmp_path):
    cached, fresh = loops(family, 300_000, tmp_path)
    assert random_session(cached, fresh, seed=2, steps=500) == 0
    assert cached.reuse.status().evictions
    cached.reuse.close()
