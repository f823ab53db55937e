"""What is in the cache's folder, and what of it is worth most. Pure: no file is touched here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.prefix_cache.radix_tree import Tokens, common
from engine.prefix_cache.record import Head, PrefixHash


@dataclass
class Stored:
    """A record in the folder. size: of the file. head: None if it is another model's. ours: this
    process computed it. worth: as in `MemoryTier`."""

    name: str
    size: int
    head: Head | None
    ours: bool = False
    hits: int = 0
    worth: float = 0.0


class DiskIndex:
    """Records by where they begin. Not thread-safe."""

    def __init__(self) -> None:
        self._stored: dict[str, Stored] = {}
        self._starts: dict[int, dict[str, Stored]] = {}
        self._behind: Counter[str] = Counter()
        self.age = 0.0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def __iter__(self) -> Iterator[Stored]:
        return iter(self._stored.values())

    def add(self, stored: Stored) -> None:
        """Know of a record, in place of one with the same name."""
        self.discard(stored.name)
        self._stored[stored.name] = stored
        self.nbytes += stored.size
        if stored.head is not None:
            self._starts.setdefault(stored.head.start, {})[stored.name] = stored
            self._behind[stored.head.before] += 1
        self._appraise(stored)

    def discard(self, name: str) -> None:
        """Forget a record; unknown ones are ignored."""
        stored = self._stored.pop(name, None)
        if stored is None:
            return
        self.nbytes -= stored.size
        if (head := stored.head) is not None:
            here = self._starts[head.start]
            del here[name]
            if not here:
                del self._starts[head.start]
            self._behind[head.before] -= 1
            if not self._behind[head.before]:
                del self._behind[head.before]

    def use(self, name: str) -> None:
        """A request went on from this record."""
        if (stored := self._stored.get(name)) is not None:
            stored.hits += 1
            self._appraise(stored)

    def claim(self, name: str) -> bool:
        """This process computed what is there under that name; False if nothing is."""
        if (stored := self._stored.get(name)) is not None:
            stored.ours = True
        return stored is not None

    def wrote(self, name: str) -> bool:
        """Whether this process computed that record."""
        stored = self._stored.get(name)
        return stored is not None and stored.ours

    def _appraise(self, stored: Stored) -> None:
        tokens = len(stored.head.tokens) if stored.head is not None else 1
        stored.worth = self.age + (1 + stored.hits) * tokens / max(stored.size, 1)

    def find(self, tokens: Tokens, reach: int, *, recurrent: bool) -> list[Stored]:
        """The records that, behind the first `reach` tokens, which are known, make a longer prefix
        of `tokens` known; in order. recurrent: it has to end at a snapshot."""
        found: list[Stored] = []
        usable, known, digest = 0, reach, PrefixHash(tokens)
        for start in sorted(self._starts):
            if start > known or start > len(tokens):
                break
            before, rest = digest.at(start), tokens[start:]
            for stored in self._starts[start].values():
                head = stored.head
                assert head is not None
                if head.before != before:
                    continue
                shared = common(head.tokens, rest)
                whole = shared == len(head.tokens)
                state = recurrent and whole and head.snapshot and head.end > reach
                if start + shared > known or state:
                    found.append(stored)
                    known = max(known, start + shared)
                    if state:
                        usable = len(found)
        return found[:usable] if recurrent else found

    def hottest(self, most_bytes: int) -> list[tuple[Tokens, Stored]]:
        """Records of this model that hang together from the first token on, each with all the
        tokens up to its end, parents first, what is worth most first."""
        chosen: list[tuple[Tokens, Stored]] = []
        empty = np.empty(0, np.uint32)
        pending = [(empty, stored) for stored in self._children(empty, -1)]
        while pending and most_bytes > 0:
            pending.sort(key=lambda p: p[1].worth)
            tokens, stored = pending.pop()
            head = stored.head
            assert head is not None
            tokens = np.concatenate([tokens[: head.start], head.tokens])
            most_bytes -= stored.size
            if most_bytes < 0:
                break
            chosen.append((tokens, stored))
            seen = {one.name for _, one in (*chosen, *pending)}
            pending += [
                (tokens, child)
                for child in self._children(tokens, head.start)
                if child.name not in seen
            ]
        return chosen

    def _children(self, tokens: Tokens, after: int) -> list[Stored]:
        """Records that begin behind `after`, inside or at the end of `tokens`."""
        digest, found = PrefixHash(tokens), list[Stored]()
        for start in sorted(s for s in self._starts if after < s <= len(tokens)):
            before = digest.at(start)
            found += [
                stored
                for stored in self._starts[start].values()
                if stored.head is not None and stored.head.before == before
            ]
        return found

    def victim(self) -> Stored | None:
        """What should go next: a record that no other is behind, worth least."""
        free = [s for s in self if s.head is None or not self._behind[s.head.after]]
        return min(free or list(self), key=lambda s: s.worth, default=None)

    def evict(self, stored: Stored) -> None:
        self.age = max(self.age, stored.worth)
        self.discard(stored.name)

    def uses(self) -> dict[str, Any]:
        """What the next process should know, as plain JSON types."""
        return {"age": self.age, "hits": {s.name: s.hits for s in self if s.hits}}

    def recall(self, uses: Mapping[str, Any]) -> None:
        """Take over what an earlier process knew; what cannot be read is ignored."""
        hits = uses.get("hits")
        for name, count in (hits if isinstance(hits, dict) else {}).items():
            stored = self._stored.get(name)
            if stored is not None and isinstance(count, int):
                stored.hits = min(max(count, stored.hits, 0), 1000)
                self._appraise(stored)
