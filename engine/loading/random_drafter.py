"""A drafter for any target that knows nothing: whatever it drafts, replies must not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.drafters.dflash_config import fallback_layer_ids
from engine.drafters.random_checkpoint import write_random_drafter
from engine.errors import ModelError
from engine.loading.checkpoint import Checkpoint
from engine.loading.fetch import fetch

LAYERS, HEADS, HEAD_DIM = 2, 2, 64


def write_for(model: str, folder: Path) -> Path:
    """Write a random DFlash 2 drafter of two layers for the target `model` into `folder`, which is
    made. Raises ModelError where the target's config.json lacks what it must agree with."""
    checkpoint = Checkpoint(fetch(model, None, lambda what, share: None))
    return write_random_drafter(folder, _config(checkpoint))


def _config(target: Checkpoint) -> dict[str, Any]:
    hidden, layers = (target.text_config.get(key) for key in ("hidden_size", "num_hidden_layers"))
    if not isinstance(hidden, int) or not isinstance(layers, int) or not target.vocab_size:
        raise ModelError(
            f"{target.path / 'config.json'}: hidden_size, num_hidden_layers or vocab_size: missing"
        )
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "hidden_size": hidden,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": 2 * hidden,
        "vocab_size": target.vocab_size,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": target.context,
        "num_target_layers": layers,
        "is_causal": False,
        "dflash_config": {
            "block_size": 8,
            "mask_token_id": target.vocab_size - 1,
            "target_layer_ids": fallback_layer_ids(layers, LAYERS) if layers > 3 else [0],
            "conv_kernel_size": 2,
            "conv_group_size": hidden // 16 if hidden % 16 == 0 else hidden,
            "selector_rank": 16,
            "selector_top_k": 8,
        },
    }
