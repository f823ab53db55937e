"""The systems that are measured, each behind one method: a greedy reply to a task."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import Struct

from engine import EngineClient, EngineError, Finished, GenerateRequest
from sidecar.jobs.peers import Peer
from sidecar.jobs.race.chat_stream import ChatStream, stream_chat
from sidecar.jobs.race.server_process import ServerProcess
from sidecar.jobs.race.tasks import Task

PILLION_SERVED = "Pillion over HTTP"
# A request that takes longer than this counts as one that hangs.
REPLY_SECONDS = 240.0


class Measured(Struct, frozen=True, kw_only=True):
    """One greedy reply. prefill, decode: seconds up to the first token, and from there to the last.
    cached: prompt tokens that came from a cache, as far as it is known. output: a hash of the token
    ids, or of the text where a server tells no ids. text: where there is one. drafted, accepted:
    draft tokens, where it says."""

    prompt_tokens: int
    tokens: int
    prefill: float
    decode: float
    output: str
    text: str = ""
    cached: int = 0
    drafted: int | None = None
    accepted: int | None = None

    @property
    def decode_speed(self) -> float:
        """Tokens a second behind the first, which comes from the prefill."""
        return (self.tokens - 1) / self.decode if self.decode > 0 else 0.0

    @property
    def prompt_speed(self) -> float:
        """Prompt tokens a second, of those that were read."""
        return self.read / self.prefill if self.prefill > 0 else 0.0

    @property
    def read(self) -> int:
        """Prompt tokens that no cache had."""
        return self.prompt_tokens - self.cached


class Contender(Protocol):
    """serial: the name of the system that this one's output must equal, if it speculates.
    regimes: the only ones it is asked, where one is enough for what is to be seen."""

    @property
    def name(self) -> str: ...

    @property
    def serial(self) -> str | None: ...

    @property
    def regimes(self) -> tuple[str, ...] | None: ...

    async def reply(self, task: Task, max_tokens: int) -> Measured:
        """Raises EngineError when it cannot go on."""

    def peak_bytes(self) -> int:
        """0 where it has no process of its own."""

    async def stop(self) -> None: ...


@dataclass
class InProcess:
    """Pillion's engine itself. drafters: see `GenerateRequest.drafters`; None is target-only."""

    name: str
    client: EngineClient
    drafters: tuple[str, ...] | None = ()
    serial: str | None = None
    regimes: tuple[str, ...] | None = None

    async def reply(self, task: Task, max_tokens: int) -> Measured:
        request = GenerateRequest(
            id=self.client.new_id("race"),
            prompt=task.prompt,
            max_tokens=max_tokens,
            draft=self.drafters is not None,
            drafters=self.drafters or (),
            prediction=task.prediction,
        )
        async with self.client.generate(request) as reply:
            made: Finished = await reply.finished()
        text = made.tokens[:-1] if made.finish_reason == "stop" else made.tokens
        return Measured(
            prompt_tokens=len(task.prompt),
            tokens=len(made.tokens),
            prefill=made.prefill_ms / 1e3,
            decode=made.decode_ms / 1e3,
            output=hash_of(made.tokens),
            text=(await self.client.decode(text)).strip(),
            cached=made.cached_tokens,
            drafted=made.accepted + made.rejected,
            accepted=made.accepted,
        )

    def peak_bytes(self) -> int:
        return 0

    async def stop(self) -> None:
        """The engine is somebody else's."""


@dataclass
class Piped:
    """Another implementation that takes token ids (`engine.targets.baseline`)."""

    peer: Peer
    serial: str | None = None
    regimes: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return self.peer.name

    async def reply(self, task: Task, max_tokens: int) -> Measured:
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                run = await self.peer.reply(task.prompt, max_tokens, ignore_eos=False)
        except TimeoutError:
            raise EngineError(f"no whole reply within {REPLY_SECONDS:.0f} seconds") from None
        return Measured(
            prompt_tokens=len(task.prompt),
            tokens=len(run.tokens),
            prefill=run.prefill,
            decode=run.seconds,
            output=hash_of(run.tokens),
        )

    def peak_bytes(self) -> int:
        return self.peer.peak_bytes()

    async def stop(self) -> None:
        await self.peer.stop()


@dataclass
class Served:
    """A server that speaks OpenAI's chat. model: as it calls it. more: of every request.

    remembers: it keeps prompts, so that only a task's first reply has a cold prefill.
    """

    name: str
    server: ServerProcess
    model: str
    serial: str | None = None
    regimes: tuple[str, ...] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    remembers: bool = False
    _asked: set[str] = field(default_factory=set)

    async def reply(self, task: Task, max_tokens: int) -> Measured:
        streamed = await self.chat(task.messages, max_tokens)
        made = measured(streamed, len(task.prompt), remembered=task.name in self._asked)
        if self.remembers:
            self._asked.add(task.name)
        return made

    async def chat(self, messages: tuple[Mapping[str, Any], ...], max_tokens: int) -> ChatStream:
        """What `reply` is made of. Raises EngineError, with its last words if it has died."""
        try:
            return await asyncio.to_thread(
                stream_chat,
                self.server.port,
                messages,
                model=self.model,
                max_tokens=max_tokens,
                more=self.more,
                seconds=REPLY_SECONDS,
            )
        except EngineError:
            # A process that is ending may take a moment.
            await asyncio.sleep(0.2)
            self.server.check()
            raise

    def peak_bytes(self) -> int:
        return self.server.peak_bytes()

    async def stop(self) -> None:
        await asyncio.to_thread(self.server.stop)


def measured(streamed: ChatStream, prompt_tokens: int, *, remembered: bool) -> Measured:
    """By the client's clock; by llama.cpp's own where it says, which leaves HTTP out and so is the
    better of the two for it. prompt_tokens: ours, where the server does not count them."""
    timings = streamed.facts.get("timings") or {}
    tokens = streamed.tokens
    prefill, decode = streamed.first, streamed.last - streamed.first
    try:
        if timings:
            prefill = float(timings["prompt_ms"]) / 1e3
            # Without the first token, as ours.
            speed = float(timings["predicted_per_second"])
            decode = (tokens - 1) / speed if speed else decode
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"its timings are not as expected: {timings}") from error
    facts = streamed.facts.get("pillion") or {}
    accepted = facts.get("accepted", timings.get("draft_n_accepted"))
    rejected = facts.get("rejected")
    text = streamed.text.strip()
    read = streamed.prompt_tokens or prompt_tokens
    return Measured(
        prompt_tokens=read,
        tokens=tokens,
        prefill=prefill,
        decode=decode,
        output=hashlib.sha256(text.encode()).hexdigest(),
        text=text,
        cached=read if remembered else streamed.cached_tokens or 0,
        drafted=timings.get("draft_n") if rejected is None else accepted + rejected,
        accepted=accepted,
    )


def hash_of(tokens: tuple[int, ...]) -> str:
    """SHA-256 over the ids as little-endian uint32, as `Finished.token_hash`."""
    return hashlib.sha256(struct.pack(f"<{len(tokens)}I", *tokens)).hexdigest()
