"""Drafts and hidden rows against the same architecture written down a second time."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from drafter_models import TAPS, VOCABULARY, Borrowed, config, drafter_folder, load, oracle

from engine.decoding.sampling import choose, gumbel
from engine.messages import Sampling

FULL, SLIDING = "full_attention", "sliding_attention"
LAYERS = {"full": [FULL, FULL], "sliding": [SLIDING, SLIDING], "mixed": [SLIDING, FULL]}
MATRIX = list(itertools.product((1, 2), (None, True, False), LAYERS))
ANCHOR = 17


def outputs(folder: Path, raw: dict, context: int, seed: int = 0):
    """Hidden rows, logits and greedy drafts: ours, and the oracle's."""
    model = load(drafter_folder(folder, raw, seed))
    borrowed = Borrowed(seed)
    drafter = borrowed.drafter(model)
    drafter.observe(borrowed.rows(0, context))
    drafter.commit([ANCHOR] * (context + 1))
    drafts = drafter.propose(100)
    slow = oracle(folder, model)
    block = borrowed.table[[ANCHOR] + [model.config.mask_token_id] * (model.config.block_size - 1)]
    hidden = slow.block(borrowed.hidden[:context].astype(np.float64), 0, block.astype(np.float64))
    logits = slow.logits(hidden[1:], borrowed.output.astype(np.float64))
    caches = model.new_caches()
    model.append(model.project(borrowed.rows(0, context)), caches)
    ours = np.array(model(mx.array(block)[None], caches)[0])
    if model.config.has_selector:
        expected = slow.chain(hidden[1:], logits, ANCHOR)
    else:
        expected = logits.argmax(axis=-1).tolist()
    return (ours, drafts), (hidden, expected)


@pytest.mark.parametrize(("version", "is_causal", "layers"), MATRIX)
@pytest.mark.parametrize("context", [3, 40])
def test_every_combination_of_layers_and_masks(tmp_path, version, is_causal, layers, context):
    raw = config(version, layer_types=LAYERS[layers], is_causal=is_causal, sliding_window=9)
    (ours, drafts), (hidden, expected) = outputs(tmp_path / "d", raw, context)
    np.testing.assert_allclose(ours, hidden, atol=2e-4)
    assert drafts == expected
    assert len(set(drafts)) > 1


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        {"nested": {"final_logit_softcapping": 2.5}},
        {"final_logit_softcapping": 2.5},
        {"nested": {"input_embedding_scale": 3.0}},
        {"nested": {"output_multiplier": 0.25, "final_logit_softcapping": 5.0}},
        {"num_key_value_heads": 1},
        {"num_key_value_heads": 4},
        {"attention_bias": True},
        {"rope_theta": 50.0},
        {"nested": {"block_size": 3}},
        {"nested": {"target_layer_ids": [5, 0, 2]}},
        {"num_hidden_layers": 1, "rms_norm_eps": 0.1},
    ],
    ids=str,
)
def test_every_other_key(tmp_path, version, change):
    raw = config(version, layer_types=None, **change)
    (ours, drafts), (hidden, expected) = outputs(tmp_path / "d", raw, 12)
    np.testing.assert_allclose(ours, hidden, atol=2e-4)
    assert drafts == expected
    plain = outputs(tmp_path / "plain", config(version), 12)[0]
    if "final_logit_softcapping" not in str(change) and "target_layer_ids" not in str(change):
        assert plain[0].shape != ours.shape or not np.allclose(plain[0], ours)


@pytest.mark.parametrize("taps", [1, 2, 3, 4])
def test_longer_convolutions(tmp_path, taps):
    raw = config(2, {"conv_kernel_size": taps, "conv_group_size": 32 // taps if taps != 3 else 4})
    (ours, drafts), (hidden, expected) = outputs(tmp_path / "d", raw, 5)
    np.testing.assert_allclose(ours, hidden, atol=2e-4)
    assert drafts == expected


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("seed", range(2))
def test_rounds_of_any_length_see_what_one_look_would(tmp_path, layers, seed):
    """Rounds, idle rounds and skipped ones; at any position the oracle, which has no cache,
    drafts the same."""
    raw = config(2, layer_types=LAYERS[layers], is_causal=False, sliding_window=11)
    model = load(drafter_folder(tmp_path / "d", raw, seed))
    borrowed, slow, rng = Borrowed(seed), oracle(tmp_path / "d", model), random.Random(seed)
    drafter = borrowed.drafter(model)
    drafter.commit([ANCHOR])
    end = 0
    while end < 120:
        rows = rng.choice([1, 1, 2, 3, 5, 17, 30])
        drafter.observe(borrowed.rows(end, end + rows))
        tokens = [rng.randrange(VOCABULARY) for _ in range(rows)]
        drafter.commit(tokens)
        end += rows
        assert drafter.length == end
        if rng.random() < 0.4:
            continue
        ids = [tokens[-1]] + [model.config.mask_token_id] * (model.config.block_size - 1)
        block = borrowed.table[ids].astype(np.float64)
        hidden = slow.block(borrowed.hidden[:end].astype(np.float64), 0, block)[1:]
        logits = slow.logits(hidden, borrowed.output.astype(np.float64))
        assert drafter.propose(5) == slow.chain(hidden, logits, tokens[-1])


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_smaller_limit_shortens_the_block(tmp_path, limit):
    model = load(drafter_folder(tmp_path / "d", config(2, is_causal=False)))
    borrowed, slow = Borrowed(), oracle(tmp_path / "d", model)
    drafter = borrowed.drafter(model)
    drafter.observe(borrowed.rows(0, 20))
    drafter.commit([ANCHOR] * 21)
    block = borrowed.table[[ANCHOR] + [model.config.mask_token_id] * limit].astype(np.float64)
    hidden = slow.block(borrowed.hidden[:20].astype(np.float64), 0, block)[1:]
    logits = slow.logits(hidden, borrowed.output.astype(np.float64))
    assert drafter.propose(limit) == slow.chain(hidden, logits, ANCHOR)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", [3, 2**63])
def test_sampled_drafts_use_the_verifiers_noise(tmp_path, version, seed):
    """The token at a position is the argmax of its score over T plus the noise that the verifier
    adds there, in the drafter's own chain."""
    model = load(drafter_folder(tmp_path / "d", config(version)))
    borrowed, slow = Borrowed(), oracle(tmp_path / "d", model)
    sampling = Sampling(temperature=1.5)
    drafter = borrowed.drafter(model, sampling, seed)
    drafter.observe(borrowed.rows(0, 20))
    drafter.commit([ANCHOR] * 21)
    block = borrowed.table[[ANCHOR] + [model.config.mask_token_id] * 5].astype(np.float64)
    hidden = slow.block(borrowed.hidden[:20].astype(np.float64), 0, block)[1:]
    logits = slow.logits(hidden, borrowed.output.astype(np.float64))
    positions = range(21, 26)
    if version == 1:
        expected = choose(mx.array(logits.astype(np.float32)), positions, sampling, seed).tolist()
    else:
        noise = np.array(gumbel(seed, positions, mx.arange(VOCABULARY)))
        expected = slow.chain(hidden, logits, ANCHOR, noise, 1.5)
    assert drafter.propose(5) == expected
    assert drafter.propose(5) == expected
    others = borrowed.drafter(model, sampling, seed + 1)
    others.observe(borrowed.rows(0, 20))
    others.commit([ANCHOR] * 21)
    assert others.propose(5) != expected


def test_taps_are_concatenated_in_the_order_of_the_config(tmp_path):
    raw = config(1, {"target_layer_ids": [5, 0, 2]})
    model = load(drafter_folder(tmp_path / "d", raw))
    assert model.config.target_layer_ids == (5, 0, 2)
    assert model.fc.weight.shape == (32, TAPS * 32)
