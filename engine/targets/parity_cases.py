"""What `engine.targets.parity` compares: checkpoints, inputs, what the official side is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from engine.builtin import DRAFTERS, TARGET
from engine.drafters.dflash_config import DFlashConfig
from engine.drafters.random_checkpoint import write_random_drafter, write_random_target
from engine.json_file import read_json

HIDDEN, VOCABULARY, FEW, TARGET_LAYERS = 64, 512, 6, 6
PROMPT = 40
WINDOW, WIDE = 24, 1 << 16
FULL, SLIDING = "full_attention", "sliding_attention"
# The official loader reads drafters out of the Hub's cache only; this names a revision in it.
REVISION = "0" * 40

TARGET_CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "num_hidden_layers": TARGET_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": FEW,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1 << 16,
    "tie_word_embeddings": False,
}
TAPS = [1, 3, 4]
INSIDE: dict[str, Any] = {"target_layer_ids": TAPS, "mask_token_id": 3, "block_size": 8}
SELECTOR = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 16, "selector_top_k": 16}
SCALES = {"final_logit_softcapping": 4.0, "output_multiplier": 0.7, "input_embedding_scale": 1.5}

# Layers, window, is_causal, whether scaled and capped, whether rounds may append a single row.
SCRIPTED = (
    ((FULL, FULL), None, None, False, True),
    ((FULL, FULL), None, True, True, True),
    ((FULL, FULL), None, False, False, True),
    ((SLIDING, SLIDING), WINDOW, None, True, False),
    ((SLIDING, SLIDING), WINDOW, True, False, True),
    ((SLIDING, SLIDING), WINDOW, False, False, False),
    ((SLIDING, SLIDING), WIDE, False, True, True),
    ((SLIDING, FULL), WINDOW, None, False, False),
    ((SLIDING, FULL), WINDOW, True, True, False),
    ((FULL, SLIDING), WINDOW, False, False, True),
)


@dataclass(frozen=True)
class Case:
    """order: what the official side is told (JSON). drafter: the checkpoint's folder. inputs: of
    a scripted case, else empty. target: of a generation case."""

    name: str
    drafter: Path
    order: dict[str, Any]
    inputs: dict[str, mx.array] = field(default_factory=dict)
    target: Path | None = None


def scripted(folder: Path, rounds: int) -> Iterator[Case]:
    """Cases without a target: `rounds` times given hidden rows and an anchor."""
    for version in (1, 2):
        for seed, (layers, window, causal, scaled, singles) in enumerate(SCRIPTED):
            words = [f"DFlash {version}", *dict.fromkeys(kind.split("_")[0] for kind in layers)]
            words += [f"window {window}"] * bool(window) + [f"is_causal {causal}".lower()]
            name = ", ".join(words + ["capped"] * scaled)
            rng = np.random.default_rng(seed)
            rows = [PROMPT, *rng.integers(1 if singles else 2, 9, size=rounds - 1).tolist()]
            sizes = {
                "hidden": (sum(rows), len(TAPS) * HIDDEN),
                "embedding": (VOCABULARY, HIDDEN),
                "head": (VOCABULARY, HIDDEN),
            }
            inputs = {
                key: mx.array(rng.normal(size=size).astype(np.float32))
                for key, size in sizes.items()
            }
            repository, drafter = _repository(folder, name)
            raw = drafter_config(version, layers, window, causal, SCALES if scaled else {})
            write_random_drafter(drafter, raw, seed=seed)
            file = drafter.parent / "rounds.safetensors"
            mx.save_safetensors(str(file), inputs)
            order = {
                "drafter": repository,
                "rounds": str(file),
                "rows": rows,
                "anchors": rng.integers(VOCABULARY, size=rounds).tolist(),
                "growing_caches": singles and window == WINDOW,
            }
            yield Case(name, drafter, order, inputs)


def generated(folder: Path, rounds: int) -> Iterator[Case]:
    """Cases with a target: random ones, and the built-in model with what drafters it has.

    Random models with six tokens agree often enough for accepted lengths to differ.
    """
    target = write_random_target(folder / "target", TARGET_CONFIG)
    for version in (1, 2):
        name = f"DFlash {version}, loop on a dense target"
        repository, drafter = _repository(folder, name)
        raw = drafter_config(version, (FULL, FULL), None, False, {}, FEW)
        write_random_drafter(drafter, raw, seed=7)
        yield _generation(name, target, repository, drafter, rounds)
    for shipped in DRAFTERS:
        if shipped.is_dir():
            name = f"built-in {shipped.name}, loop on its target"
            repository, drafter = _repository(folder, name)
            drafter.symlink_to(shipped)
            yield _generation(name, TARGET, repository, drafter, rounds)


def drafter_config(
    version: int,
    layers: tuple[str, ...],
    window: int | None,
    causal: bool | None,
    inside: Mapping[str, Any],
    vocabulary: int = VOCABULARY,
) -> dict[str, Any]:
    """A raw config.json."""
    selector = SELECTOR | {"selector_top_k": min(16, vocabulary)} if version == 2 else {}
    return TARGET_CONFIG | {
        "architectures": ["DFlashDraftModel" if version == 1 else "DFlash2DraftModel"],
        "num_hidden_layers": len(layers),
        "num_target_layers": TARGET_LAYERS,
        "vocab_size": vocabulary,
        "layer_types": list(layers),
        "sliding_window": window,
        "is_causal": causal,
        "dflash_config": {**INSIDE, **selector, **inside},
    }


def _generation(name: str, target: Path, repository: str, drafter: Path, rounds: int) -> Case:
    file = drafter / "config.json"
    block = DFlashConfig.parse(read_json(file), file).block_size
    order = {
        "target": str(target),
        "drafter": repository,
        "prompt": [1, 4, 2, 5, 3, 0, 2, 2, 4, 1, 5, 5],
        # More than is compared: near its end the official loop shortens its blocks.
        "max_tokens": (rounds + 2) * block,
        "rounds": rounds,
    }
    return Case(name, drafter, order, target=target)


def _repository(folder: Path, name: str) -> tuple[str, Path]:
    """A repository in a Hub cache: its name, and the folder (not made) of its one revision.

    Layout: huggingface.co/docs/huggingface_hub/guides/manage-cache.
    """
    own = "-".join("".join(c if c.isalnum() else " " for c in name).split())
    root = folder / "hub" / f"models--pillion--{own}"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(REVISION)
    (root / "snapshots").mkdir()
    return f"pillion/{own}", root / "snapshots" / REVISION
