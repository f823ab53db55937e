"""One reply of the upstream, on its way to whoever asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from engine import Chunk, Event, Finished, GenerateRequest, Piece
from sidecar.upstream.capabilities import Capabilities
from sidecar.upstream.codec import marked
from sidecar.upstream.dialect import forced_call
from sidecar.upstream.fallback import reasons_after
from sidecar.upstream.listener import Listener
from sidecar.upstream.prompt import ChatPrompt, Prompt, pack_text
from sidecar.upstream.ways import Ways

UNKNOWN_TOKEN = -1
"""In `Chunk.tokens` and `Finished.tokens`, which then have a length and no more."""


class RemoteReply:
    """begun: whether a part of it was sent on. listener: what the upstream said of it."""

    def __init__(self, request: GenerateRequest, url: str, emit: Callable[[Event], None]) -> None:
        self.request = request
        self.listener = Listener()
        self.begun = False
        self._url = url
        self._emit = emit
        self._reasoning = False
        self._characters = 0
        self._began = time.monotonic()
        self._first = 0.0

    def listen(self, prompt: Prompt, ways: Ways) -> None:
        """Anew: nothing that an earlier try said is a part of the next one."""
        tools = prompt.tools if isinstance(prompt, ChatPrompt) else []
        names = frozenset(str(tool["function"]["name"]) for tool in tools)
        forced = forced_call(self.request) if tools else None
        if forced is not None and forced.tool is not None:
            names &= {forced.tool}
        self.listener = Listener(
            names,
            must_call=forced is not None,
            by_schema=forced is not None and ways.calls == "schema",
        )

    def hear(self, event: Any) -> None:
        """Send on what an event of the upstream adds."""
        self.send(self.listener.hear(event))

    def send(self, pieces: Sequence[Piece]) -> None:
        """Send on what the reply consists of."""
        text = ""
        for piece in pieces:
            text += marked(piece, reasoning=self._reasoning)
            self._reasoning = reasons_after(piece, self._reasoning)
        if text:
            self._first = self._first or time.monotonic()
            self.begun = True
            self._characters += len(text)
            tokens = (UNKNOWN_TOKEN,) * len(pack_text(text))
            self._emit(Chunk(id=self.request.id, tokens=tokens, text=text))

    @property
    def prompt_tokens(self) -> int:
        said = self.listener.ending.prompt_tokens
        return len(self.request.prompt) if said is None else said

    @property
    def completion_tokens(self) -> int:
        said = self.listener.ending.completion_tokens
        return -(-self._characters // 4) if said is None else said

    @property
    def prefill_seconds(self) -> float:
        return (self._first or time.monotonic()) - self._began

    @property
    def decode_seconds(self) -> float:
        return time.monotonic() - self._first if self._first else 0.0

    def finished(self, reason: str, found: Capabilities | None) -> Finished:
        """Its ending. What the upstream does not say is not claimed."""
        ending = self.listener.ending
        model = f"{found.model} at " if found is not None else ""
        return Finished(
            id=self.request.id,
            finish_reason=reason,
            tokens=(UNKNOWN_TOKEN,) * (0 if reason == "warmed" else self.completion_tokens),
            token_hash="",
            seed=(self.request.seed or 0) % 2**31,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=ending.cached_tokens,
            accepted=ending.accepted,
            rejected=ending.rejected,
            exact=False,
            inexact_reason="an upstream decoded it; whether it is exact is not known here",
            stop_sequence=ending.stop_sequence,
            prefill_ms=1e3 * self.prefill_seconds,
            decode_ms=1e3 * self.decode_seconds,
            served_by=f"{model}{self._url}",
        )
