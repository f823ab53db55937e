"""GatedDeltaNet layers (qwen3_5, qwen3_next): rollback runs the recurrence again over what stays.

The recurrence is sequential in every implementation (mlx-lm 0.32.2 `gated_delta_update`, ops and
kernels), so the state after n rows is bit-equal to never having seen the others. On Metal, kernels
of ours may compute verify forwards and leave a tape (gated_delta_tape.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.targets.gated_delta_tape import KernelTape, MadeOf, TapeKernels
from engine.targets.recurrent import RecordedConv, RecurrentCache, Tape, window_after, with_names

RECURRENCE = "gated_delta_update"


@dataclass(frozen=True)
class GatedDeltaTape:
    """conv_input: (1, kernel - 1 + T, conv_dim). arguments: q, k, v, a, b (each (1, T, ...)),
    A_log, dt_bias, the state before, the mask, as the layer passed them."""

    recurrence: Callable[..., tuple[mx.array, mx.array]]
    conv_input: mx.array
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def replay(self, keep: int) -> tuple[mx.array, mx.array]:
        rows = self.arguments[0].shape[1]
        per_row = tuple(x[:, :keep] for x in self.arguments[:5])
        weights_and_state, mask = self.arguments[5:8], self.arguments[8:]
        kept_mask = tuple(None if m is None else m[:, :keep] for m in mask)
        _, state = self.recurrence(*per_row, *weights_and_state, *kept_mask, **self.options)
        return window_after(self.conv_input, rows, keep), state


class RecordingGatedDelta(nn.Module):
    """Runs a GatedDeltaNet layer's own code and leaves a tape in a cache that asks for one.

    kernels: what computes forwards that may be taken back, where it covers them.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        layer.conv1d = RecordedConv(layer.conv1d)
        self.layer = layer
        self.kernels: TapeKernels | None = None
        self._made_of: MadeOf | None = None
        self._tapes: list[Callable[[RecurrentCache, mx.array], Tape]] = []
        self.run_with({})

    def run_with(self, names: Mapping[str, Callable[..., Any]]) -> None:
        """From now on the layer's code sees other functions under these module-level names."""
        self._plain: Any = with_names(type(self.layer).__call__, names)
        self.recurrence = self._plain.__globals__[RECURRENCE]
        self._recorded: Any = with_names(self._plain, {RECURRENCE: self._record})

    def _record(self, *arguments: Any, **options: Any) -> tuple[mx.array, mx.array]:
        recurrence = self.recurrence
        if self.kernels is not None and self.kernels.cover(arguments, options):
            return self._record_by(self.kernels, arguments)
        self._tapes.append(
            lambda _, conv_input: GatedDeltaTape(recurrence, conv_input, arguments, options)
        )
        result: tuple[mx.array, mx.array] = recurrence(*arguments, **options)
        return result

    def _record_by(
        self, kernels: TapeKernels, arguments: tuple[Any, ...]
    ) -> tuple[mx.array, mx.array]:
        output, state, tape, made_of = kernels.update(arguments, self._made_of)

        def left_in(cache: RecurrentCache, conv_input: mx.array) -> Tape:
            cache.made_of = made_of
            return KernelTape(kernels, cache, conv_input, tape)

        self._tapes.append(left_in)
        return output, state

    def __call__(
        self, inputs: mx.array, mask: mx.array | None = None, cache: Any | None = None
    ) -> mx.array:
        output: mx.array
        made_of = None
        if isinstance(cache, RecurrentCache):
            made_of, cache.made_of = cache.made_of, None
        if not isinstance(cache, RecurrentCache) or not cache.recording:
            output = self._plain(self.layer, inputs, mask, cache)
            return output
        conv_inputs: list[mx.array] = []
        self._tapes.clear()
        self._made_of = made_of
        self.layer.conv1d.kept = conv_inputs.append
        try:
            output = self._recorded(self.layer, inputs, mask, cache)
        finally:
            self.layer.conv1d.kept = None
            self._made_of = None
        (tape,) = self._tapes
        self._tapes.clear()
        cache.tape = tape(cache, conv_inputs[0])
        return output


def record_gated_delta(layer: nn.Module) -> bool:
    """Make a decoder layer's GatedDeltaNet record; False if it has none of this kind."""
    inner = getattr(layer, "linear_attn", None)
    if inner is None or RECURRENCE not in type(inner).__call__.__globals__:
        return False
    layer.linear_attn = RecordingGatedDelta(inner)
    return True
