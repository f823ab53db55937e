"""Proof by comparison that drafting changes no reply: the same request with drafting on and off,
token for token."""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from engine import EngineClient, EngineError, Finished, GenerateRequest, Sampling
from sidecar.jobs.coding_prompts import CodingPrompt
from sidecar.jobs.disturbance import Disturbances

SAMPLINGS = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=1.0, top_p=0.95, top_k=20),
    "penalised": Sampling(
        temperature=0.7, repetition_penalty=1.1, presence_penalty=0.4, frequency_penalty=0.2
    ),
}


class Case(Struct, frozen=True, kw_only=True):
    """One request to make twice. `seed` seeds the sampling and picks the prompt's variant."""

    prompt: CodingPrompt
    sampling: str
    seed: int


class Difference(Struct, frozen=True, kw_only=True):
    """position: of the first token (counted from 0 in the reply) that is not the same; margin: by
    how much the target-only choice won there, where the engine told."""

    position: int
    margin: float | None
    drafted: tuple[int, ...]
    serial: tuple[int, ...]


class Pair(Struct, frozen=True, kw_only=True):
    """What one case came to. drafter: as the verification is called. Hashes are SHA-256 over the
    token ids as little-endian uint32."""

    drafter: str
    prompt: str
    regime: str
    sampling: str
    seed: int
    drafted_hash: str
    serial_hash: str
    tokens: int
    rounds: int
    accepted: int
    rejected: int
    cached_tokens: int
    exact: bool
    width: int
    difference: Difference | None = None


def cases(prompts: Sequence[CodingPrompt], pairs: int, seed: int) -> list[Case]:
    """`pairs` cases: every prompt with every sampling, then all again with the next seed."""
    grid = (
        Case(prompt=prompt, sampling=sampling, seed=number)
        for number in itertools.count(seed)
        for prompt in prompts
        for sampling in SAMPLINGS
    )
    return list(itertools.islice(grid, pairs))


class Verification:
    """Runs cases, one after the other; with `disturbances`, other requests meanwhile.

    name: for the report. drafters, policy: see `GenerateRequest`. The default drafts also where it
    does not pay: only what is verified is proven.
    """

    def __init__(
        self,
        client: EngineClient,
        *,
        max_tokens: int,
        name: str = "",
        drafters: tuple[str, ...] = (),
        policy: str = "always",
        disturbances: Disturbances | None = None,
    ) -> None:
        self._client = client
        self.max_tokens = max_tokens
        self._name = name
        self._drafters = drafters
        self._policy = policy
        self._disturbances = disturbances

    async def run(self, wanted: Sequence[Case], done: Callable[[Pair], None]) -> list[Pair]:
        """Every pair, in order; `done` hears of each as it ends."""
        pairs = []
        for case in wanted:
            pairs.append(await self.compare(case))
            done(pairs[-1])
        return pairs

    async def compare(self, case: Case) -> Pair:
        """Raises EngineError when the engine drafted although it was told not to, and the error
        of a reply that failed."""
        drafting = await self._request(case, draft=True)
        plain = msgspec.structs.replace(drafting, id=self._client.new_id("verify"), draft=False)
        if self._disturbances is None:
            drafted, serial = await self._reply(drafting), await self._reply(plain)
        else:
            drafted, serial = await self._disturbances.watch_both(drafting, plain)
        if serial.accepted or serial.rejected:
            raise EngineError(f"{case.prompt.name}: drafts were verified with draft=false")
        return Pair(
            drafter=self._name,
            prompt=case.prompt.name,
            regime=case.prompt.regime,
            sampling=case.sampling,
            seed=case.seed,
            drafted_hash=hash_of(drafted.tokens),
            serial_hash=hash_of(serial.tokens),
            tokens=len(drafted.tokens),
            rounds=drafted.rounds,
            accepted=drafted.accepted,
            rejected=drafted.rejected,
            cached_tokens=drafted.cached_tokens + serial.cached_tokens,
            exact=drafted.exact,
            width=drafted.width,
            difference=await self._difference(plain, drafted.tokens, serial.tokens),
        )

    async def token_seconds(self, case: Case) -> float:
        """Time of one target-only token, from one short reply."""
        request = msgspec.structs.replace(await self._request(case, draft=False), ignore_eos=True)
        reply = await self._reply(request)
        return reply.decode_ms / 1000 / max(1, reply.rounds)

    async def _request(self, case: Case, *, draft: bool) -> GenerateRequest:
        prompt = await case.prompt.variant(case.seed).render(self._client)
        return GenerateRequest(
            id=self._client.new_id("verify"),
            prompt=prompt.tokens,
            boundaries=prompt.boundaries,
            must_start_with=prompt.must_start_with,
            stop_token_ids=prompt.stop_token_ids,
            max_tokens=self.max_tokens,
            sampling=SAMPLINGS[case.sampling],
            seed=case.seed,
            draft=draft,
            drafters=self._drafters,
            policy=self._policy,
        )

    async def _reply(self, request: GenerateRequest) -> Finished:
        async with self._client.generate(request) as reply:
            return await reply.finished()

    async def _difference(
        self, plain: GenerateRequest, drafted: tuple[int, ...], serial: tuple[int, ...]
    ) -> Difference | None:
        """Where two replies part; the target-only one is decoded again for its margin there."""
        if drafted == serial:
            return None
        both = itertools.zip_longest(drafted, serial)
        position = next(index for index, (ours, theirs) in enumerate(both) if ours != theirs)
        again = await self._reply(
            msgspec.structs.replace(plain, id=self._client.new_id("verify"), margins=True)
        )
        margin = again.margins[position] if position < len(again.margins) else None
        return Difference(position=position, margin=margin, drafted=drafted, serial=serial)


def hash_of(tokens: Sequence[int]) -> str:
    """SHA-256 (hex) over token ids as little-endian uint32."""
    return hashlib.sha256(struct.pack(f"<{len(tokens)}I", *tokens)).hexdigest()
