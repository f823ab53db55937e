"""A decoding loop on the test's own thread, with its events in a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.decoding.exactness import probe
from engine.decoding.surplus import SurplusController
from engine.doubles import ScriptedTarget
from engine.loop import DecodingLoop
from engine.messages import (
    Chunk,
    EngineOptions,
    Event,
    Exactness,
    Failed,
    Finished,
    GenerateRequest,
)
from engine.prefix_cache.messages import CacheOptions
from engine.targets.target import Target
from engine.testing import ByteCodec, fake_model

VOCABULARY = 261
EXACT = Exactness(exact=True, width=8, asked=8, prefill=True)


class LoopUnderTest(DecodingLoop):
    def __init__(
        self,
        target: Target,
        *,
        exactness: Exactness | None = EXACT,
        width: int = 8,
        chunk: int = 16,
        context: int = 512,
        prefix_cache_bytes: int = 1 << 30,
        cache_dir: Path | None = None,
        surplus: SurplusController | None = None,
        measurement: Callable[[], Any] | None = None,
        **options: Any,
    ) -> None:
        self.events: list[Event] = []
        folder = None if cache_dir is None else str(cache_dir)
        cache = CacheOptions(memory=prefix_cache_bytes, dir=folder)
        if exactness is None:
            exactness = probe(target, VOCABULARY, context, width, lambda share: None)
        super().__init__(
            target,
            ByteCodec(),
            fake_model(context),
            EngineOptions(**options),
            exactness,
            width=min(width, exactness.width) if not options.get("fast") else width,
            chunk=chunk,
            emit=self.events.append,
            surplus=surplus,
            measurement=measurement,
            cache=cache,
            fingerprint=lambda: "f" * 64,
        )

    def until_idle(self, turns: int = 10_000) -> None:
        for _ in range(turns):
            if not self.turn():
                return
        raise AssertionError("the loop never became idle")

    def ending(self, request_id: str) -> Finished | Failed:
        (ending,) = [
            e for e in self.events if e.id == request_id and isinstance(e, Finished | Failed)
        ]
        assert [e for e in self.events if e.id == request_id][-1] is ending
        return ending

    def text(self, request_id: str) -> str:
        return "".join(e.text for e in self.events if e.id == request_id and isinstance(e, Chunk))

    def reply(self, prompt: str | Sequence[int], **fields: Any) -> Finished:
        """Run one request to its end."""
        fields.setdefault("id", f"r{len(self.events)}")
        tokens = tuple(prompt.encode()) if isinstance(prompt, str) else tuple(prompt)
        self.open(GenerateRequest(prompt=tokens, **fields))
        self.until_idle()
        ending = self.ending(fields["id"])
        assert isinstance(ending, Finished), ending
        reported = [
            t
            for e in self.events
            if e.id == fields["id"] and isinstance(e, Chunk)
            for t in e.tokens
        ]
        assert reported == list(ending.tokens)
        return ending


def says(reply: str | bytes, end: int = 256) -> Callable[[Sequence[int]], int]:
    """A script: after the prompt's NUL comes `reply`, then `end`."""
    spelled = reply.encode() if isinstance(reply, str) else reply

    def script(tokens: Sequence[int]) -> int:
        if 0 not in tokens:
            # A row inside the prompt, whose choice nobody looks at.
            return end
        done = len(tokens) - list(tokens).index(0) - 1
        return spelled[done] if done < len(spelled) else end

    return script


def scripted(reply: str | bytes, **options: Any) -> LoopUnderTest:
    return LoopUnderTest(ScriptedTarget(says(reply), VOCABULARY), **options)
