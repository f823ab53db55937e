from __future__ import annotations

import sys
from pathlib import Path

import mlx.core as mx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_models import EXACT_FAMILIES, LATENT_FAMILIES, tiny

from engine.errors import ModelError
from engine.targets.target import bind

TOKENS = [5, 77, 3, 90, 41, 8]


@pytest.mark.parametrize("family", [*EXACT_FAMILIES, *LATENT_FAMILIES])
def test_tapping_changes_no_logits_and_the_last_tap_is_what_the_head_reads(family):
    model, config = tiny(family)
    plain = model(mx.array([TOKENS]))
    mx.eval(plain)
    target = bind(model, config)
    last = len(model.layers) - 1
    target.tap([0, last])
    caches = target.new_caches()
    # Mamba-2 rows are run one by one where they may be taken back.
    atol = 1e-4 if family == "nemotron_h" else 0.0
    assert mx.allclose(target.forward(TOKENS, caches), plain[0], rtol=0.0, atol=atol)
    rows = target.take_hidden()
    width = rows.shape[1] // 2
    assert rows.shape == (len(TOKENS), 2 * 32)
    norm = next(
        m for n, m in model.named_modules() if n.endswith(("model.norm", "norm_f")) or n == "norm"
    )
    logits = target.head(norm(rows[:, width:]))
    assert mx.argmax(logits, -1).tolist() == mx.argmax(plain[0], -1).tolist()


@pytest.mark.parametrize("family", EXACT_FAMILIES)
def test_hidden_rows_are_the_same_in_one_forward_and_row_by_row(family):
    target = bind(*tiny(family))
    target.tap([1])
    target.forward(TOKENS, target.new_caches())
    together = target.take_hidden()
    caches, rows = target.new_caches(), []
    for token in TOKENS:
        target.forward([token], caches)
        rows.append(target.take_hidden())
    assert mx.array_equal(together, mx.concatenate(rows))


def test_embedding_rows_are_scaled_as_the_model_scales_them():
    target = bind(*tiny("gemma4_text"))
    table = target.model.model.embed_tokens
    assert mx.allclose(target.embed(mx.array([3])), table(mx.array([3])) * 32**0.5)


def test_a_layer_that_is_not_there_is_named():
    target = bind(*tiny("llama"))
    with pytest.raises(ModelError, match="no layer 2"):
        target.tap([0, 2])


def test_untapping_leaves_the_model_as_it_was():
    target = bind(*tiny("llama"))
    layers = list(target.model.layers)
    target.tap([0, 1])
    assert list(target.model.layers) != layers
    target.untap()
    assert list(target.model.layers) == layers
    assert not target.tapped
