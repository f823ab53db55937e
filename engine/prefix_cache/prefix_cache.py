"""Prefixes that need not be computed again: in memory what is worth most, on disk the rest.

Pure: what is kept is opaque; `pack` and `unpack` turn it into bytes and back.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, Generic

import msgspec
import numpy as np

from engine.errors import EngineError
from engine.prefix_cache.disk_index import Stored
from engine.prefix_cache.disk_tier import DiskTier
from engine.prefix_cache.memory_tier import Hit, MemoryTier
from engine.prefix_cache.messages import (
    CacheEvictions,
    CacheHits,
    CacheNode,
    CacheReport,
    CacheStatus,
    CacheUse,
    FileContent,
    Segment,
)
from engine.prefix_cache.radix_tree import Node, R, S, Tokens
from engine.prefix_cache.record import Array, DamagedRecord, Head, PrefixHash, Record

Pack = Callable[[R, S | None], Mapping[str, Array]]
Unpack = Callable[[Mapping[str, Array], int, int], tuple[R, S | None]]

# A file for less is not worth its name: computing so few tokens takes no longer than reading it.
FEWEST_ON_DISK = 16
# After a restart the hottest prefixes fill this share of the memory budget.
WARM_SHARE = 0.5
# What disk has is waited for so long, and for each byte as long as a slow one takes, but never
# longer; then the prompt is computed.
LEAST_FETCH_SECONDS, FETCH_SECONDS = 0.25, 2.0
SLOW_BYTES_A_SECOND = 500e6
MOST_NODES_SHOWN = 2000
MOST_UNSAVED = 32
MOST_LATE = 4


@dataclass
class Fetch:
    """Records on their way from disk. nbytes: of their files."""

    records: Future[list[Record]]
    nbytes: int
    began: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        """Whether there is nothing to wait for any more."""
        patience = min(LEAST_FETCH_SECONDS + self.nbytes / SLOW_BYTES_A_SECOND, FETCH_SECONDS)
        return self.records.done() or time.monotonic() - self.began > patience

    def wait(self, seconds: float) -> None:
        """Until they are there, for at most so long."""
        wait([self.records], seconds)


class PrefixCache(Generic[R, S]):
    """budget, recurrent, empty, granularity: see `MemoryTier`. disk: None has no such tier.

    pack: rows and snapshot of a node as named arrays. unpack: the same back, given the number of
    tokens and the position behind the last one.
    """

    def __init__(
        self,
        budget: int,
        *,
        recurrent: bool,
        empty: R,
        granularity: int = 1,
        disk: DiskTier | None = None,
        pack: Pack[R, S] | None = None,
        unpack: Unpack[R, S] | None = None,
    ) -> None:
        self.memory: MemoryTier[R, S] = MemoryTier(
            budget,
            recurrent=recurrent,
            empty=empty,
            granularity=granularity,
            on_evict=self._spill_evicted,
        )
        self.disk = disk
        self._pack, self._unpack = pack, unpack
        # In order; a dictionary, because what is evicted must not be held on to.
        self._unsaved: dict[Node[R, S], None] = {}
        # What came too late for the prompt that had asked for it.
        self._late: list[tuple[Tokens, Fetch]] = []
        self._hot: list[tuple[Tokens, Stored]] | None = None
        self._warming: Future[list[Record]] | None = None
        # `DiskTier.losses`, as far as they are known here.
        self._losses = 0
        self._hits: Counter[tuple[str, str]] = Counter()
        self.saved_seconds = 0.0
        self.shared_tokens = 0

    def lookup(self, tokens: Sequence[int] | Tokens) -> Hit[R, S] | None:
        """The longest prefix of `tokens` in memory."""
        return self.memory.lookup(np.asarray(tokens, np.uint32))

    def fetch(self, tokens: Tokens) -> Fetch | None:
        """Begin to read what disk has behind what memory has; None if that is not enough to
        matter."""
        if self.disk is None or not self.disk.opened:
            return None
        self._take_late()
        hit = self.memory.lookup(tokens)
        known = hit.length if hit is not None else 0
        found = self.disk.find(tokens, known, recurrent=self.memory.recurrent)
        if not found:
            return None
        last = found[-1].head
        if last is None or min(last.end, len(tokens)) - known < FEWEST_ON_DISK:
            return None
        return Fetch(self.disk.load(found), sum(stored.size for stored in found))

    def admit(self, tokens: Tokens, fetch: Fetch) -> None:
        """Take what has come of it into memory; the rest is for a later prompt."""
        if not fetch.records.done():
            self._late = [*self._late[1 - MOST_LATE :], (tokens, fetch)]
            return
        with contextlib.suppress(Exception):
            # Whatever went wrong is a miss.
            for record in fetch.records.result():
                head = record.head
                self._take(np.concatenate([tokens[: head.start], head.tokens]), record)

    def _take_late(self) -> None:
        late, self._late = self._late, []
        for tokens, fetch in late:
            hit = self.memory.lookup(tokens)
            # What was computed meanwhile is not from disk.
            if hit is None or hit.length < len(tokens) - 1:
                self.admit(tokens, fetch)
            elif not fetch.records.done():
                self._late.append((tokens, fetch))

    def _take(self, prompt: Tokens, record: Record) -> None:
        """Put a record into the tree. prompt: all tokens up to its end."""
        assert self.disk is not None
        assert self._unpack is not None
        head = record.head
        try:
            kept, snapshot = self._unpack(record.arrays, len(head.tokens), head.end)
        except (KeyError, ValueError, TypeError) as error:
            raise DamagedRecord(f"{head.name}: {error!r}") from error

        def rows(start: int, end: int) -> R:
            if start < head.start or end != head.end:
                raise EngineError(f"prefix cache: {head.name} does not reach back to {start}")
            return kept if start == head.start else kept.split(start - head.start)[1]

        node = self.memory.insert(prompt, rows, snapshot, stable=head.snapshot)
        if node is None:
            return
        name = head.name
        for one in node.up():
            if one.start < head.start:
                break
            one.stored, one.fetched = one.stored or name, True
            one.earlier = one.earlier or not self.disk.wrote(name)
        if node.stored == name:
            node.snapshot_stored = head.snapshot

    def use(self, hit: Hit[R, S], *, kind: str, rate: float, took: float = 0.0) -> CacheUse:
        """Count a hit. rate: seconds that computing a prompt token takes; took: the hit did."""
        self.memory.use(hit)
        disk, earlier = 0, False
        for node in hit.nodes:
            if node.fetched:
                disk += min(node.end, hit.length) - node.start
                earlier |= node.earlier
            node.fetched = node.earlier = False
        if self.disk is not None:
            self.disk.use([node.stored for node in hit.nodes if node.stored])
        kind = "restart" if earlier else kind
        self._hits["disk", kind] += disk
        self._hits["memory", kind] += hit.length - disk
        saved = max(hit.length * rate - took, 0.0)
        self.saved_seconds += saved
        return CacheUse(
            memory=hit.length - disk, disk=disk, kind=kind, saved_ms=round(1e3 * saved, 3)
        )

    def insert(
        self,
        tokens: Sequence[int],
        rows: Callable[[int, int], R],
        snapshot: S | None = None,
        *,
        stable: bool = False,
        segments: Iterable[Segment] = (),
        session: str | None = None,
    ) -> Node[R, S] | None:
        """See `MemoryTier.insert`."""
        known = np.asarray(tokens, np.uint32)
        return self.memory.insert(
            known, rows, snapshot, stable=stable, segments=segments, session=session
        )

    def save(self, node: Node[R, S]) -> None:
        """Write it and what it hangs on to disk when there is time."""
        if self.disk is not None and (self.disk.state == "writing" or not self.disk.opened):
            self._mark_lost(self.disk)
            for one in reversed(list(node.up())):
                if not _saved(one):
                    self._unsaved[one] = None

    def _mark_lost(self, disk: DiskTier) -> None:
        """What the disk does not have any more has to be written again: what is behind it cannot be
        reached without."""
        if disk.losses == self._losses:
            return
        self._losses, names = disk.losses, disk.names()
        for node in self.memory.tree:
            if node.stored and node.stored not in names:
                node.stored, node.snapshot_stored = "", False

    def step(self) -> bool:
        """One bit of what can wait; False when nothing does."""
        if self.disk is None or not self.disk.opened:
            return False
        self._take_late()
        return self._warm() or self._save_one()

    def _warm(self) -> bool:
        """After a start: what was used most before comes from disk first."""
        assert self.disk is not None
        if self._hot is None:
            self._hot = self.disk.hottest(int(self.memory.budget * WARM_SHARE))[::-1]
        if not self._hot:
            return False
        if self._warming is None:
            self._warming = self.disk.load([self._hot[-1][1]])
        if not self._warming.done():
            return False
        prompt, _ = self._hot.pop()
        loading, self._warming = self._warming, None
        # What cannot be read is a miss.
        with contextlib.suppress(Exception):
            for record in loading.result():
                self._take(prompt, record)
        return True

    @property
    def behind(self) -> bool:
        """Whether too much waits to be written to leave it to idle time."""
        return len(self._unsaved) > MOST_UNSAVED

    @property
    def waits(self) -> bool:
        """Whether `step` will have more to do soon."""
        if self.disk is None or self.disk.state == "off":
            return False
        return (
            not self.disk.opened
            or self._hot is None
            or bool(self._hot or self._unsaved or self._late)
        )

    def _save_one(self) -> bool:
        assert self.disk is not None
        while self._unsaved:
            node = next(iter(self._unsaved))
            if not self.disk.takes(node.nbytes):
                if self.disk.state != "writing":
                    self._unsaved.clear()
                return False
            del self._unsaved[node]
            if node.parent is not None and not _saved(node):
                self._write(node)
                return True
        return False

    def _write(self, node: Node[R, S]) -> None:
        assert self.disk is not None
        assert self._pack is not None
        digest = PrefixHash(node.prompt())
        before, after = digest.at(node.start), digest.at(node.end)
        with_state = node.snapshot is not None
        fingerprint = self.disk.fingerprint
        head = Head(fingerprint, before, after, node.tokens.copy(), node.start, with_state)
        self.disk.offer(Record(head, self._pack(node.rows, node.snapshot), {}))
        node.stored, node.snapshot_stored = head.name, with_state

    def _spill_evicted(self, node: Node[R, S]) -> None:
        """What goes because memory is full, and was used or is long, may come back from disk."""
        self._unsaved.pop(node, None)
        if self.disk is None or _saved(node) or not self.disk.takes(node.nbytes):
            return
        wanted = node.hits or len(node.tokens) >= FEWEST_ON_DISK
        hangs = node.parent is None or node.parent.parent is None or node.parent.stored
        if wanted and hangs:
            self._write(node)

    def files_changed(self, files: Iterable[FileContent]) -> None:
        """See `MemoryTier.files_changed`."""
        self.memory.files_changed(files)

    def check_integrity(self) -> None:
        """Raise EngineError if an invariant is broken."""
        self.memory.check_integrity()

    def close(self) -> None:
        """Hand what is unsaved to the disk tier, and end it."""
        if self.disk is not None:
            while self._save_one():
                pass
            self.disk.close()

    def status(self) -> CacheStatus:
        """Counts. Cheap enough for every status."""
        memory, disk = self.memory, self.disk
        evictions = [("memory", memory.evictions)]
        status = CacheStatus(
            memory_bytes=memory.tree.nbytes,
            memory_budget=memory.budget,
            nodes=len(memory.tree),
            snapshots=memory.tree.snapshots,
            saved_seconds=round(self.saved_seconds, 3),
            shared_tokens=self.shared_tokens,
            hits=tuple(
                CacheHits(tier=tier, kind=kind, tokens=tokens)
                for (tier, kind), tokens in sorted(self._hits.copy().items())
                if tokens
            ),
        )
        facts: dict[str, Any] = {}
        if disk is not None:
            evictions.append(("disk", disk.evictions))
            facts = {
                "disk_bytes": disk.nbytes,
                "disk_budget": disk.budget,
                "disk_files": disk.files,
                "disk_folder": str(disk.folder.path),
                "disk_state": disk.state,
                "disk_detail": disk.detail,
            }
        counted = tuple(
            CacheEvictions(tier=tier, reason=reason, count=count)
            for tier, counts in evictions
            for reason, count in sorted(counts.copy().items())
            if count
        )
        return msgspec.structs.replace(status, evictions=counted, **facts)

    def report(
        self,
        action: str,
        text: Callable[[Sequence[int]], str],
        answer: Callable[[CacheReport], None],
    ) -> None:
        """See `CACHE_ACTIONS`. text: how tokens read. answer: gets the report, maybe later and on
        the disk tier's thread."""
        if action == "clear":
            self._clear(answer)
        elif action == "verify":
            self._verify(answer)
        else:
            nodes: tuple[CacheNode, ...] = ()
            if action in ("tree", "outline"):
                nodes = tuple(self._shown(text if action == "tree" else lambda _tokens: ""))
            answer(CacheReport(status=self.status(), nodes=nodes))

    def _clear(self, answer: Callable[[CacheReport], None]) -> None:
        removed = self.memory.clear()
        self._unsaved.clear()
        self._late.clear()
        self._warming = None
        if self._hot:
            self._hot.clear()

        def cleared(files: Future[int]) -> None:
            count = files.result() if files.exception() is None else 0
            answer(CacheReport(status=self.status(), removed=removed + count))

        if self.disk is not None:
            for node in self.memory.tree:
                node.stored, node.snapshot_stored = "", False
            self.disk.clear().add_done_callback(cleared)
        else:
            answer(CacheReport(status=self.status(), removed=removed))

    def _verify(self, answer: Callable[[CacheReport], None]) -> None:
        problem = ""
        try:
            self.check_integrity()
        except EngineError as error:
            problem = error.message

        def verified(found: Future[tuple[int, int]]) -> None:
            checked, damaged = found.result() if found.exception() is None else (0, 0)
            answer(
                CacheReport(status=self.status(), problem=problem, checked=checked, damaged=damaged)
            )

        if self.disk is not None:
            self.disk.verify().add_done_callback(verified)
        else:
            answer(CacheReport(status=self.status(), problem=problem))

    def _shown(self, text: Callable[[Sequence[int]], str]) -> Iterable[CacheNode]:
        pending = [(0, node) for node in self.memory.tree.root.children.values()]
        for _ in range(MOST_NODES_SHOWN):
            if not pending:
                return
            depth, node = pending.pop()
            yield CacheNode(
                depth=depth,
                start=node.start,
                end=node.end,
                bytes=node.nbytes,
                snapshot=node.snapshot is not None,
                on_disk=bool(node.stored),
                hits=node.hits,
                locked=node.locks > 0,
                demoted=self.memory.demoted(node),
                path=node.path,
                text=text(node.tokens[:24].tolist()),
            )
            pending += [(depth + 1, child) for child in node.children.values()]


def _saved(node: Node[R, S]) -> bool:
    return bool(node.stored) and (node.snapshot is None or node.snapshot_stored)
