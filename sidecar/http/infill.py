"""`POST /infill`: the text at a cursor, as llama.vim and llama.vscode ask llama.cpp for it."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from engine import ContextFile, Finished, ModelInfo, Priority, RenderedPrompt, Said
from sidecar.http.endpoint import Endpoint, Exchange
from sidecar.http.models import served_model
from sidecar.http.schema.infill import Infill, InfillRequest, Timings
from sidecar.http.schema.usage import facts_of
from sidecar.jobs.chat import Chat, request_of
from sidecar.jobs.continuation import PlainReader, open_continuations
from sidecar.jobs.turn import Ended, Part, Turn

# What llama.cpp's clients send when they leave it out.
_DEFAULT_TOKENS = 128
_LEAST_PROMPT = 64


class InfillDoor(Endpoint[InfillRequest]):
    """llama.cpp's infill."""

    shape = InfillRequest

    async def answer(self, wire: InfillRequest, exchange: Exchange) -> None:
        model = served_model(self.services, wire.model or None)
        tokens = _DEFAULT_TOKENS if wire.n_predict is None else wire.n_predict
        if tokens < 0:
            tokens = model.context // 2
        chat = Chat(
            id=f"infill-{secrets.token_hex(12)}",
            messages=(),
            n=wire.n_cmpl or 1,
            max_tokens=tokens or None,
            temperature=wire.temperature,
            top_p=wire.top_p,
            top_k=wire.top_k,
            min_p=wire.min_p,
            seed=wire.seed,
            stop=tuple(wire.stop or ()),
            draft=wire.draft is not False,
            session=exchange.session(),
        )
        prompt = await self._prompt(wire, model, tokens)
        async with self._open(chat, prompt, model, warm=not tokens) as turn:
            answers = await _answers(turn, self.parts(turn), model, chat, wire.t_max_predict_ms)
        shown: list[Any] = [_shown(one, wire.response_fields) for one in answers]
        await exchange.json(shown if wire.n_cmpl is not None and wire.n_cmpl > 1 else shown[0])

    async def _prompt(self, wire: InfillRequest, model: ModelInfo, tokens: int) -> RenderedPrompt:
        room = max(_LEAST_PROMPT, model.context - min(tokens, model.context // 2) - 1)
        files = tuple(_file(extra.filename, extra.text) for extra in wire.input_extra or ())
        ahead = room // 2 if files else 0
        return await self.services.engine.fill_in_middle(
            wire.input_prefix + wire.prompt,
            wire.input_suffix,
            limit=room - ahead,
            project="",
            context=files,
            context_limit=ahead,
        )

    def _open(self, chat: Chat, prompt: RenderedPrompt, model: ModelInfo, warm: bool) -> Turn:
        if not warm:
            return open_continuations(self.services, chat, [prompt], model, field="input_prefix")
        request = request_of(self.services, chat, model, prompt)
        ahead = msgspec.structs.replace(request, warm=True, priority=Priority.IDLE)
        return Turn(self.services.engine, [ahead], [PlainReader()])


def _file(name: str, text: str) -> ContextFile:
    text = text if text.endswith("\n") else f"{text}\n"
    return ContextFile(path=name, text=text, content=hashlib.sha256(text.encode()).digest())


async def _answers(
    turn: Turn,
    parts: AsyncGenerator[Part, None],
    model: ModelInfo,
    chat: Chat,
    milliseconds: float | None,
) -> list[Infill]:
    """All choices, in order. Decoding ends when its time is over."""
    texts = [""] * chat.n
    ended: dict[int, Finished] = {}
    timer = None
    try:
        async for part in parts:
            match part.content:
                case Said():
                    texts[part.choice] += part.content.text
                    if timer is None and milliseconds:
                        loop = asyncio.get_running_loop()
                        timer = loop.call_later(milliseconds / 1e3, turn.cancel)
                case Ended():
                    ended[part.choice] = part.content.finished
    finally:
        if timer is not None:
            timer.cancel()
    return [_infill(index, text, ended[index], model) for index, text in enumerate(texts)]


def _infill(index: int, text: str, finished: Finished, model: ModelInfo) -> Infill:
    computed = finished.prompt_tokens - finished.cached_tokens
    produced = len(finished.tokens)
    word = finished.stop_sequence or ""
    kind = "limit" if finished.finish_reason != "stop" else "word" if word else "eos"
    return Infill(
        index=index,
        content=text,
        model=model.id,
        tokens_predicted=produced,
        tokens_evaluated=finished.prompt_tokens,
        tokens_cached=finished.prompt_tokens + produced,
        stop_type=kind,
        stopping_word=word,
        has_new_line="\n" in text,
        timings=Timings(
            cache_n=finished.cached_tokens,
            prompt_n=computed,
            prompt_ms=finished.prefill_ms,
            prompt_per_token_ms=finished.prefill_ms / max(computed, 1),
            prompt_per_second=_rate(computed, finished.prefill_ms),
            predicted_n=produced,
            predicted_ms=finished.decode_ms,
            predicted_per_token_ms=finished.decode_ms / max(produced, 1),
            predicted_per_second=_rate(produced, finished.decode_ms),
        ),
        generation_settings={"n_ctx": model.context, "seed": finished.seed},
        pillion=facts_of(finished),
    )


def _rate(count: int, milliseconds: float) -> float:
    return 1e3 * count / milliseconds if milliseconds else 0.0


def _shown(answer: Infill, fields: list[str] | None) -> Any:
    """All of it, or a flat object of the fields that were asked for and are there."""
    if not fields:
        return answer
    whole = msgspec.to_builtins(answer)
    found = {}
    for path in fields:
        value: Any = whole
        for key in path.split("/"):
            value = value.get(key, msgspec.UNSET) if isinstance(value, Mapping) else msgspec.UNSET
        if value is not msgspec.UNSET:
            found[path] = value
    return found
