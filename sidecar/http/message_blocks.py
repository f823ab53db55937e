"""A reply as the blocks of a message, and the events that they are streamed in."""

from __future__ import annotations

from typing import Any

import msgspec

from engine import Reasoned, Said
from sidecar.http.schema.messages_response import BlockDelta, MessageEvent, WrittenBlock
from sidecar.jobs.turn import Called, Part

_SIGNATURE = "pillion"
"""Anthropic signs thinking, so that its servers can trust it when it comes back. Clients want
something there."""


class MessageBlocks:
    """`written` are the blocks that are complete."""

    def __init__(self) -> None:
        self._kind = ""
        self._text: list[str] = []
        self.written: list[WrittenBlock] = []

    def add(self, part: Part) -> list[MessageEvent]:
        """The events that this part of the reply makes."""
        match part.content:
            case Reasoned():
                return self._write("thinking", part.content.text)
            case Said():
                return self._write("text", part.content.text)
            case Called():
                return [*self.close(), *self._call(part.content)]
        return []

    def finish(self) -> list[MessageEvent]:
        """The reply is over: close what is open. There is a block at least."""
        events = self.close()
        if not self.written:
            events += [*self._write("text", ""), *self.close()]
        return events

    def _event(self, type: str, **fields: Any) -> MessageEvent:
        return MessageEvent(type=type, index=len(self.written), **fields)

    def _delta(self, type: str, **fields: str) -> MessageEvent:
        return self._event("content_block_delta", delta=BlockDelta(type=type, **fields))

    def _write(self, kind: str, text: str) -> list[MessageEvent]:
        events = []
        if self._kind != kind:
            events = self.close()
            self._kind, self._text = kind, []
            empty = WrittenBlock(type="text", text="")
            if kind == "thinking":
                empty = WrittenBlock(type="thinking", thinking="", signature="")
            events.append(self._event("content_block_start", content_block=empty))
        self._text.append(text)
        return [*events, self._delta(f"{kind}_delta", **{kind: text})]

    def close(self) -> list[MessageEvent]:
        """End the block that is being written, if one is."""
        if not self._kind:
            return []
        text, events = "".join(self._text), []
        if self._kind == "thinking":
            block = WrittenBlock(type="thinking", thinking=text, signature=_SIGNATURE)
            events.append(self._delta("signature_delta", signature=_SIGNATURE))
        else:
            block = WrittenBlock(type="text", text=text)
        events.append(self._event("content_block_stop"))
        self.written.append(block)
        self._kind = ""
        return events

    def _call(self, call: Called) -> list[MessageEvent]:
        id = f"toolu_{call.id.removeprefix('call_')}"
        empty = WrittenBlock(type="tool_use", id=id, name=call.name, input={})
        events = [
            self._event("content_block_start", content_block=empty),
            self._delta("input_json_delta", partial_json=call.arguments),
            self._event("content_block_stop"),
        ]
        given = msgspec.json.decode(call.arguments, type=dict)
        self.written.append(msgspec.structs.replace(empty, input=given))
        return events
