"""How a sequence begins with what is known and leaves behind what it computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from engine.messages import GenerateRequest, Priority
from engine.prefix_cache.disk_tier import DiskTier
from engine.prefix_cache.memory_tier import Hit
from engine.prefix_cache.messages import CacheOptions, CacheReport, CacheStatus, FileContent
from engine.prefix_cache.prefix_cache import Fetch, PrefixCache
from engine.prefix_cache.radix_tree import Node, Tokens, common
from engine.prefix_cache.record import Array
from engine.prefix_cache.snapshot import (
    NO_ROWS,
    KeptRows,
    Snapshot,
    arrays_of_rows,
    can_snapshot,
    join_context,
    lazy_snapshot,
    restore,
    rows_of_arrays,
    take_rows,
    take_snapshot,
)
from engine.sequence import SequenceState
from engine.sessions import Sessions
from engine.targets.caches import leaves
from engine.targets.target import Target

# Inside a long prompt state is kept after at least so many tokens, or this share of its length: a
# change costs that much more than what is behind it. The tokens' own rows take as many bytes as
# the states do, or more.
LEAST_GAP, GAP_SHARE = 128, 1 / 16
# For less it is not worth waiting for another request that computes the same.
LEAST_SHARED = 32
# Whoever waits for the first token does not wait for copies of what was computed so shortly before.
PUT_OFF_TOKENS = 64
# How long a turn waits for the disk at most: most answers come sooner than somebody else's turn
# would be over. Behind the first such turn others go on (`Scheduler.pick`).
WAIT_SECONDS = 0.005


@dataclass
class Progress:
    """What one sequence's prompt has to do with the cache. stops: lengths at which its prefill has
    to stop, because something is kept there. kept: the last such length. node: what it locks.
    put_off: lengths that are still to be kept, with their states."""

    prompt: Tokens
    stops: set[int]
    kept: int = 0
    node: Node[KeptRows, Snapshot] | None = None
    put_off: list[tuple[int, Snapshot | None]] = field(default_factory=list)
    fetch: Fetch | None = None
    looked: bool = False
    shared: set[str] = field(default_factory=set)


class PrefixReuse:
    """grid: where prompt chunks are not row-invariant, only state computed on the chunk grid is the
    state that a fresh run would compute; 1 anywhere. fingerprint: of all that a file on disk
    depends on; None keeps none. sessions: whose end is kept for their next turn."""

    def __init__(
        self,
        target: Target,
        options: CacheOptions,
        *,
        grid: int,
        fingerprint: Callable[[], str] | None = None,
        sessions: Sessions,
    ) -> None:
        caches = target.new_caches()
        self._target = target
        self._grid = grid
        self._sessions = sessions
        self._on = options.memory > 0 and can_snapshot(caches)
        self._layers = len(leaves(caches))
        disk = None
        if self._on and fingerprint is not None and options.dir is not None and options.disk != 0:
            disk = DiskTier(Path(options.dir), fingerprint, budget=options.disk)
        self._recurrent = self._on and take_snapshot(caches) is not None
        self.cache: PrefixCache[KeptRows, Snapshot] = PrefixCache(
            options.memory,
            recurrent=self._recurrent,
            empty=NO_ROWS,
            granularity=grid,
            disk=disk,
            pack=arrays_of_rows,
            unpack=self._unpack,
        )
        # Seconds that computing a prompt token takes; when and where the last chunk began.
        self._rate = 0.0
        self._began, self._start = 0.0, 0
        self._gap = 0
        # Whoever has something put off.
        self._owing: dict[str, SequenceState] = {}

    def _unpack(
        self, arrays: Mapping[str, Array], length: int, end: int
    ) -> tuple[KeptRows, Snapshot | None]:
        return rows_of_arrays(arrays, self._layers, length, end)

    def begin(self, sequence: SequenceState) -> bool:
        """Give the sequence its caches, with the longest known prefix in them. False while that is
        still coming from disk."""
        if not self._on:
            sequence.caches = self._target.new_caches()
            return True
        for other in list(self._owing.values()):
            self.settle(other)
        progress = self._progress(sequence)
        if not progress.looked:
            progress.looked = True
            progress.fetch = self.cache.fetch(progress.prompt)
        took = 0.0
        if progress.fetch is not None:
            if not progress.fetch.over:
                progress.fetch.wait(WAIT_SECONDS)
            if not progress.fetch.over:
                return False
            self.cache.admit(progress.prompt, progress.fetch)
            took = time.monotonic() - progress.fetch.began
        self._resume(sequence, progress, took)
        return True

    def fetches(self, sequence: SequenceState) -> bool:
        """Whether what its prompt begins with is on its way from disk."""
        progress: Progress | None = sequence.progress
        if progress is None or sequence.caches is not None or progress.fetch is None:
            return False
        return not progress.fetch.over

    def _progress(self, sequence: SequenceState) -> Progress:
        if sequence.progress is None:
            request = sequence.request
            last = len(request.prompt) - 1
            stops = {last - last % self._grid} if self._grid > 1 else _stops(request, last)
            prompt = np.asarray(request.prompt, np.uint32)
            sequence.progress = Progress(prompt, stops if self._recurrent else set())
        progress: Progress = sequence.progress
        return progress

    def _resume(self, sequence: SequenceState, progress: Progress, took: float) -> None:
        hit = self.cache.lookup(progress.prompt)
        if hit is None or not self._whole(hit, progress):
            hit = self.cache.lookup(progress.prompt[:-1])
        if hit is None:
            sequence.caches = self._target.new_caches()
            return
        rows, length = [node.rows for node in hit.nodes], hit.length
        room = len(progress.prompt) - length
        sequence.caches = restore(self._target, rows, hit.snapshot, length, room)
        if length == len(progress.prompt) and hit.snapshot is not None:
            sequence.first_logits = hit.snapshot.logits
        sequence.prefilled = sequence.counters.cached = progress.kept = length
        progress.node = hit.nodes[-1]
        self.cache.memory.lock(progress.node)
        sequence.counters.cache = self.cache.use(
            hit, kind=_kind(sequence, length), rate=self._rate, took=took
        )
        if sequence.drafter is not None:
            watching = sequence.drafter.context
            context = join_context(rows, length) if watching is not None else None
            sequence.drafter.resume(sequence.tokens[:length], context)

    @staticmethod
    def _whole(hit: Hit[KeptRows, Snapshot], progress: Progress) -> bool:
        """Whether even the last token need not be run, whose logits are kept."""
        state = hit.snapshot
        return hit.length == len(progress.prompt) and state is not None and state.logits is not None

    def leader(
        self, sequence: SequenceState, others: Iterable[SequenceState]
    ) -> SequenceState | None:
        """Who computes the beginning of this sequence's prompt right now and should have its turn:
        what they share is computed once. None if it is to go on itself."""
        if not self._on or sequence.caches is not None:
            return None
        progress = self._progress(sequence)
        known = None
        for other in others:
            if other.caches is None or other.prefilled >= len(other.request.prompt) - 1:
                continue
            ahead = self._progress(other)
            shortest = min(len(progress.prompt), len(ahead.prompt)) - 1
            shared = min(common(progress.prompt, ahead.prompt), shortest)
            shared -= shared % self._grid
            if other.prefilled >= shared:
                continue
            if known is None:
                hit = self.cache.lookup(progress.prompt[:-1])
                known = hit.length if hit is not None else 0
            if shared - known < LEAST_SHARED:
                continue
            ahead.stops.add(shared)
            if other.id not in progress.shared:
                progress.shared.add(other.id)
                self.cache.shared_tokens += shared - known
            return other
        return None

    def next_stop(self, sequence: SequenceState, start: int, end: int) -> int:
        """Where the chunk that begins at `start` has to stop, at `end` at the latest."""
        self._began, self._start = time.perf_counter(), start
        if not self._on:
            return end
        return min([end, *(n for n in self._progress(sequence).stops if start < n)])

    def last_rows(self, sequence: SequenceState, most: int) -> int:
        """How many rows, `most` at most, the forward can have that gives the first token, without
        running over a stop. Fewer forwards are an earlier token."""
        rows = len(sequence.request.prompt) - sequence.prefilled
        if self._grid > 1 or rows > most:
            return 1
        stops = self._progress(sequence).stops if self._on else ()
        return 1 if any(stop > sequence.prefilled for stop in stops) else rows

    def reached(self, sequence: SequenceState, length: int, logits: mx.array | None = None) -> None:
        """The caches hold `length` tokens now, of the prompt; keep what is only known here.

        logits: (1, vocabulary) of the last of them, if they were computed.
        """
        if not self._on:
            return
        progress = self._progress(sequence)
        if logits is None:
            rate = (time.perf_counter() - self._began) / (length - self._start)
            self._rate = rate if not self._rate else 0.8 * self._rate + 0.2 * rate
        due = length in progress.stops or logits is not None
        if self._recurrent and not due:
            # A warm request ends here, at all but the last token.
            due = length - progress.kept >= self._gap_at(sequence, length) or (
                sequence.request.warm and length == len(progress.prompt) - 1
            )
        if not due or length % self._grid:
            return
        if logits is None and len(progress.prompt) - length <= PUT_OFF_TOKENS:
            progress.put_off.append((length, lazy_snapshot(sequence.caches)))
            self._owing[sequence.id] = sequence
        else:
            self.settle(sequence)
            snapshot = take_snapshot(sequence.caches, None if logits is None else logits[0])
            self._keep(sequence, progress, length, snapshot)

    def settle(self, sequence: SequenceState) -> None:
        """Keep what was put off until its first token was out."""
        if self._owing.pop(sequence.id, None) is None:
            return
        progress: Progress = sequence.progress
        for length, snapshot in progress.put_off:
            self._keep(sequence, progress, length, snapshot and snapshot.evaluated())
        progress.put_off.clear()

    def _gap_at(self, sequence: SequenceState, length: int) -> int:
        if not self._gap:
            state = take_snapshot(sequence.caches)
            row = take_rows(sequence.caches, length - 1, length).nbytes
            self._gap = max(LEAST_GAP, state.nbytes // max(row, 1) if state is not None else 0)
        return max(self._gap, int(length * GAP_SHARE))

    def _keep(
        self,
        sequence: SequenceState,
        progress: Progress,
        length: int,
        snapshot: Snapshot | None,
    ) -> None:
        """Put the first `length` tokens into the cache, with the state behind them."""
        drafter = sequence.drafter
        watching = drafter.context if drafter is not None else None

        def rows(start: int, end: int) -> KeptRows:
            context = watching.rows(end) if watching is not None else None
            return take_rows(sequence.caches, start, end, context)

        request = sequence.request
        node = self.cache.insert(
            sequence.tokens[:length],
            rows,
            snapshot,
            stable=length in request.boundaries or any(s.end == length for s in request.segments),
            segments=request.segments,
            session=self._sessions.thread_of(request),
        )
        progress.kept = length
        if node is not None:
            self._release(progress)
            self.cache.memory.lock(node)
            progress.node = node

    def _release(self, progress: Progress) -> None:
        if progress.node is not None:
            self.cache.memory.unlock(progress.node)
            progress.node = None

    def remember(self, sequence: SequenceState) -> None:
        """Put what the caches hold into the cache: all tokens but the last, which was chosen and
        never run. The sequence is over."""
        if not self._on or sequence.progress is None:
            return
        self.settle(sequence)
        progress: Progress = sequence.progress
        if sequence.caches is not None:
            prompt = len(sequence.request.prompt)
            held = sequence.prefilled if sequence.prefilled < prompt else len(sequence.tokens) - 1
            if self._grid > 1:
                held = min(held, prompt - 1)
                held -= held % self._grid
            if held > progress.kept:
                self._keep(sequence, progress, held, take_snapshot(sequence.caches))
            self._save(sequence, progress)
        self.forget(sequence)

    def _save(self, sequence: SequenceState, progress: Progress) -> None:
        """What should survive a restart. Of a keystroke that is its files: the line being typed is
        another one by then."""
        node = progress.node
        if sequence.request.priority is Priority.INTERACTIVE:
            while node is not None and node.parent is not None and not node.stable:
                node = node.parent
        if node is not None and node.parent is not None:
            self.cache.save(node)
        if self.cache.behind:
            self.cache.step()

    def forget(self, sequence: SequenceState) -> None:
        """The sequence is over, whatever it computed."""
        self._owing.pop(sequence.id, None)
        if sequence.progress is not None:
            self._release(sequence.progress)
            sequence.progress = None

    def step(self) -> bool:
        """In idle time: read the last session's prefixes, write this one's. False when there is
        nothing to do."""
        return self._on and self.cache.step()

    @property
    def waits(self) -> bool:
        """Whether `step` will have something to do soon."""
        return self._on and self.cache.waits

    def status(self) -> CacheStatus:
        """Counts, for any thread."""
        return self.cache.status()

    def files_changed(self, files: Sequence[FileContent]) -> None:
        """What these files hold now."""
        self.cache.files_changed(files)

    def report(
        self,
        action: str,
        text: Callable[[Sequence[int]], str],
        answer: Callable[[CacheReport], None],
    ) -> None:
        """See `PrefixCache.report`."""
        self.cache.report(action, text, answer)

    def close(self) -> None:
        """Write what is still to be written, for a moment at most."""
        self.cache.close()


def _stops(request: GenerateRequest, last: int) -> set[int]:
    """Where a segment ends in front of the prompt's `last` token: every file, the last message
    unless the prompt is a segment as a whole, and those before it that are not too short to be
    worth a stop and a copy."""
    stops = {segment.end for segment in request.segments if segment.end < last}
    ends = sorted(end for end in request.boundaries if end < last)
    whole = len(request.prompt) in request.boundaries
    kept = 0
    for end in ends:
        if end - kept >= LEAST_GAP or (end == ends[-1] and not whole):
            stops.add(end)
            kept = end
    return stops


def _kind(sequence: SequenceState, length: int) -> str:
    """What made a hit of `length` tokens possible, see `CacheUse`."""
    request: Any = sequence.request
    if request.segments and length < request.segments[-1].end:
        return "file"
    return "keystroke" if request.priority is Priority.INTERACTIVE else "turn"
