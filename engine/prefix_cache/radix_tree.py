"""A radix tree over token ids: a stretch that several prompts share stands in it once.

Pure: what is kept for the tokens of a node, and for the state at its end, is opaque here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError

Tokens = NDArray[np.uint32]


class Sized(Protocol):
    """What a byte budget can be kept of."""

    @property
    def nbytes(self) -> int: ...


class Rows(Sized, Protocol):
    """Something for each of a node's tokens, such as their keys and values."""

    def split(self, at: int) -> tuple[Self, Self]:
        """What is kept for the first `at` tokens, and for the rest; neither holds the other's."""


R = TypeVar("R", bound=Rows)
S = TypeVar("S", bound=Sized)

# What a node costs besides its payload: the object, its dictionary of children, its arrays.
NODE_BYTES = 1024


@dataclass(eq=False)
class Node(Generic[R, S]):
    """tokens: those of positions [start, end). snapshot: the state that is only known at `end`.

    locks: requests that are going on behind or inside it. hits: how often one began here; resumed:
    how often with this snapshot. stable: `end` is where a segment of a prompt ends. path, content:
    the file it belongs to. sessions: how many have the end of their newest turn here or behind it.
    worth: see `MemoryTier`. stored: the name of a record on disk that has its rows, and with
    snapshot_stored its snapshot, too. fetched: it came from disk, and no request has used it since.
    earlier: another process computed it.
    """

    tokens: Tokens
    start: int
    rows: R
    parent: Node[R, S] | None
    snapshot: S | None = None
    children: dict[int, Node[R, S]] = field(default_factory=dict)
    locks: int = 0
    hits: int = 0
    resumed: int = 0
    stable: bool = False
    path: str = ""
    content: bytes = b""
    sessions: int = 0
    worth: float = 0.0
    snapshot_worth: float = 0.0
    stored: str = ""
    snapshot_stored: bool = False
    fetched: bool = False
    earlier: bool = False

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def nbytes(self) -> int:
        snapshot = self.snapshot.nbytes if self.snapshot is not None else 0
        return NODE_BYTES + int(self.tokens.nbytes) + self.rows.nbytes + snapshot

    def prompt(self) -> Tokens:
        """All tokens up to its end."""
        return np.concatenate([node.tokens for node in reversed(list(self.up()))])

    def up(self) -> Iterator[Node[R, S]]:
        """It and its ancestors, up to but without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class RadixTree(Generic[R, S]):
    """root: has no tokens and never goes. nbytes: of all nodes, and snapshots, how many have one:
    kept up to date, so that any thread can ask."""

    def __init__(self, empty: R) -> None:
        self._empty = empty
        self.clear()

    def clear(self) -> None:
        self.root: Node[R, S] = Node(np.empty(0, np.uint32), 0, self._empty, None)
        self.nbytes = self.snapshots = self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Node[R, S]]:
        """Every node but the root, parents first."""
        pending = list(self.root.children.values())
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())

    def match(self, tokens: Tokens) -> tuple[list[Node[R, S]], int]:
        """The nodes along `tokens`, the last maybe only in part, and how many tokens they cover."""
        path: list[Node[R, S]] = []
        node, length = self.root, 0
        while length < len(tokens):
            child = node.children.get(int(tokens[length]))
            if child is None:
                break
            shared = common(child.tokens, tokens[length:])
            path.append(child)
            length += shared
            if shared < len(child.tokens):
                break
            node = child
        return path, length

    def insert(self, tokens: Tokens, rows: Callable[[int, int], R]) -> Node[R, S]:
        """The node that ends where `tokens` end; made, with the rows of positions [start, end) that
        `rows` gives, or cut out of another if there is none yet."""
        path, length = self.match(tokens)
        node = path[-1] if path else self.root
        # First, since nothing is to be changed if there are none.
        behind = rows(length, len(tokens)) if length < len(tokens) else None
        if length < node.end:
            node = self.split(node, length - node.start)
        if behind is None:
            return node
        fresh = Node(tokens[length:].copy(), length, behind, node)
        node.children[int(tokens[length])] = fresh
        self.nbytes += fresh.nbytes
        self._count += 1
        return fresh

    def split(self, node: Node[R, S], at: int) -> Node[R, S]:
        """Cut a node in two and return the upper one, which has the first `at` tokens."""
        parent = node.parent
        assert parent is not None
        assert 0 < at < len(node.tokens)
        before = node.nbytes
        upper_rows, node.rows = node.rows.split(at)
        upper = Node(
            node.tokens[:at].copy(),
            node.start,
            upper_rows,
            parent,
            locks=node.locks,
            hits=node.hits,
            path=node.path,
            content=node.content,
            sessions=node.sessions,
            worth=node.worth,
            stored=node.stored,
            fetched=node.fetched,
            earlier=node.earlier,
        )
        node.tokens, node.start, node.parent = node.tokens[at:].copy(), upper.end, upper
        upper.children[int(node.tokens[0])] = node
        parent.children[int(upper.tokens[0])] = upper
        self.nbytes += upper.nbytes + node.nbytes - before
        self._count += 1
        return upper

    def set_snapshot(self, node: Node[R, S], snapshot: S | None) -> None:
        """Keep the state at a node's end, or drop it."""
        before = node.nbytes
        self.snapshots += (snapshot is not None) - (node.snapshot is not None)
        node.snapshot = snapshot
        self.nbytes += node.nbytes - before

    def remove(self, node: Node[R, S]) -> None:
        """Take out a leaf."""
        if node.children or node.locks or node.parent is None:
            raise EngineError("prefix cache: only a leaf that is not in use can be removed")
        del node.parent.children[int(node.tokens[0])]
        node.parent = None
        self.snapshots -= node.snapshot is not None
        self.nbytes -= node.nbytes
        self._count -= 1

    def check_integrity(self) -> None:
        """Raise EngineError if an invariant is broken."""
        nbytes = count = snapshots = 0
        for node in self:
            nbytes, count = nbytes + node.nbytes, count + 1
            snapshots += node.snapshot is not None
            parent = node.parent
            if not len(node.tokens) or parent is None or parent.end != node.start:
                raise EngineError(f"prefix cache: a node at {node.start} is not behind its parent")
            if parent.children.get(int(node.tokens[0])) is not node:
                raise EngineError(f"prefix cache: a node at {node.start} is not its parent's child")
            if parent is not self.root and parent.locks < node.locks:
                raise EngineError(f"prefix cache: a node at {parent.start} may go while in use")
        if (nbytes, count, snapshots) != (self.nbytes, self._count, self.snapshots):
            raise EngineError(
                f"prefix cache: {count} nodes of {nbytes} bytes and {snapshots} snapshots, counted "
                f"{self._count} of {self.nbytes} and {self.snapshots}"
            )


def common(one: Tokens, other: Tokens) -> int:
    """Length of the common prefix."""
    shorter = min(len(one), len(other))
    differs = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differs[0]) if len(differs) else shorter
