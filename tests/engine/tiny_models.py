"""Random models of a few thousand weights, built from mlx-lm's own classes."""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

COMMON = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "vocab_size": 261,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
GATED_DELTA = {
    **COMMON,
    "num_hidden_layers": 4,
    "full_attention_interval": 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**COMMON, "model_type": "llama", "num_hidden_layers": 2},
    "qwen3": {**COMMON, "model_type": "qwen3", "num_hidden_layers": 2},
    "qwen3_5": {
        "model_type": "qwen3_5",
        "text_config": {**GATED_DELTA, "model_type": "qwen3_5_text"},
    },
    "qwen3_next": {
        **GATED_DELTA,
        "model_type": "qwen3_next",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 24,
        "moe_intermediate_size": 24,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "partial_rotary_factor": 0.5,
    },
}
FAMILIES = tuple(CONFIGS)


def tiny(family: str, dtype: mx.Dtype = mx.float32, seed: int = 0) -> tuple[nn.Module, dict]:
    """A random model and its config."""
    config = CONFIGS[family]
    module = importlib.import_module(f"mlx_lm.models.{family}")
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))
    model.update(tree_map(lambda weight: weight.astype(dtype), model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model, config
