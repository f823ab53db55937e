"""GatedDeltaNet layers on Metal: what a verify forward's kernel leaves takes the place of a re-run.

The state after a verify forward is not written by it. It is a lazy array: the next verify forward
starts from the tape and never looks at it, and whoever does look (a snapshot, a one-row step) makes
it. So a round reads and writes a layer's state once, however many rows stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.gated_delta import compute_g

from engine.targets.recurrent import RecurrentCache, window_after
from metal.chip import Chip
from metal.gated_delta import Rows, Shape, Tape, fits, gated_delta, random_rows, replay, resume
from metal.kernel import Compiler


@dataclass(frozen=True)
class MadeOf:
    """A state that is what `tape` says after `keep` rows."""

    state: mx.array
    tape: Tape
    keep: int


@dataclass(frozen=True)
class TapeKernels:
    """The kernels of `metal.gated_delta`, called as mlx-lm 0.32.2's `gated_delta_update` is."""

    chip: Chip | None
    compiler: Compiler | None = None

    def cover(self, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
        """Whether they compute what a layer asks of `gated_delta_update`."""
        if len(arguments) < 8:
            return False
        q, k, v, a, _, _, _, state, *mask = arguments
        return (
            not any(m is not None for m in mask)
            and not options.keys() - {"use_kernel"}
            and a.ndim == 3
            and q.dtype == k.dtype == v.dtype
            and (state is None or state.dtype == mx.float32)
            and fits(_shape(k, v), q.dtype, self.chip)
        )

    def update(
        self, arguments: tuple[Any, ...], before: MadeOf | None
    ) -> tuple[mx.array, mx.array, Tape, MadeOf | None]:
        """The rows' output, the state after them, their tape, and how that state came about.

        before: how the given state did, if from a tape.
        """
        q, _, v, *_, state = arguments[:8]
        rows = rows_of(arguments)
        if before is not None and before.state is state:
            y, tape = resume(before.tape, before.keep, *rows, compiler=self.compiler)
            after = self.after(tape, tape.rows)
            return y, after.state, tape, after
        if state is None:
            state = mx.zeros((q.shape[0], *v.shape[2:], q.shape[3]), mx.float32)
        y, state, tape = gated_delta(*rows, state, compiler=self.compiler)
        return y, state, tape, None

    def after(self, tape: Tape, keep: int) -> MadeOf:
        """The state after the first `keep` rows, made if it is looked at."""
        return MadeOf(replay(tape, keep, compiler=self.compiler), tape, keep)


@dataclass(frozen=True)
class KernelTape:
    """conv_input: (1, kernel - 1 + T, conv_dim). cache: the one that is rolled back."""

    kernels: TapeKernels
    cache: RecurrentCache
    conv_input: mx.array
    tape: Tape

    def replay(self, keep: int) -> tuple[mx.array, mx.array]:
        after = self.cache.made_of = self.kernels.after(self.tape, keep)
        return window_after(self.conv_input, self.tape.rows, keep), after.state


def rows_of(arguments: tuple[Any, ...]) -> Rows:
    """What the kernels take, of what `gated_delta_update` takes."""
    q, k, v, a, b, a_log, dt_bias = arguments[:7]
    return q, k, v, compute_g(a_log, a, dt_bias), mx.sigmoid(b)


def shape_of(layer: nn.Module) -> Shape:
    """Of an mlx-lm GatedDeltaNet layer."""
    return Shape(layer.num_k_heads, layer.num_v_heads, layer.head_k_dim, layer.head_v_dim)


def made_up(layer: nn.Module, dtype: mx.Dtype, rows: int) -> tuple[Any, ...]:
    """Arguments of `gated_delta_update` as the layer passes them, random but for its weights."""
    (q, k, v, gates, _), state = random_rows(shape_of(layer), dtype, rows)
    a, b = (mx.random.normal(gates.shape, key=mx.random.key(i)).astype(dtype) for i in (7, 8))
    return q, k, v, a, b, layer.A_log, layer.dt_bias, state


def _shape(k: mx.array, v: mx.array) -> Shape:
    return Shape(k.shape[2], v.shape[2], k.shape[3], v.shape[3])
