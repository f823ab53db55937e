"""A reply as the items of a `response`, and the events that they are streamed in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine import Reasoned, Said
from sidecar.http.response_input import Origin, sealed_reasoning
from sidecar.http.schema.logprobs import WrittenToken, logprobs_of
from sidecar.http.schema.responses_response import (
    OutputItem,
    OutputPart,
    ResponseEvent,
)
from sidecar.jobs.turn import Called, Part

_NOWHERE = Origin()


class ResponseItems:
    """id: of the response. origins: of its tools. sealed: reasoning is to be handed back. spelled:
    the bytes of every token id, where log-probabilities are asked for.

    `output` are the items that are complete; `message` is what they are in a conversation.
    """

    def __init__(
        self,
        id: str,
        origins: Mapping[str, Origin],
        sealed: bool,
        spelled: Sequence[bytes] = (),
    ) -> None:
        self._id = id
        self._origins = origins
        self._sealed = sealed
        self._spelled = spelled
        self._kind = ""
        self._text: list[str] = []
        self._logprobs: tuple[WrittenToken, ...] = ()
        self.output: list[OutputItem] = []
        self.message: dict[str, Any] = {"role": "assistant", "content": ""}

    def add(self, part: Part) -> list[ResponseEvent]:
        """The events that this part of the reply makes."""
        match part.content:
            case Reasoned():
                return self._write("reasoning", part.content.text)
            case Said():
                said = [(part.content.text, part.logprobs)]
                likely = logprobs_of(said, self._spelled).content if self._spelled else ()
                return self._write("message", part.content.text, likely)
            case Called():
                return [*self.close(), *self._call(part.content)]
        return []

    def finish(self, *, cut: bool) -> list[ResponseEvent]:
        """The reply is over, or was cut off: close what is open. There is an item at least."""
        status = "incomplete" if cut else "completed"
        events = self.close(status)
        if not self.output:
            events += [*self._open("message"), *self.close(status)]
        return events

    @property
    def _item_id(self) -> str:
        prefix = {"reasoning": "rs", "message": "msg"}.get(self._kind, "fc")
        name = f"{self._id} {len(self.output)}".encode()
        return f"{prefix}_{hashlib.blake2b(name, digest_size=16).hexdigest()}"

    def _event(self, type: str, **fields: Any) -> ResponseEvent:
        return ResponseEvent(
            type=f"response.{type}",
            output_index=len(self.output),
            **fields,
        )

    def _write(
        self, kind: str, text: str, logprobs: tuple[WrittenToken, ...] = ()
    ) -> list[ResponseEvent]:
        events = [] if self._kind == kind else [*self.close(), *self._open(kind)]
        self._text.append(text)
        self._logprobs += logprobs
        name = "reasoning_text" if kind == "reasoning" else "output_text"
        likely = {} if kind == "reasoning" else {"logprobs": logprobs}
        delta = self._event(
            f"{name}.delta", item_id=self._item_id, content_index=0, delta=text, **likely
        )
        return [*events, delta]

    def _open(self, kind: str) -> list[ResponseEvent]:
        self._kind, self._text, self._logprobs = kind, [], ()
        item = self._item("in_progress")
        part = self._part("")
        return [
            self._event("output_item.added", item=msgspec.structs.replace(item, content=())),
            self._event("content_part.added", item_id=item.id, content_index=0, part=part),
        ]

    def close(self, status: str = "completed") -> list[ResponseEvent]:
        """End the item that is being written, if one is."""
        if not self._kind:
            return []
        item, text = self._item(status), "".join(self._text)
        reasoning = self._kind == "reasoning"
        name = "reasoning_text" if reasoning else "output_text"
        logprobs = {} if reasoning else {"logprobs": self._logprobs}
        at = {"item_id": item.id, "content_index": 0}
        events = [
            self._event(f"{name}.done", text=text, **at, **logprobs),
            self._event("content_part.done", part=self._part(text), **at),
            self._event("output_item.done", item=item),
        ]
        key = "reasoning_content" if reasoning else "content"
        self.message[key] = self.message.get(key, "") + text
        self.output.append(item)
        self._kind = ""
        return events

    def _part(self, text: str) -> OutputPart:
        if self._kind == "reasoning":
            return OutputPart(type="reasoning_text", text=text)
        return OutputPart(type="output_text", text=text, annotations=(), logprobs=self._logprobs)

    def _item(self, status: str) -> OutputItem:
        text = "".join(self._text)
        item = OutputItem(
            id=self._item_id, type=self._kind, status=status, content=(self._part(text),)
        )
        if self._kind == "message":
            return msgspec.structs.replace(item, role="assistant")
        item = msgspec.structs.replace(item, summary=())
        if self._sealed:
            return msgspec.structs.replace(item, encrypted_content=sealed_reasoning(text))
        return item

    def _call(self, call: Called) -> list[ResponseEvent]:
        origin = self._origins.get(call.name, _NOWHERE)
        kind = "custom_tool_call" if origin.custom else "function_call"
        given, key, name = call.arguments, "arguments", "function_call_arguments"
        if origin.custom:
            given = str(msgspec.json.decode(call.arguments).get("input", ""))
            key, name = "input", "custom_tool_call_input"
        item = OutputItem(
            id=self._item_id,
            type=kind,
            status="completed",
            call_id=call.id,
            name=call.name,
            namespace=origin.namespace or msgspec.UNSET,
        )
        done = msgspec.structs.replace(item, **{key: given})
        added = msgspec.structs.replace(item, status="in_progress", **{key: ""})
        named = {} if origin.custom else {"name": call.name}
        events = [
            self._event("output_item.added", item=added),
            self._event(f"{name}.delta", item_id=item.id, delta=given),
            self._event(f"{name}.done", item_id=item.id, **{key: given}, **named),
            self._event("output_item.done", item=done),
        ]
        self.output.append(done)
        function = {"name": call.name, "arguments": call.arguments}
        made = {"id": call.id, "type": "function", "function": function}
        self.message.setdefault("tool_calls", []).append(made)
        return events
