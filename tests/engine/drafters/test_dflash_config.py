from __future__ import annotations

import json
from pathlib import Path

import pytest
from drafter_models import CONFIG, HIDDEN, LAYERS, VOCABULARY, config

from engine.drafters.dflash_config import DFlashConfig, fallback_layer_ids
from engine.errors import ModelError

FILE = Path("drafter/config.json")

# As published (huggingface.co/z-lab/Qwen3.8-27B-DFlash2, Muse-Glimmer-30B-DFlash2).
QWEN = {
    "architectures": ["DFlash2DraftModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "dtype": "bfloat16",
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "is_causal": False,
    "layer_types": ["sliding_attention"] * 5,
    "max_position_embeddings": 262144,
    "max_window_layers": 5,
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
    "dflash_config": {
        "block_size": 8,
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "mask_token_id": 248070,
        "selector_rank": 256,
        "selector_top_k": 16,
        "target_layer_ids": [5, 19, 33, 47, 61],
    },
}
MUSE = QWEN | {
    "hidden_size": 6656,
    "intermediate_size": 19968,
    "num_target_layers": 52,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
    "vocab_size": 202048,
    "dflash_config": QWEN["dflash_config"]
    | {
        "block_size": 16,
        "final_logit_softcapping": 20.0,
        "mask_token_id": 201818,
        "output_multiplier": 0.19611613513818404,
        "target_layer_ids": [1, 13, 25, 37, 49],
    },
}


def parse(raw: dict) -> DFlashConfig:
    # Through JSON, as from a file.
    return DFlashConfig.parse(json.loads(json.dumps(raw)), FILE)


def without(key: str, raw: dict = CONFIG) -> dict:
    return {name: value for name, value in raw.items() if name != key}


def test_the_published_qwen_drafter():
    read = parse(QWEN)
    assert read.has_selector
    assert (read.block_size, read.mask_token_id) == (8, 248070)
    assert read.target_layer_ids == (5, 19, 33, 47, 61)
    assert read.rope_theta == 1e7
    assert read.is_causal is False
    assert not read.causal("sliding_attention")
    assert read.reach == 2047
    assert (read.softcap, read.output_multiplier, read.input_embedding_scale) == (0.0, 1.0, 1.0)
    shapes = read.tensor_shapes()
    assert len(shapes) == 81
    assert shapes["fc.weight"] == (5120, 25600)
    assert shapes["layers.4.mlp_conv.kernel_projection.weight"] == (1280, 5120)
    assert shapes["candidate_selector.predecessor_codebook"] == (248320, 256)


def test_the_published_muse_drafter():
    read = parse(MUSE)
    assert (read.block_size, read.softcap, read.output_multiplier) == (
        16,
        20.0,
        0.19611613513818404,
    )
    assert read.tensor_shapes()["layers.0.attention_conv.kernel_projection.weight"] == (1664, 6656)


def test_a_first_version_drafter_with_everything_on_top():
    """The older layout: Qwen3-8B-DFlash-b16 and community drafters."""
    raw = without("dflash_config") | {
        "target_layer_ids": [1, 3],
        "mask_token_id": 9,
        "block_size": 16,
        "final_logit_softcapping": 30.0,
        "rope_scaling": None,
    }
    read = parse(raw)
    assert not read.has_selector
    assert (read.target_layer_ids, read.mask_token_id, read.block_size) == ((1, 3), 9, 16)
    assert read.softcap == 30.0
    assert read.layer_types == ("full_attention",) * 2
    assert read.is_causal is None
    assert read.reach is None
    assert len(read.tensor_shapes()) == 11 * 2 + 3


def test_nested_values_win_over_those_on_top():
    nested = {"block_size": 4, "final_logit_softcapping": 5.0}
    read = parse(config(1, nested, block_size=7, final_logit_softcapping=6.0))
    assert (read.block_size, read.softcap) == (4, 5.0)


def test_defaults():
    inside = {key: value for key, value in CONFIG["dflash_config"].items() if key != "block_size"}
    assert parse(CONFIG | {"dflash_config": inside}).block_size == 16
    assert not parse(without("architectures")).has_selector
    assert not parse(CONFIG).attention_bias


@pytest.mark.parametrize(
    ("layers", "target_layers", "ids"),
    [(1, 36, [18]), (5, 64, [1, 16, 31, 46, 61]), (5, 36, [1, 9, 17, 25, 33])],
)
def test_layer_ids_where_none_are_given(layers, target_layers, ids):
    assert fallback_layer_ids(target_layers, layers) == ids
    raw = without("dflash_config") | {
        "mask_token_id": 0,
        "num_hidden_layers": layers,
        "num_target_layers": target_layers,
    }
    assert parse(raw).target_layer_ids == tuple(ids)


@pytest.mark.parametrize(
    ("is_causal", "sliding", "full"),
    [(None, True, False), (True, True, True), (False, False, False)],
)
def test_what_is_causal_means(is_causal, sliding, full):
    read = parse(config(is_causal=is_causal))
    assert (read.causal("sliding_attention"), read.causal("full_attention")) == (sliding, full)


def test_theta_on_top_wins_and_the_rest_of_rope_is_kept():
    scaling = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5.0}
    read = parse(CONFIG | {"rope_theta": 10.0, "rope_parameters": scaling})
    assert (read.rope_theta, read.rope) == (10.0, scaling)
    read = parse(without("rope_theta") | {"rope_scaling": scaling})
    assert (read.rope_theta, read.rope) == (5.0, scaling)


REQUIRED = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "rms_norm_eps",
    "rope_theta",
    "max_position_embeddings",
    "num_target_layers",
]


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_keys_are_named(key):
    with pytest.raises(ModelError, match=rf"drafter/config.json: {key}: missing"):
        parse(without(key))


@pytest.mark.parametrize("key", [key for key in REQUIRED if key != "rope_theta"])
@pytest.mark.parametrize("value", ["5120", [1], True, -1, float("inf")])
def test_values_of_the_wrong_kind_are_named(key, value):
    if key == "rms_norm_eps" and value == -1:
        return
    with pytest.raises(ModelError, match=rf"drafter/config.json: {key}: "):
        DFlashConfig.parse(CONFIG | {key: value}, FILE)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("architectures", {"architectures": ["Qwen3DSparkModel"]}),
        ("architectures", {"architectures": ["DFlashDraftModel", "Other"]}),
        ("architectures", {"architectures": "DFlashDraftModel"}),
        ("markov_rank", {"markov_rank": 256}),
        ("dflash_config.markov_rank", {"nested": {"markov_rank": 4}}),
        ("dspark_block_size", {"dspark_block_size": 5}),
        ("confidence_head_alpha", {"confidence_head_alpha": 1.0}),
        ("layer_fusion_weights", {"layer_fusion_weights": True}),
        ("hidden_correction", {"hidden_correction": {"rank": 4}}),
        ("speculators_config", {"speculators_config": {"algorithm": "dflash"}}),
        ("dflash_config.attention_sink_bias", {"nested": {"attention_sink_bias": True}}),
        ("quantization", {"quantization": {"bits": 4, "group_size": 64}}),
        ("hidden_act", {"hidden_act": "gelu"}),
        ("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
        ("layer_types", {"layer_types": ["full_attention"]}),
        ("layer_types", {"layer_types": ["full_attention", "linear_attention"]}),
        ("layer_types", {"layer_types": "full_attention"}),
        ("sliding_window", {"layer_types": ["sliding_attention", "full_attention"]}),
        ("sliding_window", {"layer_types": ["sliding_attention"] * 2, "sliding_window": 5}),
        ("is_causal", {"is_causal": "false"}),
        ("is_causal", {"is_causal": 0}),
        ("attention_bias", {"attention_bias": 1}),
        ("dflash_config.block_size", {"nested": {"block_size": 1}}),
        ("block_size", {"dflash_config": {"mask_token_id": 1}, "block_size": "8"}),
        ("dflash_config.mask_token_id", {"dflash_config": {"target_layer_ids": [1]}}),
        ("dflash_config.mask_token_id", {"nested": {"mask_token_id": -1}}),
        ("dflash_config.target_layer_ids", {"nested": {"target_layer_ids": [0, 6]}}),
        ("dflash_config.target_layer_ids", {"nested": {"target_layer_ids": []}}),
        ("dflash_config.target_layer_ids", {"nested": {"target_layer_ids": [True]}}),
        ("dflash_config.output_multiplier", {"nested": {"output_multiplier": "0.2"}}),
        ("final_logit_softcapping", {"nested": {"final_logit_softcapping": -30}}),
        ("dflash_config.input_embedding_scale", {"nested": {"input_embedding_scale": [2]}}),
        ("dflash_config", {"dflash_config": [1]}),
        ("rope_parameters", {"rope_parameters": "default"}),
        ("rope_parameters", {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}),
        ("num_key_value_heads", {"num_key_value_heads": 3}),
        ("conv_kernel_size", {"nested": {"conv_kernel_size": 2}}),
        ("selector_top_k", {"nested": {"selector_top_k": 16}}),
    ],
    ids=str,
)
def test_what_is_refused_is_named(key, change):
    with pytest.raises(ModelError, match=rf"^drafter/config.json: {key}: "):
        parse(config(1, **change) if "nested" in change else CONFIG | change)


@pytest.mark.parametrize(
    ("key", "nested"),
    [
        ("conv_kernel_size", {"conv_kernel_size": 0}),
        ("conv_group_size", {"conv_group_size": 5}),
        ("selector_rank", {"selector_rank": None}),
        ("selector_top_k", {"selector_top_k": VOCABULARY + 1}),
    ],
)
def test_a_second_version_drafter_needs_sound_modules(key, nested):
    with pytest.raises(ModelError, match=rf"^drafter/config.json: dflash_config.{key}: "):
        parse(config(2, nested))


def test_switched_off_relatives_are_no_reason_to_refuse():
    parse(config(1, {"attention_sink_bias": False, "markov_rank": 0, "num_anchors": 512}))


@pytest.mark.parametrize(
    ("key", "target"),
    [
        ("hidden_size", {"hidden_size": HIDDEN + 1}),
        ("num_target_layers", {"num_layers": LAYERS - 1}),
        ("vocab_size", {"vocab_size": VOCABULARY - 1}),
    ],
)
def test_a_drafter_for_another_target_is_refused(key, target):
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCABULARY, "num_layers": LAYERS}
    parse(CONFIG).check_target(FILE, **sizes)
    with pytest.raises(ModelError, match=rf"config.json: {key}: .* the target has"):
        parse(CONFIG).check_target(FILE, **(sizes | target))


def test_a_target_with_a_padded_head_is_fine_but_masks_need_a_row():
    sizes = {"hidden_size": HIDDEN, "num_layers": LAYERS}
    parse(CONFIG).check_target(FILE, vocab_size=VOCABULARY + 32, **sizes)
    far = parse(config(1, {"mask_token_id": VOCABULARY + 5}))
    far.check_target(FILE, vocab_size=VOCABULARY + 32, **sizes)
    with pytest.raises(ModelError, match="mask_token_id"):
        far.check_target(FILE, vocab_size=VOCABULARY, **sizes)
