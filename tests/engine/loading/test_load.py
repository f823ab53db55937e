"""Loading: equal to mlx_lm's own, described truly, and refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from model_folders import builtin_copy, change_json, header_of, write_safetensors
from tiny_models import FAMILIES, tiny

from engine import EngineOptions, ModelError, RequestError, Sampling
from engine.builtin import TARGET
from engine.loading.load import Loaded, default_sampling, load


def loaded(model: str | Path, **options: object) -> Loaded:
    return load(EngineOptions(model=str(model), **options), lambda what, share: None)


def saved(folder: Path, model: nn.Module, config: dict, **changes: object) -> Path:
    """A folder with the built-in tokenizer and the weights of `model`."""
    builtin_copy(folder)
    (folder / "config.json").unlink()
    change_json(folder / "config.json", **config, **changes)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    return folder


def test_the_builtin_model_equals_mlx_lms() -> None:
    from mlx_lm.utils import load_model

    said = []
    ours = load(EngineOptions(), lambda what, share: said.append(what))
    theirs, _ = load_model(TARGET)
    tokens = mx.array([ours.codec.encode("def add(a, b):\n    return")])
    assert mx.array_equal(ours.model(tokens), theirs(tokens))
    assert said
    info = ours.info
    assert (info.id, info.family, info.context) == ("builtin", "qwen3_5", 4096)
    assert info.eos_token_ids == (0, 2)
    assert info.has_fim
    assert info.has_chat_template
    assert info.weight_bytes == sum(array.nbytes for _, array in tree_flatten(theirs.parameters()))
    assert info.default_sampling == Sampling()


@pytest.mark.parametrize("family", FAMILIES)
def test_families(tmp_path: Path, family: str) -> None:
    model, config = tiny(family)
    ours = loaded(saved(tmp_path / "model", model, config))
    tokens = mx.array([[1, 2, 3]])
    assert mx.array_equal(ours.model(tokens), model(tokens))
    assert ours.info.family == family
    assert ours.info.id == "model"
    assert ours.config["model_type"] == family


def quantised(folder: Path) -> Path:
    model, config = tiny("llama", mx.bfloat16)
    nn.quantize(
        model,
        group_size=32,
        bits=8,
        class_predicate=lambda _, layer: (
            hasattr(layer, "to_quantized") and layer.weight.shape[-1] % 32 == 0
        ),
    )
    return saved(folder, model, config, quantization={"group_size": 32, "bits": 8})


def dtypes(model: nn.Module) -> set[mx.Dtype]:
    arrays = [array for _, array in tree_flatten(model.parameters())]
    return {array.dtype for array in arrays if mx.issubdtype(array.dtype, mx.floating)}


@pytest.mark.parametrize(
    ("asked", "expected"), [("bfloat16", mx.bfloat16), ("float32", mx.float32)]
)
def test_dtype(tmp_path: Path, asked: str, expected: mx.Dtype) -> None:
    folder = quantised(tmp_path / "model")
    assert dtypes(loaded(folder, dtype=asked).model) == {expected}


def test_auto_dtype_casts_quantised_models_on_a_cpu(tmp_path: Path) -> None:
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    ours = loaded(quantised(tmp_path / "model"))
    assert dtypes(ours.model) == {mx.float32 if on_cpu else mx.bfloat16}
    assert ours.info.quantization == "8-bit, group 32"
    # Two layers with two key-value heads of 16, keys and values.
    assert ours.info.cache_bytes_per_token == 2 * 2 * 16 * 2 * (4 if on_cpu else 2)
    assert mx.bfloat16 in dtypes(loaded("builtin").model)


def test_a_model_keeps_the_weights_it_wants_exact(tmp_path: Path) -> None:
    model, config = tiny("qwen3_5")
    ours = loaded(saved(tmp_path / "model", model, config), dtype="bfloat16")
    kinds = {
        path.endswith("A_log"): array.dtype for path, array in tree_flatten(ours.model.parameters())
    }
    assert kinds == {True: mx.float32, False: mx.bfloat16}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"context": 8 * 4096 + 1}, "context"),
        ({"context": 0}, "context"),
        ({"dtype": "float16"}, "dtype"),
        ({"model": "nothing"}, "model"),
        ({"revision": "main"}, "revision"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict, field: str) -> None:
    with pytest.raises(RequestError, match=field) as refused:
        loaded(**({"model": "builtin"} | options))
    assert refused.value.field == field


def test_the_context_is_as_asked() -> None:
    """Of the built-in model it may be longer than what it was trained on: agents' prompts are."""
    assert loaded("builtin", context=32768).info.context == 32768
    assert loaded("builtin", context=512).info.context == 512


def with_own_code(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    change_json(folder / "config.json", model_file="evil.py")


def without_a_tensor(folder: Path) -> None:
    header, data = header_of(folder / "model.safetensors")
    header.pop(sorted(header)[-1])
    write_safetensors(folder / "model.safetensors", header, data)


def with_a_wrong_shape(folder: Path) -> None:
    change_json(folder / "config.json", text_config={"hidden_size": 128})


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (
            lambda folder: change_json(folder / "config.json", model_type="nosuch"),
            r"config\.json: model_type: mlx-lm has no model 'nosuch'",
        ),
        (
            lambda folder: change_json(folder / "config.json", model_type="../evil"),
            r"config\.json: model_type",
        ),
        (with_own_code, r"config\.json: model_file"),
        (without_a_tensor, r"Missing 1 parameters"),
        (with_a_wrong_shape, r"config\.json|model"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), r"tokenizer\.json"),
        (
            lambda folder: change_json(
                folder / "generation_config.json", do_sample=True, temperature="hot"
            ),
            r"generation_config\.json",
        ),
    ],
)
def test_what_cannot_be_loaded_is_named(
    tmp_path: Path, damage: Callable[[Path], object], named: str
) -> None:
    folder = builtin_copy(tmp_path / "model")
    damage(folder)
    with pytest.raises(ModelError, match=named):
        loaded(folder)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, Sampling()),
        ({"do_sample": False, "temperature": 0.7}, Sampling()),
        ({"do_sample": True}, Sampling(temperature=1.0)),
        ({"temperature": 0.6, "top_p": 0.95}, Sampling(temperature=0.6, top_p=0.95)),
        (
            {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": None},
            Sampling(temperature=0.7, top_p=0.8, top_k=20),
        ),
    ],
)
def test_default_sampling(tmp_path: Path, values: dict, expected: Sampling) -> None:
    change_json(tmp_path / "generation_config.json", **values)
    assert default_sampling(tmp_path) == expected
