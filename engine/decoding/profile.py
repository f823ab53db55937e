"""``python -m engine.decoding.profile MODEL``: where the time of a decode round goes, for
`pillion bench profile`. A process of its own; prints a JSON `RoundProfile` a line.

A round here is the loop's own (`engine.decoding.speculative`) without what a request adds: the
drafter proposes, the forward is built, its tokens are chosen, one wait, rollback.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable

import msgspec
import numpy as np

from engine.comparisons import RoundProfile
from engine.decoding.sampling import choose
from engine.drafters.dflash import DFlashModel
from engine.drafters.dflash_drafter import DFlashDrafter, TappedRows
from engine.errors import PillionError
from engine.messages import EngineOptions, Sampling
from engine.targets.target import Target

CONTEXT = 256
ROUNDS, WARM_UP = 60, 5
WIDTHS = (1, 4, 8)
SAMPLINGS = {
    "greedy": Sampling(),
    "T 0.7": Sampling(temperature=0.7),
    "T 0.7, top-p 0.95": Sampling(temperature=0.7, top_p=0.95),
}


class Profiler:
    """Rounds of one target, and of its drafter if it has one, behind a context of made-up tokens.
    clock, busy: seconds, of the wall and of this process on all processors."""

    def __init__(
        self,
        target: Target,
        model: str,
        drafter: DFlashModel | None,
        *,
        rounds: int = ROUNDS,
        clock: Callable[[], float] = time.perf_counter,
        busy: Callable[[], float] = time.process_time,
    ) -> None:
        self._target = target
        self._name = model
        self._model = drafter
        self._rounds = rounds
        self._clock = clock
        self._busy = busy

    def profile(self, width: int, sampling: str, *, drafting: bool) -> RoundProfile:
        """Medians over rounds of `width` rows, of which one is kept. drafting: the drafter
        proposes the others; else they are made up."""
        target, caches = self._target, self._target.new_caches()
        target.prefill([1] * CONTEXT, caches)
        drafter = self._drafter(sampling) if drafting else None
        times: list[tuple[float, ...]] = []
        kept, began = 1, self._busy()
        for number in range(WARM_UP + self._rounds):
            if number == WARM_UP:
                began = self._busy()
            start = self._clock()
            drafts = drafter.propose(width - 1) if drafter is not None else [1] * (width - 1)
            drafted = self._clock()
            logits = target.forward([kept, *drafts], caches)
            built = self._clock()
            positions = range(CONTEXT + number, CONTEXT + number + len(drafts) + 1)
            chosen = choose(logits, positions, SAMPLINGS[sampling], 0)
            asked = self._clock()
            kept = max(0, int(np.array(chosen)[0]))
            waited = self._clock()
            target.roll_back(caches, len(drafts) + 1, 1)
            if drafter is not None:
                drafter.commit([kept])
                drafter.observe(TappedRows(target.take_hidden(), 1))
            ended = self._clock()
            stops = (start, drafted, built, asked, waited, ended)
            times.append(tuple(b - a for a, b in itertools.pairwise(stops)))
        busy = (self._busy() - began) / self._rounds
        parts = [1e3 * statistics.median(part) for part in zip(*times[WARM_UP:], strict=True)]
        # A drafter whose draft is one call waits for nothing that MLX computes.
        waits = 1 + (drafting and self._model is not None and self._model.stack is None)
        return RoundProfile(
            model=self._name,
            round=f"{width} {'row' if width == 1 else 'rows'}{', drafted' if drafting else ''}",
            sampling=sampling,
            draft_ms=round(parts[0], 3),
            build_ms=round(parts[1], 3),
            choice_ms=round(parts[2], 3),
            wait_ms=round(parts[3], 3),
            rest_ms=round(parts[4], 3),
            cpu_ms=round(1e3 * busy, 3),
            waits=waits,
        )

    def _drafter(self, sampling: str) -> DFlashDrafter:
        target, model = self._target, self._model
        assert model is not None
        drafter = DFlashDrafter(
            model, embed=target.embed, head=target.head, sampling=SAMPLINGS[sampling]
        )
        drafter.commit([1] * (CONTEXT + 1))
        drafter.observe(target.take_hidden())
        drafter.catch_up()
        return drafter


def profile_model(options: EngineOptions, report: Callable[[RoundProfile], None]) -> None:
    """Every kind of round of a model and its drafter, with the kernels that the options ask for."""
    from engine.cpu.draft_stack import fuse
    from engine.kernels import install
    from engine.loading.load import load
    from engine.loading.pairing import load_pair
    from engine.targets.target import bind

    loaded = load(options, lambda what, share: None)
    target = bind(loaded.model, loaded.config)
    install(target.model, options.kernels)
    pair = load_pair(options, target, loaded.info, lambda what, share: None)
    if pair.model is not None:
        install(pair.model, options.kernels)
        fuse(pair.model, target)
    profiler = Profiler(target, options.model, pair.model)
    for width in WIDTHS:
        report(profiler.profile(width, "greedy", drafting=False))
    for sampling in list(SAMPLINGS)[1:]:
        report(profiler.profile(WIDTHS[-1], sampling, drafting=False))
    if pair.model is not None:
        for width in WIDTHS[1:]:
            report(profiler.profile(width, "greedy", drafting=True))


def main() -> None:
    """Libraries that print must not end up between the results."""
    results = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def report(one: RoundProfile) -> None:
        results.write(msgspec.json.encode(one) + b"\n")
        results.flush()

    try:
        profile_model(msgspec.json.decode(sys.argv[1], type=EngineOptions), report)
    except PillionError as error:
        report(RoundProfile(error=error.message))


if __name__ == "__main__":
    main()
