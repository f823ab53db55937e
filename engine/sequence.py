"""One request's state while it is decoded. Pure: caches are opaque, nothing here computes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.client import Codec
from engine.decoding.drafting import Drafting
from engine.drafters.portfolio import Portfolio
from engine.messages import Chunk, Finished, GenerateRequest, TokenLogprob
from engine.prefix_cache.messages import CacheUse
from engine.text.stop import StopMatcher


class Constraint(Protocol):
    """Where a reply stands in its grammar (`engine.text.constraints`)."""

    finished: bool

    def rows(self, drafts: Sequence[int], width: int) -> tuple[list[int], NDArray[np.bool_]]: ...

    def forced(self, limit: int) -> list[int]: ...

    def commit(self, token: int) -> None: ...


@dataclass(frozen=True)
class Ending:
    """finish_reason and, when a stop string ended the reply, which one."""

    reason: str
    stop_sequence: str | None = None


@dataclass
class Counters:
    """What a reply cost; drafts are counted as accepted only when they were committed."""

    cached: int = 0
    cache: CacheUse = field(default_factory=CacheUse)
    rounds: int = 0
    accepted: int = 0
    rejected: int = 0
    started: float = field(default_factory=time.monotonic)
    opened: float | None = None
    first_token: float | None = None


class SequenceState:
    """Tokens, text and ending of one request.

    tokens: prompt and output. prefilled: how many of the prompt the caches hold.
    limit: most new tokens. seed: of the sampled choices. end_ids: token ids that end the reply.
    progress: what of the prompt the prefix cache has. first_logits: (vocabulary,) behind the
        prompt, where they are known.
    token_bytes: bytes of every token id, asked for only when the prompt needs healing.
    constraint: the grammar that the reply is held to, at its first token.
    """

    def __init__(
        self,
        request: GenerateRequest,
        *,
        codec: Codec,
        end_ids: Iterable[int],
        limit: int,
        seed: int,
        drafter: Portfolio | None,
        drafting: Drafting,
        token_bytes: Sequence[bytes] = (),
        constraint: Constraint | None = None,
    ) -> None:
        self.request = request
        self.tokens = list(request.prompt)
        self.limit = limit
        self.seed = seed
        self.drafter = drafter
        self.drafting = drafting
        self.constraint = constraint
        self.prefilled = 0
        self.caches: Any = None
        self.history: Any = None
        self.progress: Any = None
        self.first_logits: Any = None
        self.counters = Counters()
        self.margins: list[float] = []
        self.logprobs: list[TokenLogprob] = []
        self.ending: Ending | None = None
        self._end_ids = frozenset(end_ids) if not request.ignore_eos else frozenset()
        self._detokenizer = codec.detokenizer()
        self._stop = StopMatcher(request.stop)
        self._text: list[str] = []
        self._reported = len(self.tokens)
        self._token_bytes = token_bytes
        self._healed_characters = len(request.must_start_with)
        self.owed = request.must_start_with.encode()

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def remaining(self) -> int:
        return self.limit - (len(self.tokens) - len(self.request.prompt))

    def take(self, run: Sequence[int]) -> int:
        """Commit the tokens of `run` up to and including the one that ends the reply.

        Returns how many were committed (at least 1). A stop string, an end token, the end of the
        grammar and `limit` cut exactly there, wherever they fall in an accepted run.
        """
        for count, token in enumerate(run, 1):
            self.tokens.append(token)
            self._pay(token)
            if self.constraint is not None:
                self.constraint.commit(token)
            if token in self._end_ids:
                self.ending = Ending("stop")
            else:
                self._read(token)
                if self.ending is None and self.constraint is not None and self.constraint.finished:
                    self.ending = Ending("stop")
                if self.ending is None and self.remaining == 0:
                    self.ending = Ending("length")
            if self.ending is not None:
                self._flush()
                return count
        return len(run)

    def _pay(self, token: int) -> None:
        if self.owed:
            self.owed = self.owed[len(self._token_bytes[token]) :]

    def _read(self, token: int) -> None:
        text = self._detokenizer.add(token)
        self.drafting.regimes.feed(token, text)
        self._match(text)

    def _match(self, text: str) -> None:
        healed = text[: self._healed_characters]
        self._healed_characters -= len(healed)
        emit, hit = self._stop.feed(text[len(healed) :])
        self._text.append(emit)
        if hit is not None:
            self.ending = Ending("stop", hit)

    def _flush(self) -> None:
        if self.ending is not None and self.ending.stop_sequence is not None:
            return
        reason = self.ending
        self._match(self._detokenizer.finish())
        if self.ending is reason:
            self._text.append(self._stop.flush())

    def cancel(self) -> None:
        self.ending = Ending("cancelled")

    def warmed(self) -> None:
        """The prompt's state is computed, and nothing is to be decoded."""
        self.ending = Ending("warmed")

    def chunk(self) -> Chunk | None:
        """What was committed since the last call; None if nothing was."""
        tokens = tuple(self.tokens[self._reported :])
        text = "".join(self._text)
        if not tokens and not text:
            return None
        first = self._reported - len(self.request.prompt)
        self._reported = len(self.tokens)
        self._text.clear()
        return Chunk(id=self.id, tokens=tokens, text=text, logprobs=tuple(self.logprobs[first:]))

    def finished(self, **facts: Any) -> Finished:
        """The closing event; `facts` are what only the engine knows (exactness, width)."""
        assert self.ending is not None
        now, counters = time.monotonic(), self.counters
        opened = counters.opened or now
        first = counters.first_token or now
        output, drafting = self.output, self.drafting
        return Finished(
            id=self.id,
            finish_reason=self.ending.reason,
            stop_sequence=self.ending.stop_sequence,
            tokens=tuple(output),
            token_hash=token_hash(output),
            seed=self.seed,
            prompt_tokens=len(self.request.prompt),
            cached_tokens=counters.cached,
            cache=counters.cache,
            accepted=counters.accepted,
            rejected=counters.rejected,
            rounds=counters.rounds,
            queue_ms=1e3 * (opened - counters.started),
            prefill_ms=1e3 * (first - opened),
            decode_ms=1e3 * (now - first),
            margins=tuple(self.margins),
            regimes=drafting.tally.report(),
            timeline=drafting.timeline.spans() if drafting.timeline is not None else (),
            log=drafting.log.rounds(self.tokens) if drafting.log is not None else (),
            **facts,
        )


def token_hash(tokens: Sequence[int]) -> str:
    """SHA-256 (hex) over the ids as little-endian uint32."""
    return hashlib.sha256(np.asarray(tokens, dtype="<u4").tobytes()).hexdigest()
