"""The target model: what every drafter is checked against.

A `Target` wraps a loaded mlx-lm model without patching any class. It knows how to run one forward
over M rows of one sequence and how to take rows back; the decoders know nothing about layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from engine.decoding.rollback import can_roll_back, roll_back

# mlx-lm's cache objects ship no types; what they hold is documented in engine/decoding/rollback.py.
Caches = list[Any]


class Target:
    """Any model that mlx-lm loads, for one sequence at a time (batch 1).

    family: its mlx-lm `model_type`.
    speculative: whether rows can be taken back exactly; without it the target is served
        target-only, never refused.
    """

    def __init__(self, model: nn.Module, family: str) -> None:
        self.model = model
        self.family = family
        self.speculative = all(can_roll_back(cache) for cache in self.new_caches())

    def new_caches(self) -> Caches:
        """Empty caches for one sequence, in layer order."""
        return list(make_prompt_cache(self.model))

    def forward(self, tokens: Sequence[int], caches: Caches) -> mx.array:
        """Run `tokens` (M of them) behind what the caches hold, and append them.

        Returns the logits, (M, vocabulary), lazily. With M > 1 the rows may be taken back once by
        `roll_back`, until the next forward.
        """
        logits: mx.array = self.model(mx.array([list(tokens)]), cache=caches)
        return logits[0]

    def prefill(self, tokens: Sequence[int], caches: Caches) -> None:
        """Append `tokens` to the caches and evaluate them; their logits are not computed."""
        self.model(mx.array([list(tokens)]), cache=caches)
        mx.eval(arrays_of(caches))

    def roll_back(self, caches: Caches, rows: int, keep: int) -> None:
        """Keep the first `keep` of the `rows` that the last forward appended.

        Afterwards the caches are bit-equal to having seen only those rows.
        """
        roll_back(caches, rows, keep)


def arrays_of(caches: Caches) -> list[mx.array]:
    """Every array the caches hold, for `mx.eval`."""
    arrays: list[mx.array] = []
    for cache in caches:
        pending = [cache.state]
        while pending:
            item = pending.pop()
            if isinstance(item, mx.array):
                arrays.append(item)
            elif isinstance(item, list | tuple):
                pending.extend(item)
    return arrays


def bind(model: nn.Module, config: dict[str, Any]) -> Target:
    """The target for a loaded model; `config` is its config.json."""
    from engine.targets.gated_delta import GatedDeltaTarget, has_gated_delta_layers

    family = str(config["model_type"])
    if has_gated_delta_layers(model):
        return GatedDeltaTarget(model, family)
    return Target(model, family)
