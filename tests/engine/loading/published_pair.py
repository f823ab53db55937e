"""A script: a drafter of the published size on a target of its shape, one block, in this process.

argv: a folder to work in (4 GB), the drafter's bits (0: as published). Prints JSON.

Of the target only what a draft touches has its real size: embedding and head (248,320 x 5,120, at
4 bits) and 64 hybrid layers of width 5,120 with taps in the published places; the insides of the
layers are narrow. All weights are random.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.qwen3_5 import Model, ModelArgs

from engine.drafters.dflash_drafter import DFlashDrafter
from engine.drafters.random_checkpoint import write_random_drafter
from engine.loading.drafter import load_drafter
from engine.messages import Sampling
from engine.targets.target import Target, bind

DRAFTER = {
    "architectures": ["DFlash2DraftModel"],
    "attention_bias": False,
    "is_causal": False,
    "dflash_config": {
        "block_size": 8,
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "mask_token_id": 248070,
        "selector_rank": 256,
        "selector_top_k": 16,
        "target_layer_ids": [5, 19, 33, 47, 61],
    },
    "dtype": "bfloat16",
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "layer_types": ["sliding_attention"] * 5,
    "max_position_embeddings": 262144,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 64,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "sliding_window": 2048,
    "tie_word_embeddings": False,
    "use_sliding_window": True,
    "vocab_size": 248320,
}
TEXT = {
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "vocab_size": 248320,
    "num_hidden_layers": 64,
    "full_attention_interval": 4,
    "tie_word_embeddings": False,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 262144,
}


def narrow_target() -> Target:
    """A 4-bit model whose packed weights are made as such: no full-precision copy ever exists."""
    config = {"model_type": "qwen3_5", "text_config": TEXT}
    model = Model(ModelArgs.from_dict(config))
    nn.quantize(model, group_size=64, bits=4)
    for _, module in model.named_modules():
        if "scales" not in module:
            continue
        module.weight = mx.random.randint(0, 1 << 32, module.weight.shape, dtype=mx.uint32)
        module.scales = mx.random.uniform(0.001, 0.006, module.scales.shape)
        module.biases = -8.0 * module.scales
        mx.eval(module.parameters())
    model.eval()
    mx.eval(model.parameters())
    return bind(model, config)


def main(folder: Path, bits: int) -> None:
    checkpoint = folder / "drafter"
    if not checkpoint.is_dir():
        write_random_drafter(checkpoint, DRAFTER, dtype="BF16")
    target = narrow_target()
    began = time.perf_counter()
    drafter_model = load_drafter(
        checkpoint,
        hidden_size=5120,
        vocab_size=248320,
        num_layers=len(target.model.layers),
        bits=bits or None,
        progress=lambda what, share: None,
    )
    loaded = time.perf_counter()
    target.tap(drafter_model.config.target_layer_ids)
    drafter = DFlashDrafter(
        drafter_model, embed=target.embed, head=target.head, sampling=Sampling()
    )
    prompt, caches = [7, 100_000, 3, 248_000], target.new_caches()
    target.prefill(prompt, caches)
    drafter.observe(target.take_hidden())
    drafter.commit([*prompt, 5])
    ready = time.perf_counter()
    drafts = drafter.propose(7)
    drafted = time.perf_counter()
    logits = target.forward([5, *drafts], caches)
    mx.eval(logits, target.take_hidden())
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    facts = {
        "tensors": len(drafter_model.config.tensor_shapes()),
        "checkpoint_bytes": (checkpoint / "model.safetensors").stat().st_size,
        "drafts": drafts,
        "verified_rows": logits.shape[0],
        "load_seconds": round(loaded - began, 1),
        "block_seconds": round(drafted - ready, 2),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        "mlx_peak_bytes": mx.get_peak_memory(),
    }
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
