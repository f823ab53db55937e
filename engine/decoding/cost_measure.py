"""Timing this machine's rounds, one at a time, as they run while decoding.

Every forward waits for the token that the one before it chose: loops without that dependency let
the device overlap what decoding cannot, and mislead.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx
import numpy as np

from engine.decoding.cost_curve import CostCurve, Grid
from engine.decoding.costs import STALE
from engine.decoding.exactness import random_start
from engine.decoding.sampling import choose
from engine.drafters.dflash import DFlashModel
from engine.drafters.dflash_drafter import ContextRows, DFlashDrafter
from engine.messages import Sampling
from engine.targets.caches import Caches
from engine.targets.target import Target

# Lengths of context, as far as the model's reaches.
CONTEXTS = (64, 1024, 8192)
# Rounds of each kind, of which the median counts; fewer where they take long.
REPEATS, FEWEST_REPEATS = 7, 3
# What measuring at one context may take; after that the fewest repeats will do.
SECONDS = 0.5
# Rows up to which every number is timed, and beyond which every other one will do.
EACH = 8
# Tokens that a drafter which was idle for a while takes in at once.
READ = 64

GREEDY = Sampling()


class CostMeasurement:
    """Measures round by round, so that whoever waits for the engine waits for one round at most.

    width: rows of the widest forward. drafter: the target's, which must be tapped for it.
    context: the model's own, in tokens. counts: the rows that are timed, from 1 to `width`;
    without them all up to `EACH`, and every other one. clock: seconds.
    """

    def __init__(
        self,
        target: Target,
        vocabulary: int,
        context: int,
        width: int,
        drafter: DFlashModel | None,
        *,
        counts: Sequence[int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._target = target
        self._vocabulary = vocabulary
        self._model = drafter
        self._clock = clock
        # Measuring itself appends rows.
        most = context - 4 * (REPEATS + 1) * width - FEWEST_REPEATS * (READ + 1)
        self._contexts = [c for c in CONTEXTS if c <= most] or [max(2, most)]
        drafts = drafter.config.block_size - 1 if drafter is not None else 0
        self._rows = counts or [n for n in range(1, width + 1) if n <= EACH or (width - n) % 2 == 0]
        self._drafts = range(1, min(drafts, width - 1) + 1)
        self._forward: list[tuple[float, ...]] = []
        self._draft: list[tuple[float, ...]] = []
        self._reading = 0.0
        self._caches: Caches = []
        self._proposer: DFlashDrafter | None = None
        self._token = 0
        self._hidden = mx.zeros((1, 1))
        self._plan = self._measure()

    def step(self) -> bool:
        """One more round. False when there was nothing left to do."""
        return next(self._plan, None) is not None

    @property
    def share(self) -> float:
        """Done of the whole."""
        return len(self._forward) / len(self._contexts)

    def curve(self) -> CostCurve:
        """When `step` has nothing left to do."""
        contexts = tuple(self._contexts)
        forward = Grid(contexts=contexts, counts=tuple(self._rows), seconds=tuple(self._forward))
        if not self._drafts:
            return CostCurve(forward=forward)
        draft = Grid(contexts=contexts, counts=tuple(self._drafts), seconds=tuple(self._draft))
        return CostCurve(
            forward=forward, drafters={"dflash": draft}, reading={"dflash": self._reading}
        )

    def confirms(self, curve: CostCurve) -> bool:
        """Whether a few rounds, the narrowest and the widest, take about what `curve` says. It may
        have been measured on a busy machine, or before kernels changed."""
        context, rows = self._contexts[0], self._rows[-1]
        self._begin(context)
        times: dict[str, list[float]] = {"one": [], "all": [], "draft": []}
        for _ in range(FEWEST_REPEATS):
            times["one"].append(self._round(1))
            times["all"].append(self._round(rows))
            if self._drafts:
                times["draft"].append(self._proposal(self._drafts[-1]))
        self._caches, self._proposer = [], None
        forward = curve.forward.row(context)
        known = {"one": forward[0], "all": forward[rows - 1]}
        if self._drafts:
            known["draft"] = curve.drafters["dflash"].row(context)[self._drafts[-1] - 1]
        ratios = [statistics.median(times[name]) / seconds for name, seconds in known.items()]
        return all(1 / STALE < ratio < STALE for ratio in ratios)

    def _begin(self, context: int) -> None:
        """Kernels and times depend on shapes, so made-up state will do."""
        self._caches = random_start(self._target, self._vocabulary, context)()
        self._proposer = self._new_proposer(context)
        for rows in (1, self._rows[-1]):
            self._round(rows)

    def _measure(self) -> Iterator[bool]:
        for context in self._contexts:
            self._begin(context)
            yield True
            forward: list[list[float]] = [[] for _ in self._rows]
            draft: list[list[float]] = [[] for _ in self._drafts]
            spent = 0.0
            while len(forward[0]) < (REPEATS if spent < SECONDS else FEWEST_REPEATS):
                # Each once: what disturbs the machine then disturbs all alike.
                for rows, times in zip(self._rows, forward, strict=True):
                    times.append(self._round(rows))
                    yield True
                for drafts, times in zip(self._drafts, draft, strict=True):
                    times.append(self._proposal(drafts))
                    yield True
                spent += sum(times[-1] for times in (*forward, *draft))
            if self._proposer is not None:
                self._reading = statistics.median(self._read() for _ in range(REPEATS))
                yield True
            self._forward.append(tuple(map(_usual, forward)))
            self._draft.append(tuple(map(_usual, draft)))
        self._caches, self._proposer = [], None

    def _new_proposer(self, context: int) -> DFlashDrafter | None:
        """The drafter behind made-up rows of that many tokens."""
        if self._model is None:
            return None
        target, config = self._target, self._model.config
        proposer = DFlashDrafter(self._model, embed=target.embed, head=target.head, sampling=GREEDY)
        kept = context if config.reach is None else min(context, config.reach)
        rows = mx.random.normal((1, kept, config.hidden_size), key=mx.random.key(0))
        dtype = target.embed(mx.array([0])).dtype
        proposer.restore(ContextRows(context - kept, rows.astype(dtype)))
        proposer.commit([0] * (context + 1))
        proposer.propose(1)
        return proposer

    def _round(self, rows: int) -> float:
        """Seconds of a forward over `rows`, of which the first is kept, and of choosing."""
        began = self._clock()
        logits = self._target.forward([self._token] * rows, self._caches)
        chosen = np.array(choose(logits, range(1, rows + 1), GREEDY, 0))
        self._target.roll_back(self._caches, rows, 1)
        # The next forward waits for it.
        self._token = max(0, int(chosen[0]))
        seconds = self._clock() - began
        if self._proposer is not None:
            self._proposer.commit([self._token])
            self._hidden = self._target.take_hidden()[:1]
            self._proposer.observe(self._hidden)
        return seconds

    def _proposal(self, drafts: int) -> float:
        """Seconds of a proposal behind a round."""
        self._round(1)
        began = self._clock()
        assert self._proposer is not None
        self._proposer.propose(drafts)
        return self._clock() - began

    def _read(self) -> float:
        """Seconds in which the drafter takes in a token, of `READ` together."""
        assert self._proposer is not None
        self._round(1)
        self._proposer.propose(1)
        began = self._clock()
        self._proposer.commit([self._token] * READ)
        self._proposer.observe(mx.repeat(self._hidden, READ, axis=0))
        self._proposer.propose(1)
        both = self._clock() - began
        began = self._clock()
        self._proposer.propose(1)
        return max(0.0, both - (self._clock() - began)) / READ


def _usual(times: list[float]) -> float:
    """What it takes where nothing else disturbs the machine, which only ever makes it longer: the
    lower quartile."""
    return sorted(times)[len(times) // 4]
