"""What a DFlash drafter remembers of the committed text, by absolute position.

mlx-lm's rotating cache does not fit: its rows are out of order after a one-row append, and its
offset cannot start behind rows that were never written. Here rows lie in temporal order, the
oldest are dropped by moving the rest to the front once the buffer is full, and rows of a draft can
stand behind the committed ones without becoming part of them, so nothing is ever rolled back.
"""

from __future__ import annotations

import mlx.core as mx

# Rows by which a full buffer grows.
STEP = 256


class PositionedRows:
    """Rows of consecutive positions, oldest first; the last `reach` of them are kept.

    Arrays are (..., rows, width); leading sizes, width and dtype are those of the first append.
    reach: None keeps all. [start, end): the positions held.
    """

    def __init__(self, reach: int | None, start: int = 0) -> None:
        self._reach = reach
        self.start = self.end = start
        self._origin = start
        self._buffer: mx.array | None = None

    def __len__(self) -> int:
        return self.end - self.start

    def append(self, rows: mx.array) -> None:
        """Add the rows of positions [end, end + n), n at most `reach`."""
        self._write(rows)
        self.end += rows.shape[-2]
        if self._reach is not None:
            self.start = max(self.start, self.end - self._reach)

    def skip(self, count: int) -> None:
        """Go on `count` positions further, without rows for those in between or before."""
        if count:
            self.start = self.end = self.end + count

    def view(self, start: int, end: int) -> mx.array:
        """The rows of positions [start, end), all of which must be held."""
        if not self.start <= start <= end <= self.end or self._buffer is None:
            raise ValueError(f"rows [{start}, {end}) of [{self.start}, {self.end})")
        return self._buffer[..., start - self._origin : end - self._origin, :]

    def followed_by(self, rows: mx.array) -> mx.array:
        """The rows held and `rows` behind them, which do not become part of them."""
        self._write(rows)
        assert self._buffer is not None
        end = self.end - self._origin + rows.shape[-2]
        return self._buffer[..., self.start - self._origin : end, :]

    def room(self, count: int) -> tuple[mx.array, int] | None:
        """The buffer with room for `count` rows behind `end`, and where the first of them goes;
        None before there are any rows. Who writes there says so by `grew`."""
        if self._buffer is None:
            return None
        if self.end - self._origin + count > self._buffer.shape[-2]:
            self._move(count, self._buffer)
        return self._buffer, self.end - self._origin

    def grew(self, count: int) -> None:
        """`count` rows were written behind `end` and are committed. Only where all are kept."""
        self.end += count

    @property
    def oldest(self) -> int:
        """Where in the buffer the row of `start` is."""
        return self.start - self._origin

    def arrays(self) -> list[mx.array]:
        """What to evaluate."""
        return [] if self._buffer is None else [self._buffer]

    def _write(self, rows: mx.array) -> None:
        """Put rows into the buffer behind `end`, after making room for them."""
        at, count = self.end - self._origin, rows.shape[-2]
        if self._buffer is None or at + count > self._buffer.shape[-2]:
            self._move(count, rows)
            at = self.end - self._origin
        assert self._buffer is not None
        self._buffer[..., at : at + count, :] = rows

    def _move(self, count: int, like: mx.array) -> None:
        """A fresh buffer with the rows held at its front and room for `count` and `STEP` more."""
        held = len(self)
        room = -(-(held + count) // STEP) * STEP + STEP
        *leading, _, width = like.shape
        fresh = mx.zeros((*leading, room, width), dtype=like.dtype)
        if held and self._buffer is not None:
            fresh[..., :held, :] = self.view(self.start, self.end)
        self._buffer, self._origin = fresh, self.start


class ContextCache:
    """Keys and values of the committed rows of one drafter layer, (1, heads, rows, head_dim).

    Keys are rotated by their absolute positions already. reach: rows the layer sees; None for all.
    """

    def __init__(self, reach: int | None, start: int = 0) -> None:
        self.reach = reach
        self._keys = PositionedRows(reach, start)
        self._values = PositionedRows(reach, start)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self._keys.end

    def skip(self, count: int) -> None:
        """Go on `count` positions further, without rows for those in between or before."""
        self._keys.skip(count)
        self._values.skip(count)

    def append(self, keys: mx.array, values: mx.array) -> None:
        """Commit the keys and values of positions [end, end + n)."""
        self._keys.append(keys)
        self._values.append(values)

    def followed_by(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """All keys and values with those of a block behind them; the block is not committed."""
        return self._keys.followed_by(keys), self._values.followed_by(values)

    def room(self, count: int) -> tuple[mx.array, mx.array, int] | None:
        """As `PositionedRows.room`, of keys and values."""
        keys, values = self._keys.room(count), self._values.room(count)
        return None if keys is None or values is None else (keys[0], values[0], keys[1])

    def grew(self, count: int) -> None:
        """As `PositionedRows.grew`."""
        self._keys.grew(count)
        self._values.grew(count)

    @property
    def oldest(self) -> int:
        """Where in the buffers the first row is that is still held."""
        return self._keys.oldest

    def arrays(self) -> list[mx.array]:
        """What to evaluate."""
        return self._keys.arrays() + self._values.arrays()
