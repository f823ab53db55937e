"""The local model in the place of an upstream that is down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from engine import (
    Chunk,
    Codec,
    ContextFile,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    PieceReader,
    Reasoned,
    RenderedPrompt,
    ReplyFormat,
    RequestError,
    Unread,
)
from sidecar.upstream.codec import marked
from sidecar.upstream.prompt import ChatPrompt, GapPrompt, Prompt, RawPrompt, text_of


def local_request(
    request: GenerateRequest, prompt: Prompt, codec: Codec
) -> tuple[GenerateRequest, PieceReader | None]:
    """`request` in the local model's tokens, and what takes its reply apart, which is None where
    that is plain text. Raises RequestError."""
    _check_ids(request, prompt)
    reader: PieceReader | None = None
    if isinstance(prompt, ChatPrompt):
        reply = None
        if request.grammar is not None:
            reply = msgspec.json.decode(request.grammar.text, type=ReplyFormat)
        tools: list[dict[str, Any]] | None = prompt.tools or None
        rendered = codec.chat(
            prompt.messages, tools=tools, template=prompt.template, reasoning=prompt.reasoning
        )
        if reply is not None:
            grammar = codec.grammar(reply, tools, prompt=rendered)
            rendered = msgspec.structs.replace(rendered, grammar=grammar)
        reader = codec.reader(tools, reasoning=rendered.reasoning)
    elif isinstance(prompt, GapPrompt):
        rendered = codec.fill_in_middle(
            prompt.prefix,
            prompt.suffix,
            path=prompt.path,
            limit=prompt.limit,
            project=prompt.project,
            context=[
                ContextFile(
                    path=file.path,
                    text=file.text,
                    content=bytes.fromhex(file.content),
                    comment=file.comment,
                )
                for file in prompt.context
            ],
            context_limit=prompt.context_limit,
        )
    else:
        rendered = RenderedPrompt(tokens=tuple(codec.encode(prompt.text, control=True)))
    changes: dict[str, Any] = {
        "prompt": rendered.tokens,
        "prediction": tuple(codec.encode(text_of(request.prediction))),
        "stop_token_ids": rendered.stop_token_ids,
        "must_start_with": rendered.must_start_with,
        "grammar": rendered.grammar,
        "boundaries": rendered.boundaries,
        "segments": rendered.segments,
    }
    return msgspec.structs.replace(request, **changes), reader


def _check_ids(request: GenerateRequest, prompt: Prompt) -> None:
    raw = isinstance(prompt, RawPrompt) and prompt.tokens
    for field, ids in (("prompt", raw), ("logit_bias", request.sampling.logit_bias)):
        if ids:
            raise RequestError(
                f"{field}: token ids are of the upstream's vocabulary; it is down, and the local "
                "model, which answers meanwhile, has another",
                field=field,
            )


@dataclass
class LocalReply:
    """A reply of the local model on its way. reason: why it is its."""

    reason: str
    reader: PieceReader | None
    reasoning: bool = False

    def events(self, event: Event) -> list[Event]:
        """`event` as the upstream's clients read it."""
        match event:
            case Chunk() if self.reader is not None:
                text = self._marked(self.reader.feed(event.text))
                return [msgspec.structs.replace(event, text=text)]
            case Finished():
                rest = []
                if self.reader is not None:
                    complete = event.finish_reason == "stop"
                    text = self._marked(self.reader.finish(complete=complete))
                    rest = [Chunk(id=event.id, tokens=(), text=text)] if text else []
                return [*rest, msgspec.structs.replace(event, fallback=self.reason)]
            case Failed():
                message = f"{event.message} (the local model answers: {self.reason})"
                return [msgspec.structs.replace(event, message=message)]
        return [event]

    def _marked(self, pieces: Any) -> str:
        text = ""
        for piece in pieces:
            text += marked(piece, reasoning=self.reasoning)
            self.reasoning = reasons_after(piece, self.reasoning)
        return text


def reasons_after(piece: Any, before: bool) -> bool:
    """Whether what follows `piece` in a reply is reasoning until it says otherwise."""
    return before if isinstance(piece, Unread) else isinstance(piece, Reasoned)
