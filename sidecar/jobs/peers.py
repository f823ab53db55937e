"""Other implementations on the same weights, each in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from engine import BaselineReply, BaselineRequest, EngineError, EngineOptions, baseline_command
from sidecar.jobs.peak_memory import peak_memory

MLX_LM, OFFICIAL_DFLASH = "mlx_lm", "dflash"
NAMES = {MLX_LM: "mlx_lm", OFFICIAL_DFLASH: "z-lab dflash"}

# Replies are lines of JSON; a thousand token ids fit many times over.
_LINE_BYTES = 1 << 22


class Run(Struct, frozen=True, kw_only=True):
    """One greedy reply. seconds: from its first token to its last. rounds: target forwards
    meanwhile. prefill: seconds up to the first token, where it is told."""

    tokens: tuple[int, ...]
    seconds: float
    rounds: int
    prefill: float = 0.0


class Peer:
    """One of `NAMES`; use `start` and, whatever happens, `stop`. name: as it is shown."""

    def __init__(self, kind: str, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._kind = kind
        self._process = process

    @classmethod
    async def start(
        cls,
        kind: str,
        options: EngineOptions,
        environment: Mapping[str, str] | None = None,
        *,
        name: str | None = None,
    ) -> Peer:
        """Returns when the model is loaded. Raises EngineError with the reason if it cannot be."""
        process = await asyncio.create_subprocess_exec(
            *baseline_command(kind),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
            env=environment,
            # Ctrl-C is for the verb, which then ends this process.
            start_new_session=True,
        )
        peer = cls(kind, name or NAMES[kind], process)
        try:
            # Of a configuration that knows more, it gets what it knows.
            await peer._ask(msgspec.convert(options, EngineOptions, from_attributes=True))
        except BaseException:
            await peer.stop()
            raise
        return peer

    async def reply(self, prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool) -> Run:
        """A greedy reply. Raises EngineError when the process has given up."""
        reply = await self._ask(
            BaselineRequest(prompt=tuple(prompt), max_tokens=max_tokens, ignore_eos=ignore_eos)
        )
        return Run(
            tokens=reply.tokens,
            seconds=reply.decode_ms / 1e3,
            rounds=reply.rounds,
            prefill=reply.prefill_ms / 1e3,
        )

    def peak_bytes(self) -> int:
        """The most memory that the process had; 0 when it has ended."""
        return peak_memory(self._process.pid) if self._process.returncode is None else 0

    async def stop(self) -> None:
        """Idempotent."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _ask(self, message: Struct) -> BaselineReply:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            await self._process.stdin.drain()
            line = await self._process.stdout.readline()
        except ConnectionError:
            line = b""
        if not line:
            code = await self._process.wait()
            raise EngineError(f"the {NAMES[self._kind]} process ended with exit code {code}")
        reply = msgspec.json.decode(line, type=BaselineReply)
        if reply.error:
            raise EngineError(f"{NAMES[self._kind]}: {reply.error}")
        return reply
