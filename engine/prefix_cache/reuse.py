"""How a sequence begins with what is known and leaves behind what it computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.prefix_cache.messages import CacheReport, CacheStatus, FileContent
from engine.prefix_cache.prefix_cache import PrefixCache
from engine.prefix_cache.snapshot import (
    Attention,
    Checkpoint,
    can_snapshot,
    restore,
    take_attention,
    take_checkpoint,
)
from engine.sequence import SequenceState
from engine.targets.target import Target


class PrefixReuse:
    """budget: bytes, 0 for none. grid: where prompt chunks are not row-invariant, only state
    computed on the chunk grid is the state that a fresh run would compute; 1 anywhere."""

    def __init__(self, target: Target, budget: int, *, grid: int) -> None:
        caches = target.new_caches()
        self._target = target
        self._grid = grid
        self._on = budget > 0 and can_snapshot(caches)
        self.cache: PrefixCache[Attention, Checkpoint] = PrefixCache(
            budget, recurrent=take_checkpoint(caches) is not None, granularity=grid
        )

    def status(self) -> CacheStatus:
        """Counts, for any thread."""
        return CacheStatus(
            memory_bytes=self.cache.nbytes, memory_budget=self.cache.budget, nodes=len(self.cache)
        )

    def files_changed(self, files: Sequence[FileContent]) -> None:
        """Nothing here is kept by file yet."""

    def report(self, action: str) -> CacheReport:
        """See `CACHE_ACTIONS`."""
        if action == "clear":
            self.cache.clear()
        return CacheReport(status=self.status())

    def begin(self, sequence: SequenceState) -> None:
        """Give the sequence its caches, with the longest known prefix in them."""
        hit = self.cache.lookup(sequence.tokens) if self._on else None
        if hit is None:
            sequence.caches = self._target.new_caches()
            return
        sequence.caches = restore(self._target, hit.attention, hit.recurrent, hit.length)
        sequence.prefilled = sequence.counters.cached = hit.length
        if sequence.drafter is not None:
            sequence.drafter.commit(sequence.tokens[: hit.length])
            if sequence.drafter.context is not None:
                sequence.drafter.context.restore(_cut(hit.attention.context, hit.length))

    def stops(self, sequence: SequenceState) -> list[int]:
        """Prompt lengths worth a checkpoint: the first stable segment (system and tools), which
        other conversations share, and the last, from which the next turn goes on."""
        last = len(sequence.request.prompt) - 1
        if self._grid > 1:
            return [last - last % self._grid] if last >= self._grid else []
        inside = sorted(b for b in sequence.request.boundaries if 0 < b < last)
        return [inside[0], inside[-1]] if inside else []

    def checkpoint(self, sequence: SequenceState, length: int) -> None:
        """Keep what is only known now, with `length` tokens in the caches."""
        if self._on and length % self._grid == 0:
            state = take_checkpoint(sequence.caches)
            if state is not None:
                sequence.checkpoints[length] = state

    def remember(self, sequence: SequenceState) -> None:
        """Put what the caches hold into the prefix cache: all tokens but the last, which was
        chosen and never run."""
        if not self._on or sequence.caches is None:
            return
        prompt = len(sequence.request.prompt)
        held = sequence.prefilled if sequence.prefilled < prompt else len(sequence.tokens) - 1
        if self._grid > 1:
            held = min(held, prompt - 1)
            held -= held % self._grid
        else:
            self.checkpoint(sequence, held)
        if held > 0:
            drafter = sequence.drafter
            context = drafter.context if drafter is not None else None
            rows = context.rows(held) if context is not None else None
            attention = take_attention(sequence.caches, held, rows)
            self.cache.insert(sequence.tokens[:held], attention, sequence.checkpoints)


def _cut(context: Any, length: int) -> Any:
    from engine.drafters.dflash_drafter import ContextRows

    if context is None:
        # Left by a target-only reply: the drafter's context begins here.
        return ContextRows.empty(length)
    return context.first(length)
