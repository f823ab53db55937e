"""Recorded requests as chats, and the figures made of their replay."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "race"))

from fake_servers import fake_server

from engine import EngineClient, EngineError, RequestError
from engine.testing import FakeEngine
from sidecar.jobs.agent_replay import (
    Asked,
    Turn,
    elsewhere_figures,
    fitting,
    last_turns,
    replay,
    replay_both,
    replay_elsewhere,
    turn_figures,
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


def request(turn: int, agent: str = "opencode", text: str = "x") -> Recorded:
    messages = ({"role": "user", "content": text},)
    return Recorded(agent=agent, session=0, turn=turn, messages=messages, tools=())


def asked(prompt: int, cached: int, seconds: float, token: int = 1) -> Asked:
    return Asked(prompt=prompt, cached=cached, seconds=seconds, tokens=(token,))


WARM = [asked(100, 0, 1.0), asked(200, 190, 0.1), asked(300, 290, 0.2)]
COLD = [asked(100, 0, 1.0), asked(200, 0, 2.0), asked(300, 0, 2.0, token=2)]


def test_figures() -> None:
    restarted = asked(300, 290, 0.4, token=2)
    turns = [
        Turn(
            agent="opencode",
            session=0,
            turn=n,
            new=8,
            warm=warm,
            cold=cold,
            restarted=restarted if n == 2 else None,
        )
        for n, (warm, cold) in enumerate(zip(WARM, COLD, strict=True))
    ]
    assert [one.same for one in turns] == [True, True, False]
    assert turn_figures(turns) == {
        "replayed": 3,
        "replay_differences": 1,
        "replay_max_extra_tokens": 2,
        "opencode_recomputed_share": 0.04,
        "opencode_ttft_turn2_over_cold": 0.075,
        "restart_recomputed_share": 0.03333,
        "restart_ttft_over_cold": 0.2,
    }


def test_figures_of_others_have_the_longest_computed_prompt_for_cold() -> None:
    requests = [request(0), request(1), request(2)]
    again = asked(300, 0, 3.0)
    assert elsewhere_figures("a.b", requests, WARM, again) == {
        "a_b_opencode_recomputed_share": 0.04,
        "a_b_opencode_ttft_turn2_over_cold": 0.0583,
        "a_b_restart_ttft_over_cold": 1.0,
    }
    assert elsewhere_figures("a.b", [], []) == {}
    assert elsewhere_figures("a.b", [request(0)], WARM[:1]) == {}


async def test_requests_that_fit_are_asked_in_order_of_both() -> None:
    client = EngineClient(FakeEngine("four", context=2000, facts={"cached_tokens": 3}))
    other = EngineClient(FakeEngine("five"))
    for one in (client, other):
        one.start()
        await one.ready()
    requests = await fitting(client, [request(0, text="x" * 3000), request(0)])
    assert requests == [request(0)]
    (answer,) = await replay(client, requests, lambda: None)
    assert (answer.cached, bytes(answer.tokens[:4])) == (3, b"four")
    later = request(1, text="xyz")
    turn, again = await replay_both(client, other, [*requests, later], lambda: None)
    assert (turn.warm.cached, turn.cold.cached, turn.same) == (3, 0, False)
    # Two letters, and the marker of the reply's turn behind them.
    assert (turn.new, again.new) == (turn.cold.prompt, 3)
    assert turn.warm.seconds > 0
    for one in (client, other):
        await one.stop()


def test_another_server_is_asked_and_may_say_nothing() -> None:
    steps: list[int] = []
    with fake_server("good") as server:
        (answer,) = replay_elsewhere(server.port, "m", [request(0)], 20, lambda: steps.append(1))
    assert (answer.prompt, answer.cached, steps) == (70, 0, [1])
    with fake_server("calls") as server:
        (answer,) = replay_elsewhere(server.port, "m", [request(0)], 20, lambda: None)
    assert answer.seconds > 0
    with fake_server("refuses") as server, pytest.raises(EngineError, match="no such model"):
        replay_elsewhere(server.port, "m", [request(0)], 20, lambda: None)
