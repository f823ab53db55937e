"""The parts of a DFlash drafter's layers as one operation each.

What a drafter says is verified, so here rows may depend on each other, and in a block that is not
causal they do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import mlx.core as mx
import mlx.nn as nn

from engine.cpu import extension
from engine.cpu.layers import is_plain, name_of, norm_of, stock, weights_of
from engine.cpu.modules import DTYPES, Kernel
from engine.drafters.context_cache import ContextCache
from engine.drafters.selector import CandidateSelector

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_PARTS = ("gate_proj", "up_proj", "down_proj")


class _DraftPart(Kernel):
    tolerance: ClassVar[dict[mx.Dtype, float]] = {mx.float32: 1e-4, mx.bfloat16: 3e-2}
    # Names a weight whose rows are as wide as x.
    sample: ClassVar[str]

    def dtype(self) -> mx.Dtype:
        """Of activations."""
        weight = stock(self.inner[self.sample])
        dtype: mx.Dtype = (weight.scales if "scales" in weight else weight.weight).dtype
        return dtype

    def rows(self, count: int) -> mx.array:
        sample = stock(self.inner[self.sample])
        width = sample.weight.shape[-1]
        if "scales" in sample:
            width = sample.scales.shape[-1] * sample.group_size
        normal = mx.random.normal((1, count, width), key=mx.random.key(count))
        return normal.astype(self.dtype())

    def key(self) -> tuple[Any, ...]:
        sample = stock(self.inner[self.sample])
        return type(self), sample.weight.shape, str(sample.weight.dtype), str(self.dtype())


class DraftAttention(_DraftPart):
    """engine.drafters.dflash.DFlashAttention, where all of the context is seen."""

    sample = "q_proj"
    row_exact = False

    @staticmethod
    def fits(module: nn.Module) -> bool:
        if name_of(module) != "engine.drafters.dflash.DFlashAttention":
            return False
        rope, dtype = stock(module._rope), stock(module.q_norm).weight.dtype
        return (
            dtype in DTYPES
            and type(rope) is nn.RoPE
            and not rope.traditional
            and rope.dims % 2 == 0
            and all(is_plain(module[name], dtype) for name in PROJECTIONS)
        )

    def bound(self) -> Any:
        inner, rope = self.inner, stock(self.inner._rope)
        q, k, v, o = (weights_of(inner[name]) for name in PROJECTIONS)
        self.layer: Any = extension().AttentionLayer(
            None,
            norm_of(inner.q_norm),
            norm_of(inner.k_norm),
            q,
            k,
            v,
            o,
            heads=stock(inner.q_proj).weight.shape[0] // inner._head,
            key_heads=stock(inner.k_proj).weight.shape[0] // inner._head,
            width=inner._head,
            rotated=rope.dims,
            base=rope.base,
            rope_scale=rope.scale,
            scale=inner._head**-0.5,
            gated=False,
            causal=inner._causal,
            residual=False,
        )
        self._dtype = self.dtype()
        return self.layer.before

    def append(self, context: mx.array, cache: ContextCache) -> None:
        """Commit projected context rows, (1, S, H), to the cache."""
        if context.dtype != self._dtype:
            self.inner.append(context, cache)
            return
        cache.append(*self.layer.keys_and_values(context, cache.end))

    def __call__(self, x: mx.array, cache: ContextCache) -> mx.array:
        reach, block = self.inner._reach, x.shape[1]
        output: mx.array
        if x.dtype != self._dtype or (reach is not None and len(cache) + block - 1 > reach):
            output = self.inner(x, cache)
            return output
        queries, keys, values, gate = self._compute(x, cache.end)
        keys, values = cache.followed_by(keys, values)
        output = self.layer.after(x, queries, keys, values, gate)
        return output

    def run(self, module: nn.Module, rows: mx.array) -> mx.array:
        cache = ContextCache(self.inner._reach)
        module.append(rows[:, ::-1], cache)
        output: mx.array = module(rows[:, :8], cache)
        return output


class DraftMlp(_DraftPart):
    """engine.drafters.dflash.MLP."""

    sample = "gate_proj"

    @staticmethod
    def fits(module: nn.Module) -> bool:
        if name_of(module) != "engine.drafters.dflash.MLP":
            return False
        sample = stock(module.gate_proj)
        dtype = (sample.scales if "scales" in sample else sample.weight).dtype
        return dtype in DTYPES and all(is_plain(module[name], dtype) for name in MLP_PARTS)

    def bound(self) -> Any:
        self._dtype = self.dtype()
        parts = (weights_of(self.inner[name]) for name in MLP_PARTS)
        self.layer: Any = extension().Mlp(None, *parts, residual=False)
        return self.layer

    def __call__(self, x: mx.array) -> mx.array:
        return self._compute(x) if x.dtype == self._dtype else self.run(self.inner, x)


class DraftConvolution(_DraftPart):
    """engine.drafters.dflash.GroupedDynamicConv."""

    sample = "kernel_projection"

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return (
            name_of(module) == "engine.drafters.dflash.GroupedDynamicConv"
            and module.base_kernel.dtype in DTYPES
        )

    def bound(self) -> Any:
        self._dtype = self.inner.base_kernel.dtype
        return extension().own_convolve

    def __call__(self, x: mx.array, sublayer: Callable[[mx.array], mx.array]) -> mx.array:
        inner: Any = self.inner
        own = inner.kernel_projection(x)
        output: mx.array
        if x.dtype != self._dtype or own.dtype != self._dtype:
            output = inner(x, sublayer)
        else:
            own = own.reshape(*x.shape[:2], *inner._shape)
            between = sublayer(self._compute(x, inner.base_kernel, own, 0))
            output = self._compute(between, inner.base_kernel, own, 1)
        return output

    def run(self, module: nn.Module, rows: mx.array) -> mx.array:
        output: mx.array = module(rows, lambda between: between)
        return output


class DraftSelector(_DraftPart):
    """engine.drafters.selector.CandidateSelector, whose candidates are found in one pass."""

    sample = "hidden_projection"
    select = CandidateSelector.select
    scores = CandidateSelector.scores

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return type(module) is CandidateSelector

    def bound(self) -> Any:
        return extension().best

    def best(self, logits: mx.array) -> tuple[mx.array, mx.array]:
        """Scores and ids of each row's candidates, (K, C), best first, then by id."""
        unary, ids = self._compute(logits, self.inner._top_k)
        return unary, ids

    def rows(self, count: int) -> mx.array:
        vocabulary = self.inner.predecessor_codebook.shape[0]
        return mx.random.normal((1, count, vocabulary), key=mx.random.key(count))

    def run(self, module: nn.Module, rows: mx.array) -> mx.array:
        unary, ids = module.best(rows[0])
        return mx.concatenate([unary, ids.astype(mx.float32)], axis=-1)[None]


DRAFT_KINDS: tuple[type[Kernel], ...] = (DraftAttention, DraftMlp, DraftConvolution, DraftSelector)
