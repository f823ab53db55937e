"""One streamed chat reply of an OpenAI-compatible server, with the times that its client sees."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from engine import EngineError

_LINE_BYTES = 1 << 22
_SAID = 200


class ChatStream(Struct, frozen=True, kw_only=True):
    """first, last: seconds from the request to the first and to the last piece of text; whole: to
    the end of the stream. tokens, prompt_tokens: as the server counts them; tokens are the pieces
    of text where it does not. facts: fields of its chunks that OpenAI does not know."""

    text: str
    first: float
    last: float
    whole: float
    tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    facts: dict[str, Any]


def stream_chat(
    port: int,
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str,
    max_tokens: int,
    more: Mapping[str, Any] | None = None,
    api_key: str | None = None,
    seconds: float,
    wordless: bool = False,
) -> ChatStream:
    """Ask a server on loopback for a greedy reply. more: further fields of the request. wordless:
    a reply may have no text, because it is a call or over at once; its first sign is then `first`.

    Raises EngineError that says what happened when there is no whole reply within `seconds`.
    """
    body = {
        "model": model,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **(more or {}),
    }
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    with contextlib.closing(connection):
        try:
            headers = {"Content-Type": "application/json"}
            if api_key is not None:
                headers["Authorization"] = f"Bearer {api_key}"
            connection.request("POST", "/v1/chat/completions", msgspec.json.encode(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                said = response.read(_LINE_BYTES).decode(errors="replace")
                raise EngineError(f"status {response.status}: {' '.join(said.split())[:_SAID]}")
            return _read(_chunks(response, began + seconds), began, wordless)
        except TimeoutError:
            raise EngineError(f"no whole reply within {seconds:.0f} seconds") from None
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"the connection broke: {error!r}") from error


def _chunks(response: http.client.HTTPResponse, deadline: float) -> Iterator[dict[str, Any]]:
    """Source of the framing: WHATWG HTML, "Server-sent events"; OpenAI ends with ``[DONE]``, which
    not every server sends."""
    while line := response.readline(_LINE_BYTES):
        # A server that sends comments for ever is one that hangs, too.
        if time.perf_counter() > deadline:
            raise TimeoutError
        field, _, data = line.decode(errors="replace").strip().partition(":")
        data = data.strip()
        if field != "data":
            continue
        if data == "[DONE]":
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            raise EngineError(f"this is no JSON: {data[:_SAID]!r}") from None
        if not isinstance(chunk, dict) or not isinstance(chunk.get("choices", []), list):
            raise EngineError(f"this is no chat.completion.chunk: {data[:_SAID]!r}")
        if chunk.get("error"):
            raise EngineError(f"it says {str(chunk['error'])[:_SAID]}")
        yield chunk


def _read(chunks: Iterator[dict[str, Any]], began: float, wordless: bool) -> ChatStream:
    text: list[str] = []
    first = last = 0.0
    usage: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    for chunk in chunks:
        for choice in chunk.get("choices", []):
            delta = choice.get("delta") or {}
            if wordless and (choice.get("finish_reason") or delta.keys() - {"role", "content"}):
                first = first or time.perf_counter() - began
            if piece := delta.get("content"):
                last = time.perf_counter() - began
                first = first or last
                text.append(str(piece))
        usage = chunk.get("usage") or usage
        facts |= {name: chunk[name] for name in ("timings", "pillion") if chunk.get(name)}
    if not text and not (wordless and first):
        raise EngineError("the reply has no text")
    details = usage.get("prompt_tokens_details") or {}
    return ChatStream(
        text="".join(text),
        first=first,
        last=max(last, first),
        whole=time.perf_counter() - began,
        tokens=int(usage.get("completion_tokens") or len(text)),
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"),
        facts=facts,
    )
