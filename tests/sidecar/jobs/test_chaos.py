"""Clients that behave badly: what is counted, and a short run against a real engine."""

from __future__ import annotations

import pytest

from engine import Chunk, EngineOptions, Finished, GenerateRequest, Prefilling, Priority
from sidecar.cli.bench_chaos import run
from sidecar.jobs.chaos import Chaos, Ledger


def request(id: str, priority: Priority = Priority.AGENT) -> GenerateRequest:
    return GenerateRequest(id=id, prompt=(1,), priority=priority)


def finished(id: str, reason: str = "stop") -> Finished:
    return Finished(id=id, finish_reason=reason, tokens=(), token_hash="", seed=0, prompt_tokens=1)


def test_endings_are_counted_by_request() -> None:
    ledger = Ledger()
    for id in "abc":
        ledger.posted(request(id))
    for event in (finished("a"), finished("b"), finished("b", "cancelled")):
        ledger.emitted(event)
    assert ledger.requests == 3
    assert ledger.endings() == {"stop": 2, "cancelled": 1}
    assert ledger.not_ended_once() == 2


def test_a_keystrokes_wait_is_counted_in_turns_of_others() -> None:
    ledger = Ledger()
    for id, priority in (("agent", Priority.AGENT), ("key", Priority.INTERACTIVE)):
        ledger.posted(request(id, priority))
    ledger.emitted(Prefilling(id="agent", done=1, total=3, cached=0))
    # The turn with the first token has two events.
    ledger.emitted(Prefilling(id="agent", done=3, total=3, cached=0))
    ledger.emitted(Chunk(id="agent", tokens=(1,), text="a"))
    ledger.posted(request("other key", Priority.INTERACTIVE))
    ledger.emitted(Prefilling(id="other key", done=1, total=1, cached=0))
    assert ledger.max_wait == 0
    ledger.emitted(Chunk(id="key", tokens=(1,), text="a"))
    ledger.emitted(Chunk(id="agent", tokens=(1,), text="a"))
    assert ledger.max_wait == 2


def test_what_should_not_have_happened_is_said() -> None:
    fine = {
        "seconds": 600.0,
        "requests": 5,
        "endings": {},
        "not_ended_once": 0,
        "answers": {},
        "broken_streams": 0,
        "leaked_sequences": 0,
        "rss_growth_share": 0.0,
        "max_wait_rounds_interactive": 2,
    }
    assert Chaos(**fine).problems == []
    bad = {
        "not_ended_once": 1,
        "broken_streams": 1,
        "leaked_sequences": 1,
        "rss_growth_share": 0.2,
        "max_wait_rounds_interactive": 3,
    }
    for name, value in bad.items():
        assert len(Chaos(**fine | {name: value}).problems) == 1
    assert Chaos(**fine | {"seconds": 20.0, "rss_growth_share": 0.2}).problems == []


@pytest.mark.slow
def test_a_short_run_owes_nobody_anything() -> None:
    result = run(EngineOptions(), seconds=20)
    assert result.problems == []
    assert result.requests > 20
    assert {"cancelled", "length"} <= set(result.endings)
    assert {"left", "garbage", "stream"} <= set(result.answers)
