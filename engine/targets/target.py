"""The target model: what every drafter is checked against.

A `Target` wraps a loaded mlx-lm model without patching any class. It knows how to run one forward
over M rows of one sequence and how to take rows back; the decoders know nothing about layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import ArraysCache, RotatingKVCache, make_prompt_cache

from engine.decoding.rollback import can_roll_back, roll_back
from engine.errors import ModelError
from engine.targets.caches import Caches, arrays_of, leaves
from engine.targets.gated_delta import record_gated_delta
from engine.targets.mamba import record_mamba
from engine.targets.recurrent import RecurrentCache
from engine.targets.taps import Taps
from engine.targets.window import WindowCache


class Target:
    """Any model that mlx-lm loads, for one sequence at a time (batch 1).

    family: its mlx-lm `model_type`.
    speculative: whether rows can be taken back exactly; without it the target is served
        target-only, never refused.
    """

    def __init__(self, model: nn.Module, family: str) -> None:
        self.model = model
        self.family = family
        self._taps: Taps | None = None
        self._hidden: mx.array | None = None
        recorded = sum(record_gated_delta(x) or record_mamba(x) for x in model.layers)
        kinds = [type(cache) for cache in leaves(make_prompt_cache(model))]
        self._recorded = recorded == kinds.count(ArraysCache)
        self.speculative = all(can_roll_back(cache) for cache in leaves(self.new_caches()))

    def new_caches(self) -> Caches:
        """Empty caches for one sequence, in layer order."""
        return [self._exact(cache) for cache in make_prompt_cache(self.model)]

    def _exact(self, cache: Any) -> Any:
        """The same kind of cache in a form whose rows can be taken back, where there is one."""
        if type(cache) is ArraysCache and self._recorded:
            return RecurrentCache()
        if type(cache) is RotatingKVCache and cache.keep == 0:
            return WindowCache(cache.max_size)
        return cache

    def forward(self, tokens: Sequence[int], caches: Caches) -> mx.array:
        """Run `tokens` (M of them) behind what the caches hold, and append them.

        Returns the logits, (M, vocabulary), which the device is at work on, as on the tapped rows.
        With M > 1 the rows may be taken back once by `roll_back`, until the next forward.
        """
        _record(caches, len(tokens) > 1)
        logits: mx.array = self.model(mx.array([list(tokens)]), cache=caches)[0]
        self._hidden = self._taps.take() if self._taps is not None else None
        known = (logits,) if self._hidden is None else (logits, self._hidden)
        # MLX gives it no types.
        mx.async_eval(*known)  # type: ignore[no-untyped-call]
        return logits

    def prefill(self, tokens: Sequence[int], caches: Caches) -> None:
        """Append `tokens` to the caches and evaluate them; their logits are not computed."""
        _record(caches, False)
        self.model(mx.array([list(tokens)]), cache=caches)
        self._hidden = self._taps.take() if self._taps is not None else None
        mx.eval(arrays_of(caches))

    def tap(self, layer_ids: Sequence[int]) -> None:
        """Keep the residual stream after these layers (0-based) in every forward from now on."""
        self._taps = Taps(self.model, layer_ids)

    def untap(self) -> None:
        """Keep nothing any more."""
        if self._taps is not None:
            self._taps.remove()
        self._taps = None

    @property
    def tapped(self) -> bool:
        return self._taps is not None

    def take_hidden(self) -> mx.array:
        """The tapped rows of the last forward or prefill, (T, len(layer_ids) * H), lazily."""
        if self._hidden is None:
            raise ValueError("no forward since the taps were last read, or no taps")
        hidden, self._hidden = self._hidden, None
        return hidden

    def embed(self, tokens: mx.array) -> mx.array:
        """Rows of the embedding table, (..., H), scaled as the model scales them."""
        rows: mx.array = self.embedding(tokens)
        return rows * self.embedding_scale

    def head(self, hidden: mx.array) -> mx.array:
        """Logits (..., vocabulary) of final hidden rows, without soft-capping."""
        layer = self.output_layer
        logits: mx.array = layer.as_linear(hidden) if layer is self.embedding else layer(hidden)
        return logits

    @property
    def output_layer(self) -> Any:
        """The module that makes logits; the embedding where the model ties them."""
        owners: tuple[Any, ...] = (self.model, getattr(self.model, "language_model", None))
        for owner in owners:
            if hasattr(owner, "lm_head"):
                return owner.lm_head
        return self.embedding

    @property
    def embedding(self) -> Any:
        """The module with the embedding table."""
        owner, name = self._embedding
        return owner[name]

    @property
    def embedding_scale(self) -> float:
        return float(getattr(self._embedding[0], "embed_scale", 1.0))

    @cached_property
    def _embedding(self) -> tuple[nn.Module, str]:
        """The module that owns the embedding table, and its name there. Every draft needs it, and
        looking through a model's modules takes as long as a forward of a small one."""
        for _, module in self.model.named_modules():
            for name in TABLES:
                if name in module:
                    return module, name
        raise ModelError(f"{type(self.model).__module__}: no embedding table to draft with")

    def roll_back(self, caches: Caches, rows: int, keep: int) -> None:
        """Keep the first `keep` of the `rows` that the last forward appended.

        Afterwards the caches are bit-equal to having seen only those rows.
        """
        roll_back(leaves(caches), rows, keep)


# What mlx-lm's model classes call their embedding table.
TABLES = ("embed_tokens", "embeddings", "wte", "tok_embeddings", "word_embeddings")


def _record(caches: Caches, recording: bool) -> None:
    for cache in caches:
        if isinstance(cache, RecurrentCache):
            cache.recording, cache.tape = recording, None


def bind(model: nn.Module, config: dict[str, Any]) -> Target:
    """The target for a loaded model; `config` is its config.json."""
    return Target(model, str(config["model_type"]))
