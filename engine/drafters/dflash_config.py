"""What a DFlash drafter's config.json says, checked.

Read from the raw JSON, never through a model library's config class: transformers' Qwen3Config,
for one, drops `sliding_window` unless `use_sliding_window` is set. Keys and defaults are those of
the official loader (PyPI ``dflash`` 0.1.0); what it would read wrongly in silence is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelError

ARCHITECTURES = {"DFlashDraftModel": False, "DFlash2DraftModel": True}
"""Whether each has dynamic convolutions and a candidate selector (DFlash 2)."""

LAYER_TYPES = ("full_attention", "sliding_attention")

RELATIVES = (
    *("markov", "confidence", "dspark", "dfly", "fusion", "correction", "speculators"),
    *("attention_sink", "attention_value_scale", "backbone_rotary", "use_swa"),
)
"""Parts of key names by which other drafters that build on DFlash give themselves away: DSpark,
DFly, hybrids with a Markov head, vLLM's speculators packaging; and MiMo's, with attention sinks."""

_REQUIRED: Any = object()


@dataclass(frozen=True)
class DFlashConfig:
    """One drafter's architecture.

    rope: the whole `rope_parameters` or `rope_scaling`, None for plain RoPE with `rope_theta`.
    layer_types: one of `LAYER_TYPES` a layer. is_causal: None means causal in sliding layers only.
    target_layer_ids: 0-based target layers whose outputs are the context, in the order of `fc`.
    softcap: 0 is off. conv_* and selector_*: 0 but in DFlash 2.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope: Mapping[str, Any] | None
    max_position_embeddings: int
    num_target_layers: int
    layer_types: tuple[str, ...]
    sliding_window: int | None
    is_causal: bool | None
    attention_bias: bool
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    input_embedding_scale: float
    output_multiplier: float
    softcap: float
    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int

    @classmethod
    def parse(cls, raw: Mapping[str, Any], file: Path) -> DFlashConfig:
        """The config in `raw`, the JSON of `file`. Raises ModelError (``file: key: reason``)."""
        return _Fields(raw, file).config()

    def check_target(
        self, file: Path, *, hidden_size: int, vocab_size: int, num_layers: int
    ) -> None:
        """Raise ModelError naming the key that does not fit a target of these sizes."""
        for key, own, its in (
            ("hidden_size", self.hidden_size, hidden_size),
            ("num_target_layers", self.num_target_layers, num_layers),
        ):
            if own != its:
                raise ModelError(f"{file}: {key}: {own}, but the target has {its}")
        # A head padded for the hardware may be larger than what the drafter was trained on.
        if self.vocab_size > vocab_size:
            raise ModelError(
                f"{file}: vocab_size: {self.vocab_size}, but the target has {vocab_size}"
            )
        if self.mask_token_id >= vocab_size:
            raise ModelError(
                f"{file}: dflash_config.mask_token_id: {self.mask_token_id}, but the target has "
                f"{vocab_size} tokens"
            )

    @property
    def has_selector(self) -> bool:
        """Whether this is a DFlash 2 drafter."""
        return self.selector_top_k > 0

    @property
    def reach(self) -> int | None:
        """How many context rows a draft can depend on; None when a layer sees all of them."""
        return self.layer_reach("sliding_attention") if self.all_sliding else None

    @property
    def all_sliding(self) -> bool:
        return "full_attention" not in self.layer_types

    def layer_reach(self, layer_type: str) -> int | None:
        """Context rows a layer of this type sees; None for all. The window includes the query."""
        if layer_type == "full_attention":
            return None
        assert self.sliding_window is not None
        return self.sliding_window - 1

    def causal(self, layer_type: str) -> bool:
        """Whether a block row sees only the block rows before it."""
        return layer_type == "sliding_attention" if self.is_causal is None else self.is_causal

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the checkpoint, by its published name; [out, in] as in torch."""
        hidden, inner, head = self.hidden_size, self.intermediate_size, self.head_dim
        queries, shared = self.num_attention_heads * head, self.num_key_value_heads * head
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (hidden, len(self.target_layer_ids) * hidden),
            "hidden_norm.weight": (hidden,),
            "norm.weight": (hidden,),
        }
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (queries, hidden),
            "self_attn.k_proj.weight": (shared, hidden),
            "self_attn.v_proj.weight": (shared, hidden),
            "self_attn.o_proj.weight": (hidden, queries),
            "self_attn.q_norm.weight": (head,),
            "self_attn.k_norm.weight": (head,),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
        if self.attention_bias:
            for name, size in zip("qkvo", (queries, shared, shared, hidden), strict=True):
                layer[f"self_attn.{name}_proj.bias"] = (size,)
        if self.has_selector:
            taps, groups = self.conv_kernel_size, hidden // self.conv_group_size
            for name in ("attention_conv", "mlp_conv"):
                layer[f"{name}.base_kernel"] = (2, taps, hidden)
                layer[f"{name}.kernel_projection.weight"] = (2 * taps * groups, hidden)
            codebook = (self.vocab_size, self.selector_rank)
            shapes["candidate_selector.predecessor_codebook"] = codebook
            shapes["candidate_selector.successor_codebook"] = codebook
            shapes["candidate_selector.hidden_projection.weight"] = (self.selector_rank, hidden)
        for index in range(self.num_hidden_layers):
            shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
        return shapes


class _Fields:
    """Reads keys of one config.json, each checked; an error names the file and the key."""

    def __init__(self, raw: Mapping[str, Any], file: Path) -> None:
        self._raw = raw
        self._file = file
        self._nested: Mapping[str, Any] = self._mapping("dflash_config") or {}

    def config(self) -> DFlashConfig:
        self._refuse_relatives()
        layers = self._integer("num_hidden_layers")
        target_layers = self._integer("num_target_layers")
        layer_types = self._layer_types(layers)
        block_size = self._integer("block_size", default=16, least=2, nested=True)
        rope, theta = self._rope()
        config = DFlashConfig(
            hidden_size=self._integer("hidden_size"),
            num_hidden_layers=layers,
            num_attention_heads=self._integer("num_attention_heads"),
            num_key_value_heads=self._integer("num_key_value_heads"),
            head_dim=self._integer("head_dim"),
            intermediate_size=self._integer("intermediate_size"),
            vocab_size=self._integer("vocab_size"),
            rms_norm_eps=self._number("rms_norm_eps"),
            rope_theta=theta,
            rope=rope,
            max_position_embeddings=self._integer("max_position_embeddings"),
            num_target_layers=target_layers,
            layer_types=layer_types,
            sliding_window=self._window(layer_types, block_size),
            is_causal=self._flag("is_causal"),
            attention_bias=bool(self._flag("attention_bias")),
            block_size=block_size,
            mask_token_id=self._integer("mask_token_id", least=0, nested=True),
            target_layer_ids=self._target_layer_ids(layers, target_layers),
            input_embedding_scale=self._number("input_embedding_scale", 1.0, nested=True),
            output_multiplier=self._number("output_multiplier", 1.0, nested=True),
            softcap=self._number("final_logit_softcapping", 0.0, nested=True),
            **self._selector(),
        )
        if config.num_attention_heads % config.num_key_value_heads:
            raise self._wrong(
                "num_key_value_heads",
                f"{config.num_key_value_heads} does not divide num_attention_heads "
                f"({config.num_attention_heads})",
            )
        if config.softcap < 0:
            raise self._wrong("final_logit_softcapping", f"{config.softcap} is below 0")
        if config.has_selector and config.hidden_size % config.conv_group_size:
            raise self._wrong(
                "dflash_config.conv_group_size",
                f"{config.conv_group_size} does not divide hidden_size ({config.hidden_size})",
            )
        if config.selector_top_k > config.vocab_size:
            raise self._wrong(
                "dflash_config.selector_top_k",
                f"{config.selector_top_k} is more than vocab_size ({config.vocab_size})",
            )
        return config

    def _refuse_relatives(self) -> None:
        for prefix, keys in (("", self._raw), ("dflash_config.", self._nested)):
            for key, value in keys.items():
                if value and any(part in key.lower() for part in RELATIVES):
                    reason = "of another kind of drafter; only DFlash and DFlash 2 are read"
                    raise self._wrong(f"{prefix}{key}", reason)
        for key in ("quantization", "quantization_config"):
            if self._raw.get(key):
                reason = "already quantised; take the original, which is quantised as it is loaded"
                raise self._wrong(key, reason)
        if self._raw.get("partial_rotary_factor") not in (None, 1):
            raise self._wrong("partial_rotary_factor", "a drafter rotates whole heads")
        if (activation := self._raw.get("hidden_act")) not in (None, "silu", "swish"):
            raise self._wrong("hidden_act", f"{activation!r} is not silu")

    def _selector(self) -> dict[str, int]:
        names = self._raw.get("architectures") or ["DFlashDraftModel"]
        if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
            raise self._wrong("architectures", f"{names!r} is none of {', '.join(ARCHITECTURES)}")
        keys = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        if ARCHITECTURES[names[0]]:
            return {key: self._integer(key, nested=True) for key in keys}
        for key in keys:
            if self._integer(key, default=0, least=0, nested=True):
                raise self._wrong(key, f"architectures is {names[0]}, which has none")
        return dict.fromkeys(keys, 0)

    def _layer_types(self, layers: int) -> tuple[str, ...]:
        value = self._raw.get("layer_types")
        if value is None:
            return ("full_attention",) * layers
        if not isinstance(value, list) or len(value) != layers:
            raise self._wrong("layer_types", f"{value!r} is not a list of {layers} layers")
        for kind in value:
            if kind not in LAYER_TYPES:
                raise self._wrong("layer_types", f"{kind!r} is none of {', '.join(LAYER_TYPES)}")
        return tuple(value)

    def _window(self, layer_types: tuple[str, ...], block_size: int) -> int | None:
        if "sliding_attention" not in layer_types:
            return None
        # The official back ends disagree about a block longer than the window.
        return self._integer("sliding_window", least=block_size)

    def _rope(self) -> tuple[Mapping[str, Any] | None, float]:
        key = "rope_parameters" if self._raw.get("rope_parameters") else "rope_scaling"
        rope = self._mapping(key)
        if rope is not None and any(kind in rope for kind in LAYER_TYPES):
            raise self._wrong(key, "differs by layer type, which no known drafter does")
        where = "rope_theta"
        theta = self._raw.get(where)
        if theta is None and rope is not None:
            where, theta = f"{key}.rope_theta", rope.get("rope_theta")
        if theta is None:
            raise self._wrong("rope_theta", "missing, also in rope_parameters")
        return rope, self._checked_number(where, theta)

    def _target_layer_ids(self, layers: int, target_layers: int) -> tuple[int, ...]:
        where, value = self._find("target_layer_ids", nested=True)
        if value is None:
            value = fallback_layer_ids(target_layers, layers)
        if not isinstance(value, list) or not value:
            raise self._wrong(where, f"{value!r} is not a list of layers")
        for layer in value:
            if not _is_integer(layer) or not 0 <= layer < target_layers:
                raise self._wrong(where, f"{layer!r} is no layer of {target_layers}")
        return tuple(value)

    def _find(self, key: str, nested: bool) -> tuple[str, Any]:
        """The full name and the value of a key: in `dflash_config`, if it may be, else on top."""
        if nested and self._nested.get(key) is not None:
            return f"dflash_config.{key}", self._nested[key]
        value = self._raw.get(key)
        return f"dflash_config.{key}" if nested and value is None else key, value

    def _integer(
        self, key: str, *, default: int = _REQUIRED, least: int = 1, nested: bool = False
    ) -> int:
        where, value = self._find(key, nested)
        value = default if value is None else value
        if value is _REQUIRED:
            raise self._wrong(where, "missing")
        if not _is_integer(value) or value < least:
            raise self._wrong(where, f"{value!r} is not an integer of at least {least}")
        return int(value)

    def _number(self, key: str, default: float = _REQUIRED, *, nested: bool = False) -> float:
        where, value = self._find(key, nested)
        value = default if value is None else value
        if value is _REQUIRED:
            raise self._wrong(where, "missing")
        return self._checked_number(where, value)

    def _checked_number(self, where: str, value: Any) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            raise self._wrong(where, f"{value!r} is not a finite number")
        return float(value)

    def _flag(self, key: str) -> bool | None:
        value = self._raw.get(key)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(key, f"{value!r} is neither true, false nor null")
        return value

    def _mapping(self, key: str) -> Mapping[str, Any] | None:
        value = self._raw.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self._wrong(key, f"{value!r} is not an object")
        return value

    def _wrong(self, key: str, reason: str) -> ModelError:
        return ModelError(f"{self._file}: {key}: {reason}")


def fallback_layer_ids(target_layers: int, layers: int) -> list[int]:
    """The target layers of a checkpoint that names none: spread between the second and the
    third from the end (the official rule)."""
    if layers == 1:
        return [target_layers // 2]
    return [round(1 + i * (target_layers - 4) / (layers - 1)) for i in range(layers)]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
