"""Chat replies for the verbs that show them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from engine import RequestError
from sidecar.cli.connection import require_daemon, stream_chat
from sidecar.cli.terminal import note, shown
from sidecar.config import Config
from sidecar.runtime_dir import Address


@contextlib.contextmanager
def daemon_for(config: Config, *, local: bool) -> Iterator[Address]:
    """The daemon that a verb asks: the running one, or one of its own. Raises NotRunning."""
    if not local:
        yield require_daemon(config)
        return
    from sidecar.cli.private_daemon import private_daemon

    with private_daemon(config) as address:
        yield address


def as_text(argument: str) -> str:
    """A command-line argument, which may hold bytes that are no text."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise RequestError("the prompt is not UTF-8 text", field="prompt") from None
    return argument


class Settings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a reply may be asked to be, with the chat endpoint's names. None: its default."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: list[str] | None = None
    draft: bool | None = None
    explain: bool | None = None


class ChatReply(Struct, kw_only=True):
    """usage and pillion: the objects of the same name in a chat completion."""

    model: str = ""
    text: str = ""
    finish_reason: str = ""
    usage: dict[str, Any] = {}
    pillion: dict[str, Any] = {}


def stream_reply(
    address: Address, messages: Iterable[Mapping[str, str]], settings: Settings, reply: ChatReply
) -> Generator[str, None, None]:
    """Yield the text as it comes and keep all of it in `reply`, also when left early."""
    body = {"messages": list(messages), **msgspec.to_builtins(settings)}
    with contextlib.closing(stream_chat(address, body)) as chunks:
        for chunk in chunks:
            reply.model = chunk.get("model") or reply.model
            reply.usage = chunk.get("usage") or reply.usage
            reply.pillion = chunk.get("pillion") or reply.pillion
            for choice in chunk["choices"]:
                reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
                if text := choice["delta"].get("content"):
                    reply.text += text
                    yield text


def show_reply(pieces: Iterable[str]) -> None:
    """Write a reply to stdout as it comes."""
    for piece in pieces:
        sys.stdout.write(shown(piece, sys.stdout))
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def note_cost(reply: ChatReply) -> None:
    """One dim line about a finished reply, for a person who watches."""
    if not reply.pillion or not sys.stderr.isatty():
        return
    facts = reply.pillion
    tokens, seconds = reply.usage["completion_tokens"], facts["decode_ms"] / 1000
    speed = f"{tokens / seconds:.0f} tok/s, " if seconds else ""
    exact = "exact" if facts["exact"] else f"NOT exact: {facts['inexact_reason']}"
    cut = ", cut at the token limit" if reply.finish_reason == "length" else ""
    note(f"{tokens} tokens, {speed}{facts['tokens_per_round']:.2f} a round, {exact}{cut}")
