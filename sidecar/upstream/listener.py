"""What the events of an OpenAI-compatible server mean. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from engine import Piece, Reasoned, Said, ToolCall, Unread
from sidecar.upstream.forced_call import read_call


class Ending(Struct, frozen=True, kw_only=True):
    """What an upstream said of a reply; counts are None where it said none."""

    reason: str = "stop"
    stop_sequence: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int = 0
    accepted: int = 0
    rejected: int = 0


class _Call(Struct, frozen=True):
    id: str = ""
    name: str = ""
    arguments: str = ""

    @property
    def whole(self) -> bool:
        return bool(self.name) and _is_object(self.arguments or "{}")

    def pieces(self, tools: frozenset[str]) -> list[Piece]:
        """One that is cut short, no JSON, or of no tool that was declared is text."""
        if self.whole and self.name in tools:
            return [ToolCall(name=self.name, arguments=self.arguments or "{}")]
        known = self.name in tools
        wrong = "it cannot be read" if known else f"no tool is named {self.name[:100]!r}"
        return [Said(f"{self.name}({self.arguments})"), Unread(wrong)]


class Listener:
    """Takes the events of one reply. tools: the names of those that may be called. must_call: one
    has to be, so what comes before is held back. by_schema: what is said is that call
    (`sidecar.upstream.forced_call`).

    called: whether it made a call.
    """

    def __init__(
        self,
        tools: frozenset[str] = frozenset(),
        *,
        must_call: bool = False,
        by_schema: bool = False,
    ) -> None:
        self._tools = tools
        self.ended = False
        self.ending = Ending()
        self.called = False
        self._begun = False
        self._held: list[Piece] = []
        self._must_call = must_call
        self._by_schema = by_schema
        self._calls: list[tuple[int, _Call]] = []

    def hear(self, event: Any) -> list[Piece]:
        """What it adds to the reply. Raises TypeError, ValueError or KeyError for what is none."""
        if not isinstance(event, dict):
            raise TypeError("an event is no object")
        self._count(event.get("usage") or {})
        if "content" in event:
            return self._infill(event)
        choices = event.get("choices") or []
        pieces = self._choice(choices[0]) if choices else []
        return self._hold(pieces) if self._must_call else pieces

    @property
    def missing(self) -> bool:
        """Whether it ended without the call that it had to make, and was not cut short in it."""
        begun = self._begun or (self._by_schema and self._said.lstrip().startswith("{"))
        cut = begun and self.ending.reason == "length"
        return self._must_call and self.ended and not self.called and not cut

    @property
    def _said(self) -> str:
        return "".join(piece.text for piece in self._held if isinstance(piece, Said))

    def rest(self) -> list[Piece]:
        """What was held back."""
        held, self._held = self._held, []
        return held

    def _hold(self, pieces: list[Piece]) -> list[Piece]:
        """Reasoning, too: a reply that was begun cannot be asked for in another way."""
        if self.called:
            return pieces
        self._held += pieces
        self.called = any(isinstance(piece, ToolCall) for piece in pieces)
        if not self.called and self.ended and self._by_schema:
            self._call_by_schema()
        return self.rest() if self.called else []

    def _call_by_schema(self) -> None:
        call = read_call(self._said)
        if call is not None and call.name in self._tools:
            self.called = True
            self._held = [*(one for one in self._held if isinstance(one, Reasoned)), call]

    def _choice(self, choice: dict[str, Any]) -> list[Piece]:
        delta = choice.get("delta") or {}
        pieces: list[Piece] = []
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            pieces.append(Reasoned(str(thought)))
        if text := delta.get("content") or choice.get("text"):
            pieces.append(Said(str(text)))
        for part in delta.get("tool_calls") or ():
            pieces += self._call(part)
        # Some say nothing as null, some as "".
        if reason := choice.get("finish_reason"):
            pieces += self._take(self._calls)
            self._end(reason, choice.get("stop_reason"))
        return pieces

    def _infill(self, event: dict[str, Any]) -> list[Piece]:
        if event.get("stop") or event.get("stop_type"):
            usage = {"prompt_tokens": event.get("tokens_evaluated")}
            self._count(usage | {"completion_tokens": event.get("tokens_predicted")})
            self._end("length" if event.get("stop_type") == "limit" else "stop", None)
        text = str(event["content"])
        return [Said(text)] if text else []

    def _call(self, part: dict[str, Any]) -> list[Piece]:
        """A call is there when the next one begins, and every one before it is."""
        self._begun = True
        index, function = int(part.get("index") or 0), part.get("function") or {}
        id, name = str(part.get("id") or ""), str(function.get("name") or "")
        more = function.get("arguments") or ""
        if not isinstance(more, str):
            more = msgspec.json.encode(more).decode()
        places = [place for place, (of, _) in enumerate(self._calls) if of == index]
        if places and not _begins_another(self._calls[places[-1]][1], id, name):
            _, call = self._calls[places[-1]]
            call = _Call(call.id or id, call.name or name, call.arguments + more)
            self._calls[places[-1]] = (index, call)
            return []
        done = self._calls if all(call.whole for _, call in self._calls) else []
        pieces = self._take(done)
        self._calls.append((index, _Call(id, name, more)))
        return pieces

    def _take(self, calls: list[tuple[int, _Call]]) -> list[Piece]:
        pieces = [piece for _, call in calls for piece in call.pieces(self._tools)]
        calls.clear()
        return pieces

    def _end(self, reason: Any, stop: Any) -> None:
        self.ended = True
        self.ending = msgspec.structs.replace(
            self.ending,
            reason="length" if reason == "length" else "stop",
            stop_sequence=stop if isinstance(stop, str) else None,
        )

    def _count(self, usage: dict[str, Any]) -> None:
        prompt, completion = (
            usage.get(f"{name}_tokens_details") or {} for name in ("prompt", "completion")
        )
        counts = {
            "prompt_tokens": usage.get("prompt_tokens"),
            "completion_tokens": usage.get("completion_tokens"),
            "cached_tokens": prompt.get("cached_tokens"),
            "accepted": completion.get("accepted_prediction_tokens"),
            "rejected": completion.get("rejected_prediction_tokens"),
        }
        known = {name: int(count) for name, count in counts.items() if count is not None}
        self.ending = msgspec.structs.replace(self.ending, **known)


def _begins_another(call: _Call, id: str, name: str) -> bool:
    """Whether a part of the same index is of another call than `call`: some servers count none, and
    give every call the first one's index. Some repeat a call's id and name in each of its parts,
    some make up a new id for each."""
    if not name or not call.whole:
        return False
    if id and call.id:
        return id != call.id
    return bool(call.arguments)


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
