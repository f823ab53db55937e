"""Caches of recurrent layers whose rows can be taken back, and how a layer's own code is recorded.

A recurrent state cannot be trimmed. Instead a layer records what its recurrence did in a forward
that may be taken back, and rollback restores the state after the rows that stay.

The layer's own code is what runs, so its numbers are mlx-lm's. Two things are intercepted per
instance and no class is touched: its `conv1d` is wrapped in a module that keeps its input, and the
method that calls the recurrence is executed with that one name bound to a recording function.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache


class Tape(Protocol):
    """What one layer did in one forward of T rows."""

    def replay(self, keep: int) -> tuple[mx.array, mx.array]:
        """The convolution window and the recurrent state after only the first `keep` rows."""


class RecurrentCache(ArraysCache):
    """mlx-lm's cache of one recurrent layer: [0] the convolution window, [1] the state.

    recording: whether the next forward has to leave a tape (set by the target).
    made_of: what the state was made of, for a forward that can start from there.
    """

    def __init__(self) -> None:
        super().__init__(size=2)
        self.recording = False
        self.tape: Tape | None = None
        self.made_of: Any = None

    def take_back(self, rows: int, keep: int) -> None:
        """Keep the first `keep` of the last forward's `rows`."""
        if self.tape is None:
            raise ValueError(f"no tape of the {rows} rows to take back")
        self[0], self[1] = self.tape.replay(keep)
        self.tape = None


class RecordedConv(nn.Module):
    """A layer's convolution that can keep its input: the old window and the rows behind it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.kept: Callable[[mx.array], None] | None = None

    def __call__(self, x: mx.array) -> mx.array:
        if self.kept is not None:
            self.kept(x)
        output: mx.array = self.inner(x)
        return output


def window_after(conv_input: mx.array, rows: int, keep: int) -> mx.array:
    """The convolution window after `keep` of the `rows` at the end of `conv_input` (1, T, C)."""
    window = conv_input.shape[1] - rows
    return mx.contiguous(conv_input[:, keep : keep + window])


def with_names(function: Any, names: Mapping[str, Callable[..., Any]]) -> types.FunctionType:
    """The same code as `function`, seeing other things under these module-level names."""
    return types.FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
