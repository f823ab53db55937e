"""The residual stream after chosen layers, for drafters that read it.

A tapped layer is wrapped in a module that keeps the layer's output and passes everything else
through, so the model's own loop, masks and caches stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.errors import ModelError


class _Slot:
    """Holds an array where nn.Module would take it for a weight."""

    hidden: mx.array | None = None


class TappedLayer(nn.Module):
    """Runs a decoder layer and keeps its output: the residual stream behind it.

    begins: the device begins with what is known by then, while the rest of the forward is built.
    """

    def __init__(self, inner: nn.Module, begins: bool) -> None:
        super().__init__()
        self.inner = inner
        self._begins = begins
        self._slot = _Slot()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        output = self.inner(*arguments, **options)
        # Gemma 4 layers return (hidden, keys and values, offset).
        hidden: mx.array = output[0] if isinstance(output, tuple) else output
        self._slot.hidden = hidden
        if self._begins:
            # MLX gives it no types.
            mx.async_eval(hidden)  # type: ignore[no-untyped-call]
        return output

    def __getattr__(self, name: str) -> Any:
        # The model's loop asks layers what kind they are.
        if "inner" in self and name != "inner":
            return getattr(self["inner"], name)
        return super().__getattr__(name)

    def take(self) -> mx.array:
        """The last output, (1, T, H), once."""
        hidden, self._slot.hidden = self._slot.hidden, None
        if hidden is None:
            raise ValueError("no forward since the tap was last read")
        return hidden


class Taps:
    """layer_ids: 0-based; the rows are in this order."""

    def __init__(self, model: nn.Module, layer_ids: Sequence[int]) -> None:
        layers = _layer_list(model)
        outside = [i for i in layer_ids if not 0 <= i < len(layers)]
        if outside:
            raise ModelError(f"target_layer_ids: the target has no layer {outside[0]}")
        self._layers = layers
        self._tapped: list[TappedLayer] = []
        for index in layer_ids:
            layers[index] = TappedLayer(layers[index], begins=not self._tapped)
            self._tapped.append(layers[index])

    def remove(self) -> None:
        """Take the wrappers off again."""
        for index, layer in enumerate(self._layers):
            if isinstance(layer, TappedLayer):
                self._layers[index] = layer.inner

    def take(self) -> mx.array:
        """The rows of the last forward, (T, len(layer_ids) * H), lazily."""
        return mx.concatenate([layer.take() for layer in self._tapped], axis=-1)[0]


def _layer_list(model: nn.Module) -> list[nn.Module]:
    """The list that the model's own loop walks (`model.layers` may be a copy of it)."""
    first = model.layers[0]
    for _, module in model.named_modules():
        layers = module.get("layers")
        if isinstance(layers, list) and layers and layers[0] is first:
            return layers
    raise ModelError(f"{type(model).__module__}: no list of decoder layers to tap")
