"""Test doubles of the target. They need MLX; the doubles that do not are in `engine.testing`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.targets.caches import Caches
from engine.targets.target import Target


class ReorderedLinear(nn.Module):
    """A Linear that sums in another order from `from_rows` rows on, as Metal's kernels do.

    MLX on a CPU computes every row alike and so hides what this makes visible.
    """

    def __init__(self, inner: nn.Linear, from_rows: int) -> None:
        super().__init__()
        self.inner = inner
        self.from_rows = from_rows

    def __call__(self, x: mx.array) -> mx.array:
        output: mx.array
        if x.shape[-2] < self.from_rows:
            output = self.inner(x)
            return output
        weight, half = self.inner.weight, x.shape[-1] // 2
        output = x[..., :half] @ weight[:, :half].T + x[..., half:] @ weight[:, half:].T
        return output


def reorder_rows(model: nn.Module, from_rows: int) -> None:
    """Make a model's forward of `from_rows` rows or more differ from its one-row forwards."""
    for layer in model.layers:
        layer.mlp.down_proj = ReorderedLinear(layer.mlp.down_proj, from_rows)


class TokenCache:
    """What a `ScriptedTarget` has seen."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.state: tuple[Any, ...] = ()

    def take_back(self, rows: int, keep: int) -> None:
        del self.tokens[len(self.tokens) - rows + keep :]


class ScriptedTarget(Target):
    """Chooses what a function of the tokens so far says, through the real decoding loop.

    script: the tokens before a position -> the token there. `rows` records every forward's rows.
    """

    def __init__(self, script: Callable[[Sequence[int]], int], vocabulary: int) -> None:
        self.family = "scripted"
        self.speculative = True
        self._taps = None
        self.rows: list[int] = []
        self._script = script
        self._vocabulary = vocabulary

    def new_caches(self) -> Caches:
        return [TokenCache()]

    def forward(self, tokens: Sequence[int], caches: Caches) -> mx.array:
        (cache,) = caches
        self.rows.append(len(tokens))
        chosen = []
        for token in tokens:
            cache.tokens.append(token)
            chosen.append(self._script(cache.tokens))
        return mx.array(chosen)[:, None] == mx.arange(self._vocabulary)[None, :]

    def prefill(self, tokens: Sequence[int], caches: Caches) -> None:
        caches[0].tokens.extend(tokens)
