"""A small target with sliding windows that knows nothing, for proofs on a kind of model that is
not shipped."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
from mlx.utils import tree_flatten
from mlx_lm.models import gemma4_text

from engine.json_file import read_json

# Prompts of a few hundred tokens are many windows long.
WINDOW, CONTEXT = 96, 4096
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def write_windowed(tokenizer: Path, folder: Path) -> Path:
    """A Gemma 4 text model of eight layers, one in three of them with full attention, with the
    tokenizer and vocabulary of the model at `tokenizer`, in `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER:
        if (tokenizer / name).exists():
            shutil.copyfile(tokenizer / name, folder / name)
    config = _config(read_json(tokenizer / "config.json"))
    mx.random.seed(0)
    model = gemma4_text.Model(gemma4_text.ModelArgs.from_dict(config))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    return folder


def _config(source: dict[str, Any]) -> dict[str, Any]:
    text = source.get("text_config") or source
    vocabulary = text["vocab_size"]
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "global_head_dim": 32,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size": vocabulary,
        "vocab_size_per_layer_input": vocabulary,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2
        + ["sliding_attention", "full_attention"],
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": CONTEXT,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": source.get("eos_token_id", text.get("eos_token_id")),
    }
