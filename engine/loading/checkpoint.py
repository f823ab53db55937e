"""A model folder, read without loading it: config.json and the headers of its safetensors files."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import ModelError
from engine.json_file import read_json

# Hugging Face writes headers of a few hundred KB; a longer one is not a header.
MAX_HEADER_BYTES = 100 << 20
FINGERPRINT_SAMPLES = 16
INDEX = "model.safetensors.index.json"
DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
DTYPE_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}

# By mlx-lm's model_type: the families whose rejected rows engine/targets can take back exactly.
DENSE = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "smollm3", "olmo2"}
)
GATED_DELTA = frozenset({"qwen3_5", "qwen3_5_moe", "qwen3_next"})
SLIDING_OR_MAMBA = frozenset({"gemma3_text", "gemma4_text", "muse_glimmer", "nemotron_h"})
SPECULATIVE = DENSE | GATED_DELTA | SLIDING_OR_MAMBA


@dataclass(frozen=True)
class Tensor:
    """One entry of a safetensors header."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


class Checkpoint:
    """path: the folder. Raises ModelError naming the file and key of what is missing or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "config.json").is_file():
            raise ModelError(f"{path / 'config.json'}: missing, so this is not a model folder")
        self.config = read_json(path / "config.json")
        self.text_config: dict[str, Any] = self.config.get("text_config") or self.config
        if not isinstance(self.config.get("model_type"), str):
            raise ModelError(f"{path / 'config.json'}: model_type: missing")
        self.family: str = self.config["model_type"]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name. Reads each file's header and checks it against the file's size."""
        # The pattern that mlx-lm loads by.
        files = sorted(self.path.glob("model*.safetensors"))
        found: dict[str, Tensor] = {}
        for file in files:
            found |= _read_header(file)
        index = read_json(self.path / INDEX).get("weight_map") or {}
        for name, shard in index.items():
            if not (self.path / shard).exists():
                raise ModelError(f"{self.path / shard}: missing; {INDEX} expects {name} in it")
            if name not in found or found[name].file != shard:
                raise ModelError(f"{self.path / shard}: has no tensor {name}, but {INDEX} says so")
        if not found:
            raise ModelError(f"{self.path}: no model*.safetensors")
        return found

    def check(self) -> None:
        """Raise ModelError unless every file of the weights is there, whole and readable."""
        assert self.tensors

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors.values())

    @property
    def parameters(self) -> int:
        """How many weights; those of a quantised layer are counted unpacked."""
        total = 0
        for name, tensor in self.tensors.items():
            layer, _, part = name.rpartition(".")
            scales = self.tensors.get(f"{layer}.scales")
            if scales is None:
                total += math.prod(tensor.shape)
            elif part == "weight":
                total += math.prod(scales.shape) * self._group_size(layer)
        return total

    def _group_size(self, layer: str) -> int:
        settings = self.config.get("quantization") or {}
        own = settings.get(layer)
        return int((own if isinstance(own, dict) else settings).get("group_size", 64))

    @property
    def quantization(self) -> str:
        """``4-bit, group 32``, or the dtype that most bytes have."""
        settings = self.config.get("quantization")
        if settings:
            return f"{settings.get('bits')}-bit, group {settings.get('group_size')}"
        dtype = self._main_dtype()
        return DTYPE_NAMES.get(dtype, dtype.lower())

    def _main_dtype(self, among: Container[str] | None = None) -> str:
        """The dtype that most bytes have."""
        weights: Counter[str] = Counter()
        for tensor in self.tensors.values():
            if among is None or tensor.dtype in among:
                weights[tensor.dtype] += tensor.bytes
        return max(weights, key=weights.__getitem__, default="")

    @property
    def context(self) -> int:
        """The longest sequence the model was made for, in tokens."""
        value = self.text_config.get("max_position_embeddings") or self.config.get(
            "max_position_embeddings"
        )
        # GPT-2's name for it; Mamba has none, and no limit either.
        value = value or self.text_config.get("n_positions") or 1 << 20
        if not isinstance(value, int) or value < 1:
            raise ModelError(f"{self.path / 'config.json'}: max_position_embeddings: {value!r}")
        return value

    @property
    def vocab_size(self) -> int:
        return int(self.text_config.get("vocab_size") or self.config.get("vocab_size") or 0)

    @property
    def attention_layers(self) -> int:
        """Layers whose cache grows with every token."""
        layers = int(self.text_config.get("num_hidden_layers") or 0)
        kinds = self.text_config.get("layer_types")
        if isinstance(kinds, list):
            return sum(kind == "full_attention" for kind in kinds)
        interval = self.text_config.get("full_attention_interval")
        return layers // int(interval) if interval else layers

    def cache_bytes_per_token(self, element_bytes: int | None = None) -> int:
        """Keys and values of one token. element_bytes: of an activation; None takes a weight's."""
        config = self.text_config
        heads = int(config.get("num_attention_heads") or 0)
        if not heads:
            return 0
        if element_bytes is None:
            element_bytes = DTYPE_BYTES.get(self._main_dtype(DTYPE_BYTES), 2)
        if config.get("kv_lora_rank"):
            # Multi-head latent attention caches one compressed row and its rotary part.
            row = int(config["kv_lora_rank"]) + int(config.get("qk_rope_head_dim") or 0)
            return self.attention_layers * row * element_bytes
        head = int(config.get("head_dim") or int(config.get("hidden_size") or 0) // heads)
        shared = int(config.get("num_key_value_heads") or heads)
        return self.attention_layers * 2 * shared * head * element_bytes

    @property
    def state_bytes(self) -> int:
        """Caches of one sequence that do not grow: full sliding windows, recurrent states (float32)
        and the tails of their convolutions."""
        config = self.text_config
        kinds: list[str] = config.get("layer_types") or []
        windows = sum(kind == "sliding_attention" for kind in kinds)
        if windows:
            window = min(int(config.get("sliding_window") or 0), self.context)
            layer = self.cache_bytes_per_token() // max(self.attention_layers, 1)
            return windows * window * layer
        layers = int(config.get("num_hidden_layers") or 0) - self.attention_layers
        if self.family not in GATED_DELTA or layers <= 0:
            return 0
        keys = int(config["linear_num_key_heads"]) * int(config["linear_key_head_dim"])
        values = int(config["linear_num_value_heads"]) * int(config["linear_value_head_dim"])
        tail = (int(config["linear_conv_kernel_dim"]) - 1) * (2 * keys + values)
        return layers * 4 * (values * int(config["linear_key_head_dim"]) + tail)

    @property
    def drafting(self) -> str:
        """``speculative`` where rows can be taken back exactly, else ``target-only``."""
        return "speculative" if self.family in SPECULATIVE else "target-only"

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over config, tokenizer, and of the weights their headers, sizes and some samples.

        Reading all the weights would cost as much as loading them; the samples tell a model from
        another one trained into the same shapes.
        """
        digest = hashlib.sha256()
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            file = self.path / name
            digest.update(name.encode() + b"\0")
            digest.update(file.read_bytes() if file.is_file() else b"")
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tensor}\0".encode())
        for file in sorted(self.path.glob("model*.safetensors")):
            size = file.stat().st_size
            with file.open("rb") as stream:
                for share in range(FINGERPRINT_SAMPLES):
                    stream.seek(size * share // FINGERPRINT_SAMPLES)
                    digest.update(stream.read(4096))
        return digest.hexdigest()


def _read_header(file: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file (format: huggingface.co/docs/safetensors)."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or not 0 < length <= min(size - 8, MAX_HEADER_BYTES):
                raise ModelError(f"{file}: damaged: its header does not fit its {size} bytes")
            header = msgspec.json.decode(stream.read(length), type=dict[str, Any])
    except OSError as error:
        raise ModelError(f"{file}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ModelError(f"{file}: damaged header: {error}") from error
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            start, end = entry["data_offsets"]
            shape, dtype = tuple(entry["shape"]), entry["dtype"]
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{file}: damaged header at {name}: {error!r}") from error
        if end + 8 + length > size:
            raise ModelError(
                f"{file}: truncated: tensor {name} ends at byte {end + 8 + length}, the file has "
                f"{size}; fetch it again"
            )
        tensors[name] = Tensor(file.name, dtype, shape, end - start)
    return tensors
