"""Model folders, read without loading them: facts, and damage that is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from model_folders import builtin_copy, change_json, header_of, shard, write_safetensors
from tiny_models import CONFIGS, FAMILIES, LATER, tiny

from engine import ModelError
from engine.builtin import TARGET
from engine.loading.checkpoint import SPECULATIVE, Checkpoint
from engine.targets.target import bind


def test_facts_of_the_builtin_model() -> None:
    checkpoint = Checkpoint(TARGET)
    checkpoint.check()
    assert checkpoint.family == "qwen3_5"
    assert checkpoint.drafting == "speculative"
    assert checkpoint.quantization == "bfloat16"
    assert checkpoint.context == checkpoint.vocab_size == 4096
    assert checkpoint.parameters == 7_500_720
    assert checkpoint.weight_bytes == 2 * checkpoint.parameters + 48


def test_sizes_equal_the_loaded_models(tmp_path: Path) -> None:
    for family in FAMILIES:
        model, config = tiny(family)
        change_json(tmp_path / "config.json", **config)
        weights = dict(tree_flatten(model.parameters()))
        mx.save_safetensors(str(tmp_path / "model.safetensors"), weights)
        checkpoint = Checkpoint(tmp_path)
        assert checkpoint.parameters == sum(array.size for array in weights.values()), family
        assert checkpoint.weight_bytes == sum(array.nbytes for array in weights.values()), family
        target = bind(model, config)
        caches = target.new_caches()
        target.prefill([1] * 256, caches)
        grown, fixed = 0, 0
        for cache in caches:
            nbytes = sum(array.nbytes for array in arrays(cache.state))
            if hasattr(cache, "keys"):
                grown += nbytes
            else:
                fixed += nbytes
        assert grown == 256 * checkpoint.cache_bytes_per_token(), family
        assert fixed == checkpoint.state_bytes, family
        (tmp_path / "config.json").unlink()


def arrays(state: object) -> list[mx.array]:
    if isinstance(state, mx.array):
        return [state]
    items = state if isinstance(state, list | tuple) else []
    return [array for item in items for array in arrays(item)]


def test_quantised_weights_are_counted_unpacked(tmp_path: Path) -> None:
    import mlx.nn as nn

    model, config = tiny("llama")
    whole = sum(array.size for _, array in tree_flatten(model.parameters()))
    nn.quantize(
        model,
        group_size=32,
        bits=4,
        class_predicate=lambda _, m: (
            hasattr(m, "weight") and m.weight.shape[-1] % 32 == 0 and hasattr(m, "to_quantized")
        ),
    )
    change_json(tmp_path / "config.json", **config, quantization={"group_size": 32, "bits": 4})
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.parameters == whole
    assert checkpoint.quantization == "4-bit, group 32"


@pytest.mark.parametrize("family", [*CONFIGS, "gemma4_text", "muse_glimmer", "nemotron_h"])
def test_speculative_families_are_those_whose_rows_can_be_taken_back(family: str) -> None:
    assert bind(*tiny(family)).speculative
    assert family in SPECULATIVE
    assert family in CONFIGS | LATER


def damage_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def not_json(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((5).to_bytes(8, "little") + b"{]]]}data")


def entry_without_offsets(folder: Path) -> None:
    header, data = header_of(folder / "model.safetensors")
    header[next(name for name in header if name != "__metadata__")].pop("data_offsets")
    write_safetensors(folder / "model.safetensors", header, data)


def missing_shard(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def truncated_shard(folder: Path) -> None:
    shard(folder)
    file = folder / "model-00001-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def shard_without_a_tensor(folder: Path) -> None:
    shard(folder)
    file = folder / "model-00002-of-00002.safetensors"
    header, data = header_of(file)
    header.pop(next(iter(header)))
    write_safetensors(file, header, data)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (damage_header, r"model\.safetensors: damaged"),
        (truncate, r"model\.safetensors: truncated: tensor \S+ ends at byte \d+, the file has \d+"),
        (empty, r"model\.safetensors: damaged"),
        (not_json, r"model\.safetensors: damaged header"),
        (entry_without_offsets, r"model\.safetensors: damaged header at \S+"),
        (missing_shard, r"model-00002-of-00002\.safetensors: missing; .* expects \S+ in it"),
        (truncated_shard, r"model-00001-of-00002\.safetensors: truncated: tensor \S+"),
        (shard_without_a_tensor, r"model-00002-of-00002\.safetensors: has no tensor \S+"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"no model\*\.safetensors"),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json: missing"),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json: "),
        (
            lambda folder: change_json(folder / "config.json", model_type=None),
            r"config\.json: model_type: missing",
        ),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], object], named: str) -> None:
    folder = builtin_copy(tmp_path / "model")
    damage(folder)
    with pytest.raises(ModelError, match=named):
        Checkpoint(folder).check()


def test_shards_make_the_same_checkpoint(tmp_path: Path) -> None:
    folder = builtin_copy(tmp_path / "model")
    shard(folder)
    checkpoint = Checkpoint(folder)
    checkpoint.check()
    assert checkpoint.parameters == Checkpoint(TARGET).parameters


def test_fingerprints_tell_models_apart(tmp_path: Path) -> None:
    folder = builtin_copy(tmp_path / "model")
    same = Checkpoint(folder).fingerprint
    assert same == Checkpoint(TARGET).fingerprint
    header, data = header_of(folder / "model.safetensors")
    write_safetensors(folder / "model.safetensors", header, bytes(255 - byte for byte in data))
    retrained = Checkpoint(folder).fingerprint
    change_json(folder / "tokenizer_config.json", chat_template="x")
    assert len({same, retrained, Checkpoint(folder).fingerprint}) == 3
