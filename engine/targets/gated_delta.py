"""GatedDeltaNet layers (qwen3_5, qwen3_next): rollback runs the recurrence again over what stays.

The recurrence is sequential in every implementation (mlx-lm 0.32.2 `gated_delta_update`, ops and
kernels), so the state after n rows is bit-equal to never having seen the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.targets.recurrent import RecordedConv, RecurrentCache, window_after, with_names

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
    """Runs a GatedDeltaNet layer's own code and leaves a tape in a cache that asks for one."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        layer.conv1d = RecordedConv(layer.conv1d)
        self.layer = layer
        self._arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.run_with({})

    def run_with(self, names: Mapping[str, Callable[..., Any]]) -> None:
        """From now on the layer's code sees other functions under these module-level names."""
        self._plain: Any = with_names(type(self.layer).__call__, names)
        self._recurrence = self._plain.__globals__[RECURRENCE]
        self._recorded: Any = with_names(self._plain, {RECURRENCE: self._record})

    def _record(self, *arguments: Any, **options: Any) -> tuple[mx.array, mx.array]:
        self._arguments.append((arguments, options))
        result: tuple[mx.array, mx.array] = self._recurrence(*arguments, **options)
        return result

    def __call__(
        self, inputs: mx.array, mask: mx.array | None = None, cache: Any | None = None
    ) -> mx.array:
        output: mx.array
        if not isinstance(cache, RecurrentCache) or not cache.recording:
            output = self._plain(self.layer, inputs, mask, cache)
            return output
        conv_inputs: list[mx.array] = []
        self._arguments.clear()
        self.layer.conv1d.kept = conv_inputs.append
        try:
            output = self._recorded(self.layer, inputs, mask, cache)
        finally:
            self.layer.conv1d.kept = None
        ((arguments, options),) = self._arguments
        self._arguments.clear()
        cache.tape = GatedDeltaTape(self._recurrence, conv_inputs[0], arguments, options)
        return output


def record_gated_delta(layer: nn.Module) -> bool:
    """Make a decoder layer's GatedDeltaNet record; False if it has none of this kind."""
    inner = getattr(layer, "linear_attn", None)
    if inner is None or RECURRENCE not in type(inner).__call__.__globals__:
        return False
    layer.linear_attn = RecordingGatedDelta(inner)
    return True
