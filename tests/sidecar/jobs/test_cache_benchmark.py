"""Recorded requests as chats, and the figures made of their replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine import CacheOptions, EngineClient, EngineOptions, RequestError, engine_client
from engine.testing import FakeEngine
from sidecar.jobs.cache_benchmark import (
    Asked,
    branchings,
    elsewhere_figures,
    fitting,
    keystrokes,
    last_turns,
    replay,
    turn_figures,
    turns,
)
from sidecar.jobs.recorded_agents import Recorded, recorded

USER = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
TOOL = {"type": "function", "name": "ls", "parameters": {}}


def traces(folder: Path, **agents: list[dict[str, Any]]) -> Path:
    for agent, bodies in agents.items():
        lines = [json.dumps({"path": "/v1/x", "body": body}) for body in bodies]
        (folder / f"{agent}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_chats_and_responses_become_sessions_of_messages(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "1", "name": "ls", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "1", "output": "a.py"}
    asks = {"input": [{"role": "developer", "content": "be good"}, USER], "tools": [TOOL]}
    folder = traces(
        tmp_path,
        chat=[
            {"messages": [{"role": "system", "content": "title"}, USER]},
            {"messages": [{"role": "system", "content": "agent"}, USER]},
            {"messages": [{"role": "system", "content": "agent"}, USER, USER]},
        ],
        responses=[asks, {**asks, "input": [*asks["input"], call, output]}],
    )
    chat = recorded(folder, ["chat"])
    assert [(one.session, one.turn) for one in chat] == [(0, 0), (1, 0), (1, 1)]
    assert chat[2].messages[2] == {"role": "user", "content": "hi"}
    first, second = recorded(folder, ["responses"])
    assert (first.turn, second.turn) == (0, 1)
    assert first.messages[0] == {"role": "system", "content": "be good"}
    assert first.tools[0]["function"]["name"] == "ls"
    assert second.messages[2]["tool_calls"][0]["function"]["name"] == "ls"
    assert second.messages[3] == {"role": "tool", "tool_call_id": "1", "content": "a.py"}
    assert last_turns([*chat, first, second]) == [2, 4]


def test_traces_that_are_not(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"pi\.jsonl: No such file"):
        recorded(tmp_path, ["pi"])
    (tmp_path / "pi.jsonl").write_text("{}\n")
    with pytest.raises(RequestError, match="no recorded requests"):
        recorded(tmp_path, ["pi"])


def request(turn: int, agent: str = "opencode") -> Recorded:
    return Recorded(agent=agent, session=0, turn=turn, messages=(), tools=())


def asked(prompt: int, cached: int, seconds: float, token: int = 1) -> Asked:
    return Asked(prompt=prompt, cached=cached, seconds=seconds, tokens=(token,))


def test_figures() -> None:
    requests = [request(0), request(1), request(2)]
    warm = [asked(100, 0, 1.0), asked(200, 190, 0.1), asked(300, 290, 0.2)]
    cold = [asked(100, 0, 1.0), asked(200, 0, 2.0), asked(300, 0, 2.0, token=2)]
    rows = turns(requests, warm, cold, {2: asked(300, 290, 0.4, token=2)})
    assert turn_figures(rows) == {
        "replayed": 3,
        "replay_differences": 1,
        "opencode_recomputed_share": 0.04,
        "opencode_ttft_turn2_over_cold": 0.075,
        "restart_ttft_over_cold": 0.2,
    }
    assert elsewhere_figures("peer", requests, warm) == {
        "peer_recomputed_share": 0.04,
        "peer_ttft_turn2_over_cold": 0.0583,
    }


async def test_requests_are_asked_in_order_and_branchings_compared() -> None:
    client = EngineClient(FakeEngine("four", context=2000, facts={"cached_tokens": 3}))
    other = EngineClient(FakeEngine(lambda request: "four" if request.seed != 3 else "xxxx"))
    for one in (client, other):
        one.start()
        await one.ready()
    long = Recorded(
        agent="pi", session=0, turn=0, messages=({"role": "user", "content": "x" * 3000},), tools=()
    )
    short = Recorded(
        agent="pi", session=0, turn=0, messages=({"role": "user", "content": "x"},), tools=()
    )
    requests = await fitting(client, [long, short])
    assert requests == [short]
    (answer,) = await replay(client, requests, lambda: None)
    assert answer.cached == 3
    assert bytes(answer.tokens[:4]) == b"four"
    assert await branchings(client, other, 8, lambda: None) == 1
    for one in (client, other):
        await one.stop()


async def test_a_line_is_typed_key_by_key(builtin_engine: EngineClient) -> None:
    """Each key computes what was typed and a few tokens; another file costs from there on."""
    worst, edited = await keystrokes(builtin_engine, 4)
    assert worst <= 8
    assert edited <= 64


@pytest.mark.slow
async def test_500_branchings_of_the_built_in_pair(tmp_path: Path) -> None:
    options = EngineOptions(audit=False)
    small = CacheOptions(memory=24 << 20, dir=str(tmp_path), disk=64 << 20)
    cached = engine_client(options, small)
    plain = engine_client(options, CacheOptions(memory=0))
    for one in (cached, plain):
        one.start()
        await one.ready()
    assert await branchings(cached, plain, 500, lambda: None) == 0
    status = cached.status().cache
    assert status.evictions
    assert status.hits
    for one in (cached, plain):
        await one.stop()
