"""What of the radix tree stays in memory: within a byte budget, by what computing it again costs.

Every node has a worth: GreedyDual-Size-Frequency (Cherkasova, HP Labs 1998), `age + hits x cost /
bytes`, where cost is the time to compute its tokens again and age the worth of the last one that
went. So what is large, cheap or was used once goes before what a session comes back to, and what is
not used any more ages. There is no clock in it that could jump.

A leaf goes as a whole. The snapshot of an inner node goes alone: its tokens are still on the way to
others, and only a prompt that branches off right there would miss it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic

from engine.errors import EngineError
from engine.prefix_cache.messages import FileContent, Segment
from engine.prefix_cache.radix_tree import Node, R, RadixTree, S, Tokens

# Attention makes a token this far into a prompt about twice as slow as the first.
SLOPE = 8192
# The end of a segment (system and tools, a file, a message) is where other prompts branch off.
STABLE_WEIGHT = 2.0
# An inner snapshot is of use only to a prompt that branches off right there.
INNER_WEIGHT = 0.25
# A session that has a name will come back: as if its newest turn had been used so often more.
SESSION_USES = 2.0
MOST_SESSIONS = 256
# What is left of the worth of a node whose file holds something else by now.
DEMOTED_WEIGHT = 1 / 16
# Room that is made at once, since looking for what to drop takes a look at every node.
SLACK = 0.03
# The state of files that are remembered, to know a revert.
MOST_FILES = 50_000


@dataclass(frozen=True)
class Hit(Generic[R, S]):
    """The first `length` tokens are known, in the rows of `nodes`, the last maybe only in part.

    snapshot: what was kept at `length`; a model that has only full attention needs none.
    """

    length: int
    nodes: tuple[Node[R, S], ...]
    snapshot: S | None


class MemoryTier(Generic[R, S]):
    """budget: bytes. recurrent: whether the model has state that is only known at snapshots.
    granularity: hits are cut to multiples of it (see `PrefixReuse`). empty: the rows of no tokens.
    on_evict: sees every node that is about to go because of the budget.
    """

    def __init__(
        self,
        budget: int,
        *,
        recurrent: bool,
        empty: R,
        granularity: int = 1,
        on_evict: Callable[[Node[R, S]], None] = lambda node: None,
    ) -> None:
        self.budget = budget
        self.recurrent = recurrent
        self.granularity = granularity
        self.tree: RadixTree[R, S] = RadixTree(empty)
        self.evictions: Counter[str] = Counter()
        self._on_evict = on_evict
        self._age = 0.0
        self._files: dict[str, bytes] = {}
        self._locked: Counter[Node[R, S]] = Counter()
        # Where each session's newest turn ends; the one that was extended last comes last.
        self._sessions: dict[str, Node[R, S]] = {}

    def lookup(self, tokens: Tokens) -> Hit[R, S] | None:
        """The longest usable prefix of `tokens`, and nothing is changed."""
        path, length = self.tree.match(tokens)
        if not self.recurrent:
            length -= length % self.granularity
            kept = tuple(node for node in path if node.start < length)
            # It may have logits, where it has no state.
            at_end = path[-1].snapshot if path and path[-1].end == length else None
            return Hit(length, kept, at_end) if length else None
        while path:
            node = path[-1]
            usable = node.end <= length and node.end % self.granularity == 0
            if usable and node.snapshot is not None:
                return Hit(node.end, tuple(path), node.snapshot)
            path.pop()
        return None

    def use(self, hit: Hit[R, S]) -> None:
        """A request goes on from here: its whole path is worth more now."""
        for node in hit.nodes:
            node.hits += 1
            self._appraise(node)
        if hit.snapshot is not None:
            hit.nodes[-1].resumed += 1
            self._appraise(hit.nodes[-1])

    def insert(
        self,
        tokens: Tokens,
        rows: Callable[[int, int], R],
        snapshot: S | None = None,
        *,
        stable: bool = False,
        segments: Iterable[Segment] = (),
        session: str | None = None,
    ) -> Node[R, S] | None:
        """Keep `tokens`, and the state at their end. None if that is not worth the room: what is
        new has to be worth more than what would go for it. session: whose newest turn this is."""
        if not len(tokens):
            return None
        known = len(self.tree)
        node = self.tree.insert(tokens, rows)
        if len(self.tree) > known:
            self._tag(node, segments)
        if snapshot is not None:
            self.tree.set_snapshot(node, snapshot)
        node.stable |= stable
        if session is not None:
            self._extend(session, node)
        for one in (node, *node.children.values()):
            self._appraise(one)
        if node.nbytes > self.budget and not node.children and not node.locks:
            # Nothing else has to go for what can never fit.
            self.evictions["budget"] += 1
            self._remove(node)
        self.evict()
        return node if node.parent is not None else None

    def _extend(self, session: str, node: Node[R, S]) -> None:
        """A session's newest turn ends here now."""
        self._end(session)
        self._sessions[session] = node
        for one in node.up():
            one.sessions += 1
            self._appraise(one)
        while len(self._sessions) > MOST_SESSIONS:
            self._end(next(iter(self._sessions)))

    def _end(self, session: str) -> None:
        """Its turn ends nowhere any more."""
        before = self._sessions.pop(session, None)
        for one in before.up() if before is not None else ():
            one.sessions -= 1
            self._appraise(one)

    def _remove(self, node: Node[R, S]) -> None:
        if node.sessions:
            for session in [name for name, end in self._sessions.items() if end is node]:
                self._end(session)
        self.tree.remove(node)

    def _tag(self, node: Node[R, S], segments: Iterable[Segment]) -> None:
        """Which file the end of a new node belongs to."""
        for segment in segments:
            if node.start < segment.end and node.end <= segment.end:
                node.path, node.content = segment.path, segment.content
                return

    def lock(self, node: Node[R, S]) -> None:
        """Keep a node, and with it its ancestors, until `unlock`."""
        self._locked[node] += 1
        for one in node.up():
            one.locks += 1

    def unlock(self, node: Node[R, S]) -> None:
        """Take back one `lock`."""
        if self._locked[node] <= 0:
            raise EngineError("prefix cache: a node was unlocked that is not locked")
        self._locked[node] -= 1
        if not self._locked[node]:
            del self._locked[node]
        for one in node.up():
            one.locks -= 1
        self.evict()

    def evict(self) -> None:
        """Once the budget is exceeded, drop what is worth least until there is some room again, or
        the rest is in use."""
        if self.tree.nbytes <= self.budget:
            return
        goal = int(self.budget * (1 - SLACK))
        while self.tree.nbytes > goal:
            candidates = self._candidates()
            if not candidates:
                return
            candidates.sort(key=lambda c: c[0])
            for worth, whole, node in candidates:
                if self.tree.nbytes <= goal:
                    break
                self._drop(node, worth, whole=whole)

    def _candidates(self) -> list[tuple[float, bool, Node[R, S]]]:
        """What may go: its worth, whether as a whole, and the node."""
        candidates: list[tuple[float, bool, Node[R, S]]] = []
        for node in self.tree:
            if not node.children and not node.locks:
                candidates.append((node.worth, True, node))
            elif node.snapshot is not None and node.children:
                candidates.append((node.snapshot_worth, False, node))
        return candidates

    def _drop(self, node: Node[R, S], worth: float, *, whole: bool) -> None:
        self._age = max(self._age, worth)
        self._on_evict(node)
        self.evictions["budget"] += 1
        if whole:
            self._remove(node)
        else:
            self.tree.set_snapshot(node, None)

    def files_changed(self, files: Iterable[FileContent]) -> None:
        """Demote the nodes of these files that hold something else, raise those that hold it."""
        changed = {file.path: file.content for file in files}
        self._files.update(changed)
        while len(self._files) > MOST_FILES:
            self._files.pop(next(iter(self._files)))
        for node in self.tree:
            if node.path in changed:
                self._appraise(node)

    def demoted(self, node: Node[R, S]) -> bool:
        """Whether its file holds something else by now."""
        return bool(node.path) and self._files.get(node.path, node.content) != node.content

    def _appraise(self, node: Node[R, S]) -> None:
        weight = DEMOTED_WEIGHT if self.demoted(node) else 1.0
        age = 0.0 if weight < 1.0 else self._age
        gap = node.end - self._known_before(node)
        cost = gap * (1 + node.start / SLOPE)
        node.worth = age + weight * self._expected(node) * cost / node.nbytes
        if node.snapshot is not None:
            # That the next turn began at it is over; a second time tells that others will.
            often = node.resumed if node.resumed > 1 else INNER_WEIGHT
            likely = often * (STABLE_WEIGHT if node.stable else 1.0)
            node.snapshot_worth = age + weight * likely * cost / max(node.snapshot.nbytes, 1)

    def _expected(self, node: Node[R, S]) -> float:
        """How often it was used, and once more; the newest turn of a session as often as those
        before it were, shared with whatever else is behind them."""
        parent = node.parent
        before = parent.hits / len(parent.children) if parent is not None and parent.hits else 0.0
        return 1 + node.hits + before + (SESSION_USES if node.sessions else 0.0)

    def _known_before(self, node: Node[R, S]) -> int:
        """Where a request would begin if this node were not there."""
        parent = node.parent
        while self.recurrent and parent is not None and parent.snapshot is None:
            parent = parent.parent
        return parent.end if parent is not None else 0

    def clear(self) -> int:
        """Forget all that is not in use; how many nodes that were."""
        before = len(self.tree)
        while leaves := [n for n in self.tree if not n.children and not n.locks]:
            for node in leaves:
                self._remove(node)
        self.evictions["cleared"] += before - len(self.tree)
        return before - len(self.tree)

    def check_integrity(self) -> None:
        """Raise EngineError if an invariant is broken."""
        self.tree.check_integrity()
        if self.tree.nbytes > self.budget and self._candidates():
            raise EngineError(f"prefix cache: {self.tree.nbytes} bytes over budget {self.budget}")
        locks: Counter[int] = Counter()
        for node, count in self._locked.items():
            for one in node.up():
                locks[id(one)] += count
        sessions: Counter[int] = Counter()
        for end in self._sessions.values():
            for one in end.up():
                sessions[id(one)] += 1
        for node in self.tree:
            if node.sessions != sessions[id(node)]:
                raise EngineError(
                    f"prefix cache: a node at {node.start} has {node.sessions} sessions, "
                    f"{sessions[id(node)]} are known"
                )
            if node.locks != locks[id(node)]:
                raise EngineError(
                    f"prefix cache: a node at {node.start} has {node.locks} locks, "
                    f"{locks[id(node)]} are held"
                )
