"""The codec of an engine that takes text, and replies with their parts marked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine import (
    ContextFile,
    Grammar,
    Piece,
    PieceReader,
    Reasoned,
    RenderedPrompt,
    ReplyFormat,
    RequestError,
    Said,
    ToolCall,
    Unread,
)
from sidecar.upstream.prompt import ChatPrompt, GapPrompt, OtherFile, pack, pack_text, text_of

Message = Mapping[str, Any]

# Noncharacters of Unicode: no text has them, and those that do come are taken out.
_REASON, _SAY, _CALL, _UNREAD = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_MARKS = dict.fromkeys(map(ord, (_REASON, _SAY, _CALL, _UNREAD)))
_ENCLOSED = re.compile(f"{_CALL}(.*?){_CALL}|{_UNREAD}(.*?){_UNREAD}", re.DOTALL)


def marked(piece: Piece, *, reasoning: bool) -> str:
    """`piece` as text of a `Chunk`. reasoning: whether the piece before it was some."""
    if isinstance(piece, Reasoned):
        return ("" if reasoning else _REASON) + piece.text.translate(_MARKS)
    if isinstance(piece, Unread):
        return f"{_UNREAD}{piece.reason.translate(_MARKS)}{_UNREAD}"
    before = _SAY if reasoning else ""
    if isinstance(piece, ToolCall):
        return f"{before}{_CALL}{msgspec.json.encode(piece).decode().translate(_MARKS)}{_CALL}"
    return before + piece.text.translate(_MARKS)


class MarkedReader:
    """Reads what `marked` wrote, which splits no call and no reason."""

    waiting = False

    def __init__(self) -> None:
        self.reasoning = False

    def feed(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        end = 0
        for enclosed in _ENCLOSED.finditer(text):
            call, reason = enclosed.groups()
            pieces += self._plain(text[end : enclosed.start()])
            end = enclosed.end()
            pieces.append(
                Unread(reason) if call is None else msgspec.json.decode(call, type=ToolCall)
            )
        return pieces + self._plain(text[end:])

    def _plain(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        for run in re.split(f"([{_REASON}{_SAY}])", text):
            if run in (_REASON, _SAY):
                self.reasoning = run == _REASON
            elif run:
                pieces.append(Reasoned(run) if self.reasoning else Said(run))
        return pieces

    def finish(self, *, complete: bool) -> list[Piece]:
        return []


class _TextDetokenizer:
    """One id after the other; an id can end within a character."""

    def __init__(self) -> None:
        self._tokens: list[int] = []

    def add(self, token: int) -> str:
        self._tokens.append(token)
        text = text_of(self._tokens)
        if text.endswith("\ufffd"):
            return ""
        self._tokens.clear()
        return text

    def finish(self) -> str:
        text, self._tokens = text_of(self._tokens), []
        return text


class UpstreamCodec:
    """`engine.Codec` whose ids are text (`sidecar.upstream.prompt`)."""

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        return pack_text(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return text_of(tokens)

    def detokenizer(self) -> _TextDetokenizer:
        return _TextDetokenizer()

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        template: Mapping[str, Any] | None = None,
        reasoning: bool = True,
    ) -> RenderedPrompt:
        prompt = ChatPrompt(
            messages=[dict(message) for message in messages],
            tools=[dict(tool) for tool in tools or ()],
            template=dict(template or {}),
            reasoning=reasoning,
        )
        return RenderedPrompt(tokens=pack(prompt))

    def grammar(
        self,
        reply: ReplyFormat,
        tools: Sequence[Message] | None = None,
        *,
        prompt: RenderedPrompt | None = None,
    ) -> Grammar:
        """What is wanted, as it is: whether the upstream holds replies to it is its affair."""
        return Grammar(text=msgspec.json.encode(reply).decode(), field="response_format")

    def reader(self, tools: Sequence[Message] | None, *, reasoning: str = "") -> PieceReader:
        return MarkedReader()

    def token_bytes(self) -> list[bytes]:
        raise RequestError(
            "logprobs: the tokens of an upstream are not known here; leave it out",
            field="logprobs",
            code="unsupported_value",
        )

    def fill_in_middle(
        self,
        prefix: str,
        suffix: str,
        *,
        path: str | None = None,
        limit: int | None = None,
        project: str = "",
        context: Sequence[ContextFile] = (),
        context_limit: int = 0,
    ) -> RenderedPrompt:
        files = [
            OtherFile(
                path=file.path, text=file.text, content=file.content.hex(), comment=file.comment
            )
            for file in context
        ]
        gap = GapPrompt(
            prefix=prefix,
            suffix=suffix,
            path=path,
            limit=limit,
            project=project,
            context=files,
            context_limit=context_limit,
        )
        return RenderedPrompt(tokens=pack(gap))
