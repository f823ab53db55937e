"""`POST /v1/completions`: raw prompts, and gaps between a prompt and a suffix."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from engine import ModelInfo, PillionError, RenderedPrompt, Said, TokenLogprob
from sidecar.http.chat_completions import fingerprint, logit_bias
from sidecar.http.endpoint import Endpoint, Exchange
from sidecar.http.errors import error_body
from sidecar.http.models import served_model
from sidecar.http.schema.completions_request import DEFAULT_TOKENS, CompletionsRequest
from sidecar.http.schema.completions_response import TextChoice, TextCompletion, text_logprobs
from sidecar.http.schema.usage import ReplyFacts, Usage, facts_of, usage_of
from sidecar.http.sse import EventStream
from sidecar.jobs.chat import Chat, check_length
from sidecar.jobs.continuation import open_continuations, raw_prompt
from sidecar.jobs.turn import Ended, Part, Progress, Waiting, head_of


class Completions(Endpoint[CompletionsRequest]):
    """OpenAI's completions."""

    shape = CompletionsRequest

    async def answer(self, wire: CompletionsRequest, exchange: Exchange) -> None:
        engine = self.services.engine
        model = served_model(self.services, wire.model or None)
        chat = _chat_of(wire, exchange.session(wire.prompt_cache_key))
        prompts = await self._prompts(wire, model, chat)
        spelled = await engine.token_bytes() if wire.logprobs is not None else ()
        echoed = [""] * len(prompts) * chat.n
        if wire.echo:
            texts = [
                one if isinstance(one, str) else await engine.decode(one) for one in wire.prompts
            ]
            echoed = [text for text in texts for _ in range(chat.n)]
        async with open_continuations(self.services, chat, prompts, model) as turn:
            parts = self.parts(turn)
            answer = _Answer(chat, model, spelled, echoed)
            if not wire.stream:
                await exchange.json(await answer.whole(parts))
                return
            parts = await head_of(parts)
            usage = bool(wire.stream_options and wire.stream_options.include_usage)
            with contextlib.suppress(TimeoutError):
                await answer.streamed(parts, self.stream(exchange), usage)

    async def _prompts(
        self, wire: CompletionsRequest, model: ModelInfo, chat: Chat
    ) -> list[RenderedPrompt]:
        engine = self.services.engine
        if wire.suffix and isinstance(wire.prompt, str):
            room = model.context - min(chat.max_tokens or 1, model.context // 2)
            return [await engine.fill_in_middle(wire.prompt, wire.suffix, limit=room)]
        for one in wire.prompts:
            check_length(len(one) if isinstance(one, str) else 0, model, "prompt")
        return [await raw_prompt(engine, one) for one in wire.prompts]


def _chat_of(wire: CompletionsRequest, session: str | None) -> Chat:
    return Chat(
        id=f"cmpl-{secrets.token_hex(12)}",
        messages=(),
        n=wire.n or 1,
        logprobs=wire.logprobs,
        max_tokens=wire.max_tokens or wire.max_output_tokens or DEFAULT_TOKENS,
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        min_p=wire.min_p,
        repetition_penalty=wire.repetition_penalty,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        logit_bias=logit_bias(wire.logit_bias or {}),
        seed=wire.seed,
        stop=tuple([wire.stop] if isinstance(wire.stop, str) else wire.stop or ()),
        ignore_eos=bool(wire.ignore_eos),
        draft=wire.draft is not False,
        explain=bool(wire.explain),
        session=session,
    )


class _Answer:
    """echoed: what each choice begins with. spelled: the bytes of every token id, if
    log-probabilities are wanted."""

    def __init__(
        self, chat: Chat, model: ModelInfo, spelled: Sequence[bytes], echoed: Sequence[str]
    ) -> None:
        self._id, self._n = chat.id, chat.n
        self._model = model
        self._spelled = spelled
        self._created = int(time.time())
        self._texts = list(echoed)
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in echoed]
        self._ended: dict[int, Ended] = {}

    async def whole(self, parts: AsyncGenerator[Part, None]) -> TextCompletion:
        """Wait for all of it. Raises the error that a reply failed with."""
        lengths = [len(text) for text in self._texts]
        async for part in parts:
            match part.content:
                case Said():
                    self._texts[part.choice] += part.content.text
                    self._logprobs[part.choice] += part.logprobs
                case Ended():
                    self._ended[part.choice] = part.content
        choices = tuple(
            self._choice(
                index, text, self._logprobs[index], lengths[index], self._ended[index].reason
            )
            for index, text in enumerate(self._texts)
        )
        facts = facts_of(self._ended[0].finished)
        return self._completion(choices, usage=self._usage(), pillion=facts)

    async def streamed(
        self, parts: AsyncGenerator[Part, None], stream: EventStream, usage: bool
    ) -> None:
        """Send all of it. Raises TimeoutError when the client stalls."""
        await stream.open()
        null: Any = None if usage else UNSET
        try:
            for index, text in enumerate(self._texts):
                if text:
                    choice = self._choice(index, text, (), 0)
                    await stream.data(self._completion((choice,), usage=null))
            async with contextlib.aclosing(parts):
                async for part in parts:
                    await self._on_part(part, stream, null)
            if usage:
                await stream.data(self._completion((), usage=self._usage()))
            await stream.done()
        except PillionError as error:
            await stream.data(error_body(error))
        await stream.close()

    async def _on_part(self, part: Part, stream: EventStream, null: Any) -> None:
        content, index = part.content, part.choice
        match content:
            case Waiting():
                await stream.comment("keep-alive")
            case Progress():
                await stream.comment(f"prefill {content.done}/{content.total}")
            case Said():
                offset = len(self._texts[index])
                choice = self._choice(index, content.text, part.logprobs, offset)
                self._texts[index] += content.text
                await stream.data(self._completion((choice,), usage=null))
            case Ended():
                self._ended[index] = content
                choice = self._choice(index, "", (), 0, content.reason)
                facts = facts_of(content.finished)
                await stream.data(self._completion((choice,), usage=null, pillion=facts))

    def _choice(
        self,
        index: int,
        text: str,
        logprobs: Sequence[TokenLogprob],
        offset: int,
        reason: str | None = None,
    ) -> TextChoice:
        wanted = bool(self._spelled) and (bool(logprobs) or reason is not None)
        return TextChoice(
            text=text,
            index=index,
            finish_reason=reason,
            logprobs=text_logprobs(logprobs, self._spelled, offset) if wanted else None,
        )

    def _completion(
        self,
        choices: tuple[TextChoice, ...],
        *,
        usage: Usage | UnsetType | None = UNSET,
        pillion: ReplyFacts | UnsetType = UNSET,
    ) -> TextCompletion:
        return TextCompletion(
            id=self._id,
            created=self._created,
            model=self._model.id,
            system_fingerprint=fingerprint(self._model),
            choices=choices,
            usage=usage,
            pillion=pillion,
        )

    def _usage(self) -> Usage:
        replies = (self._ended[index].finished for index in sorted(self._ended))
        return usage_of(*replies, choices=self._n)
