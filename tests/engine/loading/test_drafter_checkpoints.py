"""Loading drafters: what is exactly right loads, everything else is refused by file and name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

sys.path.insert(0, str(Path(__file__).parents[1] / "drafters"))

from drafter_models import (
    CONFIG,
    HIDDEN,
    LAYERS,
    VOCABULARY,
    Borrowed,
    config,
    drafter_folder,
    load,
)

from engine.errors import ModelError, RequestError
from engine.loading.drafter import load_drafter
from engine.messages import Sampling


@pytest.fixture(params=[1, 2])
def folder(request, tmp_path) -> Path:
    return drafter_folder(tmp_path / "drafter", config(request.param))


def tensors(folder: Path) -> dict[str, mx.array]:
    return dict(mx.load(str(folder / "model.safetensors")))


def rewrite(folder: Path, arrays: dict[str, mx.array]) -> None:
    mx.save_safetensors(str(folder / "model.safetensors"), arrays)


def drafts(model, sampling: Sampling | None = None) -> list[int]:
    drafter = Borrowed().drafter(model, sampling)
    drafter.observe(Borrowed().rows(0, 20))
    drafter.commit([5] * 21)
    return drafter.propose(5)


def test_a_whole_checkpoint_loads_as_it_is(folder):
    model = load(folder)
    stored = tensors(folder)
    loaded = dict(tree_flatten(model.parameters()))
    assert set(loaded) == set(stored)
    assert all(mx.array_equal(loaded[name], stored[name]) for name in stored)
    assert len(drafts(model)) == 5


def test_shards_are_put_together(folder):
    arrays = tensors(folder)
    names = sorted(arrays)
    whole = drafts(load(folder))
    (folder / "model.safetensors").unlink()
    for index, part in enumerate((names[::2], names[1::2])):
        mx.save_safetensors(
            str(folder / f"model-0000{index + 1}-of-00002.safetensors"),
            {name: arrays[name] for name in part},
        )
    assert drafts(load(folder)) == whole


@pytest.mark.parametrize("name", ["fc.weight", "layers.1.self_attn.k_norm.weight", "norm.weight"])
def test_a_missing_tensor_is_named(folder, name):
    arrays = tensors(folder)
    del arrays[name]
    rewrite(folder, arrays)
    with pytest.raises(ModelError, match=rf"model.safetensors: {name}: missing"):
        load(folder)


@pytest.mark.parametrize(
    "name",
    ["candidate_selector.successor_codebook", "layers.0.mlp_conv.kernel_projection.weight"],
)
def test_a_missing_selector_or_convolution_is_named(tmp_path, name):
    folder = drafter_folder(tmp_path / "d", config(2))
    arrays = tensors(folder)
    del arrays[name]
    rewrite(folder, arrays)
    with pytest.raises(ModelError, match=rf"{name}: missing"):
        load(folder)


@pytest.mark.parametrize(
    "name",
    [
        "layers.2.input_layernorm.weight",
        "markov_head.weight",
        "candidate_selector.successor_codebook.weight",
        "fc.scales",
    ],
)
def test_a_foreign_tensor_is_named(folder, name):
    rewrite(folder, tensors(folder) | {name: mx.zeros((4,))})
    with pytest.raises(ModelError, match=rf"model.safetensors: {name}: no tensor"):
        load(folder)


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight"])
def test_a_borrowed_tensor_is_explained(folder, name):
    rewrite(folder, tensors(folder) | {name: mx.zeros((VOCABULARY, HIDDEN))})
    with pytest.raises(ModelError, match=rf"{name}: a drafter takes these from its target"):
        load(folder)


def test_a_tensor_of_another_shape_is_named(folder):
    arrays = tensors(folder)
    arrays["layers.0.mlp.down_proj.weight"] = mx.zeros((40, HIDDEN))
    rewrite(folder, arrays)
    expected = (
        r"layers.0.mlp.down_proj.weight: shape \[40, 32\], but config.json asks for \[32, 40\]"
    )
    with pytest.raises(ModelError, match=expected):
        load(folder)


def test_a_tensor_of_another_dtype_is_named(folder):
    arrays = tensors(folder)
    arrays["norm.weight"] = arrays["norm.weight"].astype(mx.int32)
    rewrite(folder, arrays)
    with pytest.raises(ModelError, match=r"norm.weight: dtype I32"):
        load(folder)


@pytest.mark.parametrize("missing_bytes", [1, 5000])
def test_a_truncated_file_is_named(folder, missing_bytes):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-missing_bytes])
    with pytest.raises(ModelError, match=r"model.safetensors: truncated: tensor .* fetch it again"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 64, b"{}"])
def test_a_file_that_is_none_is_named(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model.safetensors"):
        load(folder)


def test_a_folder_without_weights_or_config_is_named(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no model"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config.json: missing"):
        load(folder)


@pytest.mark.parametrize(
    ("rope", "problem"),
    [
        ({"rope_type": "linear"}, "rope_parameters.factor: missing"),
        ({"rope_type": "spiral"}, "rope_parameters: Unsupported RoPE type spiral"),
    ],
)
def test_a_rope_that_cannot_be_built_is_named(tmp_path, rope, problem):
    raw = config(1, rope_parameters=rope | {"rope_theta": 1e4})
    with pytest.raises(ModelError, match=rf"config.json: {problem}"):
        load(drafter_folder(tmp_path / "d", raw))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 8.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    ],
)
def test_scaled_rope_is_honoured(tmp_path, rope):
    plain = load(drafter_folder(tmp_path / "plain", config(1)))
    scaled = load(drafter_folder(tmp_path / "scaled", config(1, rope_parameters=rope)))
    assert drafts(plain) != drafts(scaled)


@pytest.mark.parametrize(
    "sizes", [{"hidden_size": 64}, {"vocab_size": 90}, {"num_layers": 7}], ids=str
)
def test_a_drafter_for_another_target_is_refused(folder, sizes):
    target = {"hidden_size": HIDDEN, "vocab_size": VOCABULARY, "num_layers": LAYERS} | sizes
    with pytest.raises(ModelError, match=r"config.json: .* the target has"):
        load_drafter(folder, bits=None, progress=lambda what, share: None, **target)


@pytest.mark.parametrize("bits", [0, 3, 16])
def test_only_four_and_eight_bits(folder, bits):
    with pytest.raises(RequestError, match="draft_bits must be 4, 8 or none"):
        load(folder, bits)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_the_stack_is_quantised_and_the_rest_is_not(tmp_path, bits, dtype):
    folder = drafter_folder(tmp_path / "d", config(2, hidden_size=64))
    rewrite(folder, {name: array.astype(dtype) for name, array in tensors(folder).items()})
    model = load_drafter(
        folder,
        hidden_size=64,
        vocab_size=VOCABULARY,
        num_layers=LAYERS,
        bits=bits,
        progress=lambda what, share: None,
    )
    quantised = {
        name for name, module in model.named_modules() if isinstance(module, nn.QuantizedLinear)
    }
    parts = {f"self_attn.{x}_proj" for x in "qkvo"} | {f"mlp.{x}_proj" for x in ("gate", "up")}
    assert quantised == {"fc"} | {f"layers.{i}.{part}" for i in range(2) for part in parts}
    for name in ("mlp.down_proj", "attention_conv.kernel_projection", "mlp_conv.kernel_projection"):
        module = model.layers[0]
        for part in name.split("."):
            module = module[part]
        assert isinstance(module, nn.Linear), name
    # Half precision overflows in a quantised stack, and on a CPU 16-bit scales are slow.
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    activations = mx.float32 if on_cpu or dtype == mx.float32 else mx.bfloat16
    assert model.dtype == activations
    assert model.fc.scales.dtype == activations
    assert model.candidate_selector.predecessor_codebook.dtype == activations


def test_quantised_drafts_resemble_the_originals(tmp_path):
    folder = drafter_folder(tmp_path / "d", config(2))
    exact = load(folder)

    def hidden(model):
        caches = model.new_caches()
        model.append(model.project(Borrowed().rows(0, 20)), caches)
        return np.array(model(mx.array(Borrowed().table[:6])[None], caches)).ravel()

    exact_rows = hidden(exact)
    near = [np.corrcoef(exact_rows, hidden(load(folder, bits)))[0, 1] for bits in (4, 8)]
    # Random weights hide errors worse than trained ones; noise would be near 0.
    assert near[0] > 0.5
    assert near[1] > 0.99


def test_progress_comes_to_an_end(folder):
    shares: list[float | None] = []
    load_drafter(
        folder,
        hidden_size=HIDDEN,
        vocab_size=VOCABULARY,
        num_layers=LAYERS,
        bits=None,
        progress=lambda what, share: shares.append(share),
    )
    assert shares == sorted(shares)
    assert shares[0] == 0.0


def test_keys_are_read_from_the_raw_file(folder):
    """`sliding_window` counts whatever `use_sliding_window` says."""
    raw = json.loads((folder / "config.json").read_text())
    raw |= {
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": 7,
        "use_sliding_window": False,
    }
    (folder / "config.json").write_text(json.dumps(raw))
    assert load(folder).config.reach == 6
    assert CONFIG["num_hidden_layers"] == 2
