"""Random DFlash drafters for the models of `tiny_models`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from engine.drafters.dflash import DFlashModel
from engine.drafters.dflash_config import DFlashConfig

CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "vocab_size": 261,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "num_target_layers": 4,
    "dflash_config": {"target_layer_ids": [0, 1], "mask_token_id": 260, "block_size": 8},
}
SELECTOR = {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 8, "selector_top_k": 4}
KINDS: dict[str, dict[str, Any]] = {
    "v1": CONFIG,
    "v1 sliding": {
        **CONFIG,
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": 10,
        "is_causal": False,
    },
    "v2": {
        **CONFIG,
        "architectures": ["DFlash2DraftModel"],
        "dflash_config": {**CONFIG["dflash_config"], **SELECTOR},
    },
}


def tiny_drafter(kind: str, num_target_layers: int, seed: int = 1) -> DFlashModel:
    """A random drafter: it guesses badly, as one for another model would."""
    raw = {**KINDS[kind], "num_target_layers": num_target_layers}
    config = DFlashConfig.parse(raw, Path("config.json"))
    mx.random.seed(seed)
    model = DFlashModel(config, nn.RoPE(config.head_dim, traditional=False, base=10000.0))
    model.update(tree_map(lambda w: mx.random.normal(w.shape) * 0.3 + 0.0 * w, model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model
