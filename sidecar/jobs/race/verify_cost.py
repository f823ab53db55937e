"""What verifying several rows costs against one, while a reply is decoded."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from msgspec import Struct

from engine import EngineClient, GenerateRequest, Round

WIDTHS = (1, 2, 4, 8)
# Text that goes on repeating itself, so that there is always something to copy.
LOOPS = ("    assert parse('1') == 1\n" * 16, "red green blue yellow\n" * 20)
_FEWEST = 3


class VerifyCost(Struct, frozen=True, kw_only=True):
    """seconds: median of a round of so many rows, drafting by copying and rollback included.
    rounds: how many there were."""

    seconds: dict[int, float]
    rounds: dict[int, int]

    def over_one(self, rows: int) -> float | None:
        """t(rows) / t(1)."""
        if rows not in self.seconds or 1 not in self.seconds:
            return None
        return round(self.seconds[rows] / self.seconds[1], 3)


async def verify_cost(client: EngineClient, max_tokens: int, repeat: int) -> VerifyCost:
    """Rounds whose width is drawn at random, so that what slows the machine slows all alike."""
    rounds: list[Round] = []
    for seed in range(repeat):
        for text in LOOPS:
            request = GenerateRequest(
                id=client.new_id("verify"),
                prompt=tuple(await client.encode(text)),
                max_tokens=max_tokens,
                ignore_eos=True,
                seed=seed,
                policy="switch",
                explain=True,
            )
            async with client.generate(request) as reply:
                rounds += (await reply.finished()).log
    return cost_of(rounds)


def cost_of(rounds: Iterable[Round]) -> VerifyCost:
    """By rows; widths that hardly occur are left out."""
    seconds: dict[int, list[float]] = {}
    for one in rounds:
        # A look at another drafter's proposals takes time that is not the verifier's.
        if len(one.asks) <= 1:
            seconds.setdefault(sum(one.given) + 1, []).append(one.seconds)
    kept = {
        rows: times
        for rows, times in sorted(seconds.items())
        if rows in WIDTHS and len(times) >= _FEWEST
    }
    return VerifyCost(
        seconds={rows: statistics.median(times) for rows, times in kept.items()},
        rounds={rows: len(times) for rows, times in kept.items()},
    )
