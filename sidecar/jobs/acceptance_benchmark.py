"""How many drafts are accepted, by counting: no clock, so any machine finds the same.

A sampled reply is measured twice: with a drafter that shares the verifier's noise, as drafters
here do, and with one that has noise of its own. A reply that only repeats itself is easily
guessed, so such replies are counted apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from engine import EngineClient, Finished, GenerateRequest, Sampling
from sidecar.jobs.coding_prompts import CodingPrompt

SAMPLINGS = {
    "greedy": Sampling(),
    "T=0.7": Sampling(temperature=0.7, top_p=0.95),
    "T=1.0": Sampling(temperature=1.0, top_p=0.95),
}
CODE, REWRITE = "held-out code", "rewrite"
SHARED, OWN = "shared", "own"

LOOP_TOKENS, LONGEST_PERIOD = 48, 16
# Any number but the reply's own seed makes the drafter's noise its own.
_OTHER_NOISE = 1 << 40


class Acceptance(Struct, frozen=True, kw_only=True):
    """One drafter on one kind of text.

    noise: ``shared``, ``own``, or empty where a drafter uses none. looping: whether these are the
    replies that repeat themselves. tokens: committed behind the first of each reply, in `rounds`
    target forwards; accepted: those that were drafts.
    """

    drafter: str
    text: str
    sampling: str
    noise: str
    looping: bool
    replies: int
    tokens: int
    rounds: int
    accepted: int

    @property
    def tokens_per_round(self) -> float:
        """As published tables count accepted tokens: a round without any gives one."""
        return round(self.tokens / self.rounds, 3) if self.rounds else 0.0

    @property
    def drafts_per_round(self) -> float:
        return round(self.accepted / self.rounds, 3) if self.rounds else 0.0


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A drafter to count for. drafter: as `GenerateRequest.drafters` calls it; name: as shown."""

    name: str
    client: EngineClient
    drafter: str
    text: str
    prompts: Sequence[CodingPrompt]

    @property
    def cases(self) -> list[tuple[str, str]]:
        """Samplings and noises."""
        if self.drafter == "copy":
            return [(sampling, "") for sampling in SAMPLINGS]
        sampled = [(name, noise) for name in list(SAMPLINGS)[1:] for noise in (SHARED, OWN)]
        return [("greedy", ""), *sampled]

    @property
    def steps(self) -> int:
        return len(self.cases) * len(self.prompts)

    async def measure(self, max_tokens: int, advance: Callable[[], None]) -> list[Acceptance]:
        """A row for every case, and another where some replies loop."""
        rows = []
        for sampling, noise in self.cases:
            replies = []
            for seed, prompt in enumerate(self.prompts):
                replies.append(await self._reply(prompt, sampling, noise, seed, max_tokens))
                advance()
            for looping in (False, True):
                group = [reply for reply in replies if loops(reply.tokens) is looping]
                if group or not looping:
                    rows.append(self._row(sampling, noise, looping, group))
        return rows

    async def _reply(
        self, prompt: CodingPrompt, sampling: str, noise: str, seed: int, max_tokens: int
    ) -> Finished:
        request = GenerateRequest(
            id=self.client.new_id("acceptance"),
            prompt=(await prompt.variant(0).render(self.client)).tokens,
            max_tokens=max_tokens,
            sampling=SAMPLINGS[sampling],
            seed=seed,
            drafters=(self.drafter,),
            draft_seed=seed + _OTHER_NOISE if noise == OWN else None,
        )
        async with self.client.generate(request) as reply:
            return await reply.finished()

    def _row(
        self, sampling: str, noise: str, looping: bool, replies: Sequence[Finished]
    ) -> Acceptance:
        return Acceptance(
            drafter=self.name,
            text=self.text,
            sampling=sampling,
            noise=noise,
            looping=looping,
            replies=len(replies),
            tokens=sum(len(reply.tokens) - 1 for reply in replies),
            rounds=sum(reply.rounds for reply in replies),
            accepted=sum(reply.accepted for reply in replies),
        )


def loops(tokens: Sequence[int]) -> bool:
    """Whether the last `LOOP_TOKENS` repeat a run of at most `LONGEST_PERIOD`."""
    end = tokens[-LOOP_TOKENS:]
    return len(end) == LOOP_TOKENS and any(
        end[period:] == end[:-period] for period in range(1, LONGEST_PERIOD + 1)
    )


def figures(rows: Sequence[Acceptance]) -> dict[str, Any]:
    """What is looked at first, of replies that do not loop: tokens a round on held-out code, and
    for the better drafter what sampling at T=0.7 leaves, and what sharing the noise gains."""
    code = {
        (row.drafter, row.sampling, row.noise): row
        for row in rows
        if row.text == CODE and not row.looping and row.rounds
    }
    found: dict[str, Any] = {}
    for version in ("v1", "v2"):
        row = code.get((f"dflash {version}", "greedy", ""))
        found[f"accepted_per_round_code_{version}"] = row.tokens_per_round if row else None
    greedy = [row for key, row in code.items() if key[1:] == ("greedy", "")]
    best = max(greedy, key=lambda row: row.tokens_per_round, default=None)
    shared = code.get((best.drafter, "T=0.7", SHARED)) if best else None
    own = code.get((best.drafter, "T=0.7", OWN)) if best else None
    found["sampled_over_greedy_acceptance"] = _ratio(shared, best, "tokens_per_round")
    found["sampled_over_greedy_drafts"] = _ratio(shared, best, "drafts_per_round")
    found["shared_over_own_noise_acceptance"] = _ratio(shared, own, "tokens_per_round")
    found["shared_over_own_noise_drafts"] = _ratio(shared, own, "drafts_per_round")
    found["acceptance"] = [
        msgspec.to_builtins(row)
        | {"tokens_per_round": row.tokens_per_round, "drafts_per_round": row.drafts_per_round}
        for row in rows
    ]
    return found


def _ratio(above: Acceptance | None, below: Acceptance | None, name: str) -> float | None:
    if above is None or below is None or not getattr(below, name):
        return None
    return round(float(getattr(above, name) / getattr(below, name)), 3)
