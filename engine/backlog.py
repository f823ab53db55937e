"""Events of a reply that nobody has read yet. Pure."""

from __future__ import annotations

import zlib
from collections import deque

import msgspec

from engine.messages import Chunk, Event, Prefilling

# Whoever is less than two batches behind has events as they came; packed they take longer to read.
BATCH = 64

_packing = msgspec.msgpack.Encoder()
_unpacking = msgspec.msgpack.Decoder(list[Prefilling | Chunk])


class Backlog:
    """A queue that gives back the events it was given, and costs about as much as their text does.

    A client that reads slowly may leave a whole reply here. Decoding does not wait for it: what
    the engine holds of an open reply takes a thousand times as many bytes as its text, and a place
    that others wait for. So a reply goes on to its end, or until the client is given up, and what
    is far behind is kept packed (some twelve bytes a token; an event of its own has 170).
    """

    def __init__(self) -> None:
        # In the order in which they are read; the ending is always in the last.
        self._next: deque[Event] = deque()
        self._packed: deque[bytes] = deque()
        self._latest: deque[Event] = deque()

    def __bool__(self) -> bool:
        return bool(self._next or self._packed or self._latest)

    def put(self, event: Event) -> None:
        """Take the next one; behind the ending there is none."""
        self._latest.append(event)
        if len(self._latest) >= 2 * BATCH:
            batch = [self._latest.popleft() for _ in range(BATCH)]
            self._packed.append(zlib.compress(_packing.encode(batch), 1))

    def get(self) -> Event:
        """The event that waits for longest. Raises IndexError if none does."""
        if not self._next and self._packed:
            self._next.extend(_unpacking.decode(zlib.decompress(self._packed.popleft())))
        return (self._next or self._latest).popleft()
