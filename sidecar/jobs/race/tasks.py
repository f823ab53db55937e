"""What every system is asked. Chat messages, because that is what all servers take, and what a
model's template makes of them is the same for all."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from engine import EngineClient
from sidecar.jobs.coding_prompts import QUEUE, SETTINGS

NEW_CODE, REWRITE, TOOL_CALL, CHAT = "new code", "rewrite", "tool call", "chat"
REGIMES = (NEW_CODE, REWRITE, TOOL_CALL, CHAT)
HELD_OUT = "held-out code"

Messages = tuple[dict[str, Any], ...]


class Task(Struct, frozen=True, kw_only=True):
    """messages: for servers. prompt: the same as token ids of the loaded model. prediction: see
    `GenerateRequest`, for our own. length: of the reply, in those of an ordinary one."""

    name: str
    regime: str
    length: int = 1
    messages: Messages = ()
    prompt: tuple[int, ...] = ()
    prediction: tuple[int, ...] = ()


def _user(text: str) -> Messages:
    return ({"role": "user", "content": text},)


def _fenced(code: str) -> str:
    return f"```python\n{code}```\n"


# SmolLM2's template knows no tools, so they are in the text.
_TOOLS = """\
You can call these tools:
{"name": "read_file", "parameters": {"path": "string"}}
{"name": "search", "parameters": {"pattern": "string"}}
{"name": "run", "parameters": {"command": "string"}}
Answer with one JSON object for each call, such as \
{"name": "run", "arguments": {"command": "git status"}}.

"""

_ASKED: dict[str, tuple[str, Messages]] = {
    "median": (
        NEW_CODE,
        _user("Write a Python function `row_sum` that returns the median of a list."),
    ),
    "rename_jobs": (
        REWRITE,
        _user(_fenced(QUEUE) + "Rename `jobs` to `entries` in this code."),
    ),
    "find_uses": (
        TOOL_CALL,
        _user(_TOOLS + "Find uses of `payload`, then open src/payload.py, then run the tests."),
    ),
    "advice": (
        CHAT,
        _user("My Python program is slow. How do I find out why `load_settings` takes long?"),
    ),
}


async def tasks(client: EngineClient, regimes: tuple[str, ...] = REGIMES) -> list[Task]:
    """One of each regime. client: renders the prompts."""
    return [
        Task(
            name=name,
            regime=regime,
            # A file is rewritten to its end.
            length=2 if regime == REWRITE else 1,
            messages=messages,
            prompt=(await client.chat(list(messages))).tokens,
        )
        for name, (regime, messages) in _ASKED.items()
        if regime in regimes
    ]


def first_turn(number: int) -> Messages:
    """A file and a question about it; no two numbers share a prefix beyond the template's."""
    asked = "What does the second function do? Answer in one sentence."
    return _user(f"# {number}: settings.py\n{_fenced(SETTINGS)}{asked}")


def second_turn(number: int, reply: str) -> Messages:
    """What an agent sends next: all that was before, and a little more."""
    follows = _user("And which exception can it raise?")
    return (*first_turn(number), {"role": "assistant", "content": reply}, *follows)
