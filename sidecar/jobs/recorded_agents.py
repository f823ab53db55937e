"""Requests that were recorded from real agents, as chats that can be asked again.

A file holds a JSON object a line, each with the request's ``path`` and ``body`` as the agent sent
it: OpenAI chat completions or responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from engine import RequestError

AGENTS = ("opencode", "pi", "codex", "qwen-code")


class Recorded(Struct, frozen=True, kw_only=True):
    """One request. turn: how many of the session came before it; a session goes on as long as each
    request begins with the messages of one before it."""

    agent: str
    session: int
    turn: int
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]


def recorded(folder: Path, agents: Iterable[str] = AGENTS) -> list[Recorded]:
    """The requests in ``<agent>.jsonl``, in order. Raises RequestError naming the file."""
    found: list[Recorded] = []
    for agent in agents:
        file = folder / f"{agent}.jsonl"
        try:
            bodies = [msgspec.json.decode(line)["body"] for line in file.read_bytes().splitlines()]
        except OSError as error:
            raise RequestError(f"--traces {file}: {error.strerror}", field="traces") from error
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise RequestError(f"--traces {file}: no recorded requests", field="traces") from error
        found += _sessions(agent, bodies)
    return found


def _sessions(agent: str, bodies: Sequence[Mapping[str, Any]]) -> list[Recorded]:
    requests: list[Recorded] = []
    sessions: list[tuple[dict[str, Any], ...]] = []
    turns: list[int] = []
    for body in bodies:
        messages, tools = tuple(_messages(body)), tuple(map(_tool, body.get("tools") or ()))
        begun = (n for n, before in enumerate(sessions) if messages[: len(before)] == before)
        session = next(begun, len(sessions))
        if session == len(sessions):
            sessions.append(())
            turns.append(0)
        requests.append(
            Recorded(
                agent=agent, session=session, turn=turns[session], messages=messages, tools=tools
            )
        )
        sessions[session], turns[session] = messages, turns[session] + 1
    return requests


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A request's messages as chat completions have them."""
    if "messages" in body:
        return [
            dict(message, content=_text(message.get("content"))) for message in body["messages"]
        ]
    messages: list[dict[str, Any]] = []
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            output = _text(item["output"])
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
        elif kind == "message":
            role = "system" if item["role"] == "developer" else item["role"]
            messages.append({"role": role, "content": _text(item["content"])})
    return messages


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as chat completions have it; the responses API has no ``function`` around it."""
    if "function" in tool:
        return dict(tool)
    names = ("name", "description", "parameters")
    function = {name: tool[name] for name in names if name in tool}
    return {"type": "function", "function": {"name": tool.get("type", "tool"), **function}}
