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
# Sliding windows of 12 wrap early; the last two layers share keys and values of earlier ones.
GEMMA4 = {
    **COMMON,
    "model_type": "gemma4_text",
    "num_hidden_layers": 6,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": COMMON["vocab_size"],
    "sliding_window": 12,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
}
LATENT = {
    **COMMON,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.5,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_group": 1,
    "topk_group": 1,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
LATER: dict[str, dict[str, Any]] = {
    "gemma4_text": GEMMA4,
    "muse_glimmer": {
        **COMMON,
        "model_type": "muse_glimmer",
        "num_hidden_layers": 4,
        "sliding_window": 12,
        "tie_word_embeddings": False,
    },
    "nemotron_h": {
        **COMMON,
        "model_type": "nemotron_h",
        "attention_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": ["M", "-", "*", "M"],
    },
    "glm4_moe_lite": {**LATENT, "model_type": "glm4_moe_lite"},
    "deepseek_v3": {**LATENT, "model_type": "deepseek_v3"},
    "glm_moe_dsa": {
        **LATENT,
        "model_type": "glm_moe_dsa",
        "index_head_dim": 16,
        "index_n_heads": 2,
        "index_topk": 8,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    },
}
FAMILIES = tuple(CONFIGS)
EXACT_FAMILIES = (*CONFIGS, "gemma4_text", "muse_glimmer", "nemotron_h")
# Multi-head latent attention: mlx-lm absorbs the key projection for one row and not for several.
LATENT_FAMILIES = ("glm4_moe_lite", "deepseek_v3", "glm_moe_dsa")


def tiny(family: str, dtype: mx.Dtype = mx.float32, seed: int = 0) -> tuple[nn.Module, dict]:
    """A random model and its config."""
    config = {**CONFIGS, **LATER}[family]
    module = importlib.import_module(f"mlx_lm.models.{family}")
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))
    model.update(tree_map(lambda weight: weight.astype(dtype), model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model, config
