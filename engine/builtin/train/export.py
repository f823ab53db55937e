"""Checkpoints to the folders that Pillion loads: mlx-lm's layout, and the published drafter's."""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from engine.builtin.train.drafter import load_drafter
from engine.builtin.train.drafter_model import DrafterShape
from engine.builtin.train.model import Target, TargetShape
from engine.builtin.train.train import load_target

ENDS = [0, 2]  # <|endoftext|>, <|im_end|>
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
# mlx-lm keeps this one in float32, since its exponential is a rate of forgetting.
KEPT_PRECISE = ("A_log",)


def target_config(shape: TargetShape) -> dict[str, Any]:
    """config.json of the target, as mlx-lm reads it."""
    text = asdict(shape)
    rope = {
        "rope_type": "default",
        "rope_theta": text.pop("rope_theta"),
        "partial_rotary_factor": text.pop("partial_rotary_factor"),
    }
    interval = shape.full_attention_interval
    kinds = ["linear_attention"] * (interval - 1) + ["full_attention"]
    text |= {
        "model_type": "qwen3_5_text",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "hidden_act": "silu",
        "rope_parameters": rope,
        "eos_token_id": ENDS,
        "layer_types": kinds * (shape.num_hidden_layers // interval),
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "tie_word_embeddings": True,
        "eos_token_id": ENDS,
    }


def drafter_config(shape: DrafterShape) -> dict[str, Any]:
    """config.json of a drafter, with the published keys."""
    second = shape.selector_rank > 0
    values = asdict(shape)
    nested = {"block_size", "mask_token_id", "target_layer_ids"}
    selector = {"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"}
    config = {key: value for key, value in values.items() if key not in nested | selector}
    return {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "model_type": "qwen3",
        **config,
        "layer_types": ["full_attention"] * shape.num_hidden_layers,
        "is_causal": False,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "block_size": shape.block_size,
        "dflash_config": {
            key: values[key] for key in sorted(nested | (selector if second else set()))
        },
    }


def write(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    """Write config.json and model.safetensors into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    file = folder / "model.safetensors"
    contiguous = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(contiguous, file, metadata={"format": "mlx"})
    file.chmod(0o644)  # it is written for the owner alone


def lowered(name: str, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return weight if name.endswith(KEPT_PRECISE) else weight.to(dtype)


def export_target(
    target: Target, folder: Path, tokenizer: Path, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write `folder`, with the tokenizer's files from the folder `tokenizer`."""
    weights = {}
    for name, weight in target.state_dict().items():
        # MLX convolutions are [C, K, 1]; mlx-lm takes any other shape for an unconverted checkpoint
        # and would then also add one to the norms.
        if "conv1d" in name:
            weight = weight.transpose(1, 2)
        weights[f"language_model.model.{name}"] = lowered(name, weight, dtype)
    write(folder, target_config(target.shape), weights)
    generation = {"eos_token_id": ENDS, "pad_token_id": ENDS[0]}
    (folder / "generation_config.json").write_text(json.dumps(generation), "utf-8")
    for name in TOKENIZER_FILES:
        if folder != tokenizer:
            shutil.copyfile(tokenizer / name, folder / name)


def largest_difference(target: Target, folder: Path, ids: list[int]) -> float:
    """Between the logits of the exported model in MLX and of `target` in torch, both float32."""
    import mlx.core as mx
    from mlx.utils import tree_map
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    model.update(tree_map(lambda weight: weight.astype(mx.float32), model.parameters()))
    theirs = np.array(model(mx.array([ids]))[0])
    with torch.no_grad():
        # The recurrence, as every product of the chunked form is in bfloat16.
        hidden = torch.cat(list(_rows(target, ids)), 1)
        ours = target.logits(hidden)[0].numpy()
    return float(np.abs(ours - theirs).max())


def _rows(target: Target, ids: list[int]) -> Any:
    cache = target.empty_cache()
    for start in range(0, len(ids), 8):
        yield target(torch.tensor([ids[start : start + 8]]), cache)[0]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--target", type=Path, help="the target's checkpoint")
    options.add_argument("--drafters", type=Path, help="the folder of the drafters' checkpoints")
    options.add_argument("--tokenizer", type=Path, required=True, help="a folder of the target")
    options.add_argument("--out", type=Path, required=True)
    given = options.parse_args()
    if given.target:
        export_target(load_target(given.target), given.out / "target", given.tokenizer)
    for name in ("dflash", "dflash2") if given.drafters else ():
        drafter = load_drafter(given.drafters / f"{name}.pt")
        weights = drafter.state_dict().items()
        lower = {key: weight.to(torch.bfloat16) for key, weight in weights}
        write(given.out / name, drafter_config(drafter.shape), lower)


if __name__ == "__main__":
    main()
