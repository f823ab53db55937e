"""What nobody has read yet: all of it, in order, at the price of its text."""

from __future__ import annotations

import gc
import random
import tracemalloc

from loops import scripted

from engine.backlog import BATCH, Backlog
from engine.messages import Chunk, Event, Finished, GenerateRequest, Prefilling, TokenLogprob

CODE = "def total(rows):\n    return sum(row.price * row.count for row in rows)  # 🎉\n"


def chunk(number: int, **more: object) -> Chunk:
    return Chunk(id="a", tokens=(number,), text=CODE[number % len(CODE)], **more)


def test_everything_comes_in_order_however_far_behind_the_reader_is():
    chance = random.Random(7)
    for eager in (0.1, 0.45, 0.5, 0.55, 0.9):
        backlog, put, got = Backlog(), list[Event](), list[Event]()
        for number in range(12 * BATCH):
            event: Event = chunk(number)
            if number % 7 == 0:
                event = Prefilling(id="a", done=number, total=5000, cached=3)
            elif number % 11 == 0:
                event = chunk(number, logprobs=(TokenLogprob(number, -0.25, ((3, -1e-9),)),))
            put.append(event)
            backlog.put(event)
            while backlog and chance.random() < eager:
                got.append(backlog.get())
        while backlog:
            got.append(backlog.get())
        assert got == put


def test_what_the_engine_really_says_comes_back():
    loop = scripted(CODE * 4)
    loop.open(GenerateRequest(id="a", prompt=tuple(b"x" * 90 + b"\0"), logprobs=2, draft=False))
    loop.until_idle()
    assert len(loop.events) > 4 * BATCH
    backlog = Backlog()
    for event in loop.events:
        backlog.put(event)
    got = [backlog.get() for _ in loop.events]
    assert got == loop.events
    assert isinstance(got[-1], Finished)
    assert not backlog


def test_a_reply_that_nobody_reads_costs_no_more_than_its_text():
    tokens = 20_000
    backlog = Backlog()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(tokens):
            backlog.put(chunk(number))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # The latest are whole events.
    assert held < 2 * BATCH * 400 + 20 * tokens
    assert sum(len(backlog.get().tokens) for _ in range(tokens)) == tokens
