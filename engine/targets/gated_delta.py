"""GatedDeltaNet hybrids (qwen3_5, qwen3_next): recurrent layers whose rows can be taken back.

A recurrent state cannot be trimmed. Instead each layer records what its recurrence consumed in the
last multi-row forward, and rollback runs the same recurrence again over the rows that stay
(reference: mlx-lm 0.32.2 `gated_delta_update`; the recurrence is sequential, so the result is
bit-equal to never having seen the rest).

The layer's own code is what runs. Two of its inputs are intercepted per instance, no class is
touched: its `conv1d` is wrapped in a module that keeps its input, and its `__call__` is executed
with the name `gated_delta_update` bound to a function that keeps its arguments.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache

from engine.errors import ModelError
from engine.targets.target import Caches, Target

# Every mlx-lm GatedDeltaNet calls its recurrence by this module-level name.
RECURRENCE = "gated_delta_update"


@dataclass(frozen=True)
class Tape:
    """What one layer's recurrence consumed in one forward of T rows.

    conv_input: (1, kernel - 1 + T, conv_dim), the old window and the raw rows behind it.
    arguments: q, k, v, a, b (each (1, T, ...)), A_log, dt_bias, the state before, the mask.
    """

    recurrence: Callable[..., tuple[mx.array, mx.array]]
    conv_input: mx.array
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def replay(self, keep: int) -> tuple[mx.array, mx.array]:
        """The convolution window and the state after only the first `keep` rows."""
        rows = self.arguments[0].shape[1]
        per_row = tuple(x[:, :keep] for x in self.arguments[:5])
        weights_and_state, mask = self.arguments[5:8], self.arguments[8:]
        kept_mask = tuple(None if m is None else m[:, :keep] for m in mask)
        _, state = self.recurrence(*per_row, *weights_and_state, *kept_mask, **self.options)
        window = self.conv_input.shape[1] - rows
        return mx.contiguous(self.conv_input[:, keep : keep + window]), state


class RecurrentCache(ArraysCache):
    """mlx-lm's cache of one recurrent layer ([0] the convolution window, [1] the state) that also
    holds the tape of the last forward with more than one row."""

    def __init__(self) -> None:
        super().__init__(size=2)
        self.tape: Tape | None = None

    def take_back(self, rows: int, keep: int) -> None:
        """Keep the first `keep` of the last forward's `rows`."""
        if self.tape is None:
            raise ValueError(f"no tape of the {rows} rows to take back")
        self[0], self[1] = self.tape.replay(keep)
        self.tape = None


class _Recorded(nn.Module):
    """Calls a module and keeps its last input, outside the module's parameters."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.kept: Callable[[mx.array], None] | None = None

    def __call__(self, x: mx.array) -> mx.array:
        if self.kept is not None:
            self.kept(x)
        output: mx.array = self.inner(x)
        return output


class RecordingGatedDelta(nn.Module):
    """Runs a GatedDeltaNet layer's own code and, for more than one row, leaves a `Tape` in its
    cache."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        layer.conv1d = _Recorded(layer.conv1d)
        self.layer = layer
        code = type(layer).__call__
        if RECURRENCE not in code.__globals__:
            raise ModelError(
                f"{type(layer).__module__} calls no {RECURRENCE}: this mlx-lm version is not "
                "supported; install one that pyproject.toml allows"
            )
        self._recurrence = code.__globals__[RECURRENCE]
        self._arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._forward = types.FunctionType(
            code.__code__,
            {**code.__globals__, RECURRENCE: self._record},
            code.__name__,
            code.__defaults__,
            code.__closure__,
        )

    def _record(self, *arguments: Any, **options: Any) -> tuple[mx.array, mx.array]:
        self._arguments.append((arguments, options))
        result: tuple[mx.array, mx.array] = self._recurrence(*arguments, **options)
        return result

    def __call__(
        self, inputs: mx.array, mask: mx.array | None = None, cache: Any | None = None
    ) -> mx.array:
        output: mx.array
        if not isinstance(cache, RecurrentCache) or inputs.shape[1] == 1:
            if isinstance(cache, RecurrentCache):
                cache.tape = None
            output = self.layer(inputs, mask, cache)
            return output
        conv_inputs: list[mx.array] = []
        self._arguments.clear()
        self.layer.conv1d.kept = conv_inputs.append
        try:
            output = self._forward(self.layer, inputs, mask, cache)
        finally:
            self.layer.conv1d.kept = None
        ((arguments, options),) = self._arguments
        self._arguments.clear()
        cache.tape = Tape(self._recurrence, conv_inputs[0], arguments, options)
        return output


class GatedDeltaTarget(Target):
    """A hybrid of GatedDeltaNet and attention layers."""

    def __init__(self, model: nn.Module, family: str) -> None:
        for layer in model.layers:
            if _is_gated_delta(layer):
                layer.linear_attn = RecordingGatedDelta(layer.linear_attn)
        super().__init__(model, family)

    def new_caches(self) -> Caches:
        return [RecurrentCache() if type(c) is ArraysCache else c for c in super().new_caches()]

    def prefill(self, tokens: Any, caches: Caches) -> None:
        super().prefill(tokens, caches)
        for cache in caches:
            # A prompt chunk is never taken back; its tape would only hold memory.
            if isinstance(cache, RecurrentCache):
                cache.tape = None


def _is_gated_delta(layer: nn.Module) -> bool:
    inner = getattr(layer, "linear_attn", None)
    return inner is not None and RECURRENCE in type(inner).__call__.__globals__


def has_gated_delta_layers(model: nn.Module) -> bool:
    return any(_is_gated_delta(layer) for layer in getattr(model, "layers", ()))
