"""Small random drafters and what a target would lend them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from dflash_oracle import Oracle

from engine.drafters.dflash import DFlashModel
from engine.drafters.dflash_drafter import DFlashDrafter
from engine.drafters.random_checkpoint import write_random_drafter
from engine.loading.drafter import load_drafter
from engine.messages import Sampling

HIDDEN, VOCABULARY, LAYERS, TAPS = 32, 96, 6, 3
CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "num_target_layers": LAYERS,
    "dflash_config": {"target_layer_ids": [0, 2, 5], "mask_token_id": 95, "block_size": 6},
}
SELECTOR = {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 12, "selector_top_k": 16}


def config(version: int = 1, nested: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    """The raw config of a DFlash 1 or 2 drafter, with changes on top and in `dflash_config`."""
    inside = CONFIG["dflash_config"] | (SELECTOR if version == 2 else {}) | (nested or {})
    names = ["DFlashDraftModel" if version == 1 else "DFlash2DraftModel"]
    return CONFIG | {"architectures": names, "dflash_config": inside} | top


def load(folder: Path, bits: int | None = None) -> DFlashModel:
    return load_drafter(
        folder,
        hidden_size=HIDDEN,
        vocab_size=VOCABULARY,
        num_layers=LAYERS,
        bits=bits,
        progress=lambda what, share: None,
    )


class Borrowed:
    """The embedding table and head of a target that does not exist, and its hidden states."""

    def __init__(self, seed: int = 0, vocabulary: int = VOCABULARY) -> None:
        rng = np.random.default_rng(seed)
        self.table = rng.normal(size=(vocabulary, HIDDEN)).astype(np.float32)
        self.output = rng.normal(size=(vocabulary, HIDDEN)).astype(np.float32)
        self.hidden = rng.normal(size=(400, TAPS * HIDDEN)).astype(np.float32)

    def embed(self, tokens: mx.array) -> mx.array:
        return mx.array(self.table)[tokens]

    def head(self, hidden: mx.array) -> mx.array:
        return hidden @ mx.array(self.output).T

    def drafter(
        self, model: DFlashModel, sampling: Sampling | None = None, seed: int = 0
    ) -> DFlashDrafter:
        return DFlashDrafter(
            model,
            embed=self.embed,
            head=self.head,
            sampling=sampling or Sampling(),
            seed=seed,
        )

    def rows(self, start: int, end: int) -> mx.array:
        return mx.array(self.hidden[start:end])


def oracle(folder: Path, model: DFlashModel) -> Oracle:
    arrays = mx.load(str(folder / "model.safetensors"))
    return Oracle(
        model.config, {name: np.array(a).astype(np.float64) for name, a in arrays.items()}
    )


def drafter_folder(folder: Path, raw: dict[str, Any], seed: int = 0) -> Path:
    return write_random_drafter(folder, raw, seed=seed)
