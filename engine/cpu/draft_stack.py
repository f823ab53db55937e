"""A DFlash drafter and its target's head as one call, where all their parts are kernels already."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.cpu import extension
from engine.cpu.draft_layers import DraftAttention, DraftConvolution, DraftMlp, DraftSelector
from engine.cpu.layers import norm_of, stock, weights_of
from engine.cpu.modules import DenseHead, DenseLinear, Norm, QuantizedHead, QuantizedLinear
from engine.decoding.sampling import COLDEST, noise_keys
from engine.drafters.dflash import DFlashModel
from engine.messages import Sampling
from engine.targets.target import Target

_LINEAR = (DenseLinear, QuantizedLinear)


class DraftStack:
    """See `engine.drafters.dflash.Stack`."""

    def __init__(self, model: DFlashModel, target: Target) -> None:
        config, kernels = model.config, extension()
        selector = None
        if config.has_selector:
            part = stock(model.candidate_selector)
            selector = kernels.Selector(
                part.predecessor_codebook,
                part.successor_codebook,
                weights_of(part.hidden_projection),
                config.selector_top_k,
            )
        self._compute = kernels.DraftStack(
            weights_of(model.fc),
            norm_of(model.hidden_norm),
            norm_of(model.norm),
            [_layer(layer) for layer in model.layers],
            _head(target.output_layer),
            selector,
            config.output_multiplier,
            config.softcap or 0.0,
        )
        self._sampler = kernels.Sampler
        self._dtype = model.dtype
        self._embed = target.embed
        self._scale = config.input_embedding_scale
        self._mask = config.mask_token_id
        table = stock(target.embedding)
        plain = type(table) is nn.Embedding and table.weight.dtype == model.dtype
        scaled = self._scale != 1.0 or target.embedding_scale != 1.0
        self._table: mx.array | None = table.weight if plain and not scaled else None

    def fits(self, sampling: Sampling) -> bool:
        """Whether it can draft for such a request."""
        return not sampling.logit_bias

    def propose(
        self,
        observed: Sequence[tuple[mx.array, int]],
        context: tuple[mx.array, int],
        caches: Sequence[tuple[mx.array, mx.array, int]],
        first: Sequence[int],
        position: int,
        anchor: int,
        masks: int,
        sampling: Sampling,
        seed: int,
    ) -> list[int]:
        """See `engine.drafters.dflash.Stack`."""
        ids = [anchor] + [self._mask] * masks
        table = self._table
        if table is None:
            embedded = self._embed(mx.array(ids)) * self._scale
            table, ids = embedded.astype(self._dtype), list(range(len(ids)))
        buffers, at = [context[0]], [context[1]]
        for keys, values, index in caches:
            buffers += (keys, values)
            at.append(index)
        tokens: list[int] = self._compute.propose(
            [rows.astype(self._dtype) for rows, _ in observed],
            [kept for _, kept in observed],
            buffers,
            at,
            list(first),
            position,
            table,
            ids,
            anchor,
            self._request(sampling, seed, position, masks),
        )
        return tokens

    def _request(self, sampling: Sampling, seed: int, position: int, masks: int) -> Any:
        """The anchor is at `position`, so the first draft is behind it."""
        if sampling.greedy:
            return self._sampler(0.0, 0, 1.0, 0.0, -math.inf, [0] * masks)
        least = math.log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf
        return self._sampler(
            max(sampling.temperature, COLDEST),
            sampling.top_k,
            sampling.top_p,
            sampling.min_p,
            least,
            noise_keys(seed, range(position + 1, position + 1 + masks)),
        )


def fuse(model: DFlashModel, target: Target) -> None:
    """Give the drafter its `stack`, if all that it is made of, and the target's head, are kernels
    and no layer forgets rows."""
    if model.config.reach is None and _fits(model, target):
        model.stack = DraftStack(model, target)


def _fits(model: DFlashModel, target: Target) -> bool:
    head = target.output_layer
    if not isinstance(head, (*_LINEAR, DenseHead, QuantizedHead)) or "bias" in stock(head):
        return False
    kinds: list[tuple[Any, Any]] = [
        (model.fc, _LINEAR),
        (model.hidden_norm, Norm),
        (model.norm, Norm),
    ]
    for layer in model.layers:
        kinds += [
            (layer.input_layernorm, Norm),
            (layer.self_attn, DraftAttention),
            (layer.post_attention_layernorm, Norm),
            (layer.mlp, DraftMlp),
        ]
        if "attention_conv" in layer:
            kinds += [(layer.attention_conv, DraftConvolution), (layer.mlp_conv, DraftConvolution)]
    if model.config.has_selector:
        kinds.append((model.candidate_selector, DraftSelector))
    return all(isinstance(part, kind) for part, kind in kinds) and head._dtype == model.dtype


def _head(head: Any) -> Any:
    """The extension's handle on an output layer's weight."""
    if isinstance(head, QuantizedHead):
        return head.weights
    if isinstance(head, DenseHead):
        return extension().Weights([head.inner.weight])
    return weights_of(head)


def _layer(layer: Any) -> Any:
    kernels = extension()

    def convolution(name: str) -> Any:
        if name not in layer:
            return None
        inner = stock(layer[name])
        return kernels.BlockConvolution(weights_of(inner.kernel_projection), inner.base_kernel)

    return kernels.DraftLayer(
        norm_of(layer.input_layernorm),
        layer.self_attn.layer,
        convolution("attention_conv"),
        norm_of(layer.post_attention_layernorm),
        layer.mlp.layer,
        convolution("mlp_conv"),
    )
