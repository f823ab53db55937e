"""Keys and values of a sliding-window layer, in an order that depends on positions only.

mlx-lm's RotatingKVCache writes one-row steps into a ring and multi-row steps in temporal order, so
the two sum in different orders, and what a ring overwrote cannot be taken back. Here rows stand in
temporal order, the oldest are dropped only in whole blocks of absolute positions, and the mask
hides what lies outside the window: a row meets the same keys in the same places however many rows
it came with.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import KVCache

# A multiple of every lane width and split that the attention kernels use.
BLOCK = 256


class WindowCache(KVCache):
    """max_size: the window in tokens (a row sees itself and max_size - 1 before it).

    offset: tokens seen. start: absolute position of the first row of the buffer.
    """

    step = BLOCK
    # Set by KVCache; keys and values are None until the first rows arrive.
    offset: int
    keys: Any
    values: Any

    def __init__(self, max_size: int) -> None:
        super().__init__()
        self.max_size = max_size
        self.start = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append rows, (1, heads, rows, width) each; return all that a new row can see."""
        self._drop()
        # KVCache counts buffer rows in `offset`; around it the offset is absolute.
        self.offset -= self.start
        fetched: tuple[mx.array, mx.array] = super().update_and_fetch(keys, values)
        self.offset += self.start
        return fetched

    def _drop(self) -> None:
        """Forget whole blocks that no later row can see."""
        oldest = max(0, self.offset - (self.max_size - 1))
        rows = oldest // BLOCK * BLOCK - self.start
        if rows > 0 and self.keys is not None:
            self.keys = mx.contiguous(self.keys[..., rows:, :])
            self.values = mx.contiguous(self.values[..., rows:, :])
            self.start += rows

    def make_mask(
        self, N: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | str | None:
        """The mask for N rows about to be appended, as mlx-lm's attention takes it."""
        window = min(window_size or self.max_size, self.max_size)
        # What `_drop` will leave in front of the new rows.
        oldest = max(0, self.offset - (self.max_size - 1)) // BLOCK * BLOCK
        before = self.offset - max(self.start, oldest)
        if before + N > window or (return_array and N > 1):
            mask: mx.array = create_causal_mask(N, before, window_size=window)
            return mask
        return "causal" if N > 1 else None

    def held(self) -> tuple[mx.array | None, ...]:
        """The rows of the buffer, for `resume`."""
        if self.keys is None:
            return (None, None)
        count = self.offset - self.start
        return self.keys[..., :count, :], self.values[..., :count, :]

    def resume(self, arrays: tuple[mx.array | None, ...], length: int) -> None:
        """Become what `held` saw at `length` tokens."""
        keys, values = arrays
        if keys is not None and values is not None:
            # Slices are objects of their own; KVCache writes into its object in place.
            self.keys, self.values = keys[..., :, :], values[..., :, :]
            self.offset, self.start = length, length - keys.shape[2]

    def visible(self) -> tuple[mx.array, mx.array]:
        """The rows that the next one can see, besides itself."""
        held = self.offset - self.start
        first = max(0, held - (self.max_size - 1))
        return self.keys[..., first:held, :], self.values[..., first:held, :]

    def size(self) -> int:
        return min(self.offset, self.max_size)
