"""The torch side of the recipe: its shortcuts against the slow form, and what it exports."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.builtin import TARGET
from engine.builtin.train.dataset import KINDS, LENGTH
from engine.drafters.dflash_config import DFlashConfig

NEEDED = "the recipe's own tests need its extra: pip install -e '.[train]'"
torch = pytest.importorskip("torch", reason=NEEDED)
training = pytest.importorskip("engine.builtin.train.train", reason=NEEDED)
drafting = pytest.importorskip("engine.builtin.train.drafter", reason=NEEDED)
drafters = pytest.importorskip("engine.builtin.train.drafter_model", reason=NEEDED)
exporting = pytest.importorskip("engine.builtin.train.export", reason=NEEDED)
models = pytest.importorskip("engine.builtin.train.model", reason=NEEDED)

SMALL = models.TargetShape(hidden_size=64, intermediate_size=64, num_hidden_layers=4)


@pytest.fixture
def target() -> Any:
    torch.manual_seed(0)
    return models.Target(SMALL).requires_grad_(False)


def delta_inputs(length: int) -> list[Any]:
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, length, 3, 16) for _ in range(3))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    log_decay, beta = -2.0 * torch.rand(2, length, 3), torch.rand(2, length, 3)
    return [x.requires_grad_() for x in (q, k, v, log_decay, beta)]


@pytest.mark.parametrize("length", [1, 63, 64, 200])
def test_the_chunked_rule_is_the_recurrence(length: int) -> None:
    results = []
    for rule in (models.recurrent_delta, lambda *x: models.chunked_delta(*x, dtype=torch.float32)):
        inputs = delta_inputs(length)
        out, state = rule(*inputs)
        (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
        results.append([out.detach(), state.detach(), *(x.grad for x in inputs)])
    for slow, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow, atol=2e-4, rtol=2e-4)


def test_a_state_is_carried_between_chunked_calls() -> None:
    inputs = [x.detach() for x in delta_inputs(192)]
    whole, last = models.chunked_delta(*inputs, dtype=torch.float32)
    _, state = models.chunked_delta(*(x[:, :128] for x in inputs), dtype=torch.float32)
    rest, end = models.chunked_delta(
        *(x[:, 128:] for x in inputs), state=state, dtype=torch.float32
    )
    torch.testing.assert_close(rest, whole[:, 128:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(end, last, atol=1e-5, rtol=1e-5)


def test_decoding_step_by_step_is_the_training_forward(target: Any) -> None:
    ids = torch.arange(128)[None] * 31 % 4096
    whole, _ = target(ids)
    cache = target.empty_cache()
    steps = torch.cat([target(ids[:, i : i + 8], cache)[0] for i in range(0, 128, 8)], 1)
    # The training forward multiplies in bfloat16, so single elements are off by more.
    assert (steps - whole).norm() < 0.03 * whole.norm()


def test_the_export_computes_the_same(target: Any, tmp_path: Path) -> None:
    ids = [31 * i % 4096 for i in range(40)]
    exporting.export_target(target, tmp_path, TARGET, torch.float32)
    assert exporting.largest_difference(target, tmp_path, ids) < 1e-3


@pytest.mark.parametrize("shape", [drafters.FIRST, drafters.SECOND])
def test_a_drafter_has_the_published_tensors(shape: Any, tmp_path: Path) -> None:
    drafter = drafters.Drafter(shape)
    config = json.loads(json.dumps(exporting.drafter_config(shape)))
    parsed = DFlashConfig.parse(config, tmp_path / "config.json")
    ours = {name: tuple(weight.shape) for name, weight in drafter.state_dict().items()}
    assert ours == parsed.tensor_shapes()
    assert parsed.target_layer_ids == shape.target_layer_ids


def test_the_second_drafter_starts_as_the_first(target: Any) -> None:
    sizes = {"hidden_size": 64, "num_target_layers": 4, "target_layer_ids": (0, 3)}
    first = drafters.Drafter(drafters.DrafterShape(**sizes))
    shape = {**sizes, "conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 4}
    second = drafters.Drafter(drafters.DrafterShape(**shape, selector_top_k=4))
    second.load_state_dict(first.state_dict(), strict=False)
    for layer in second.layers:
        for conv in (layer.attention_conv, layer.mlp_conv):
            conv.kernel_projection.weight.data.zero_()
    seen = drafting.lessons(target, torch.arange(64)[None] * 31 % 4096, (0, 3))
    anchors = torch.tensor([[20, 40]])
    losses = [drafting.slot_loss(drafter, target, seen, anchors)[0] for drafter in (first, second)]
    torch.testing.assert_close(losses[0], losses[1], atol=0.02, rtol=0.01)


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in KINDS:
        rows = np.random.default_rng(0).integers(16, 4096, (9, LENGTH)).astype(np.uint16)
        np.savez(tmp_path / f"{kind}.npz", rows=rows, weights=np.full_like(rows, 10, np.uint8))
    monkeypatch.setattr(training, "EVERY", 2)

    def run(name: str, start: Path | None = None) -> Any:
        given = argparse.Namespace(
            data=tmp_path, out=tmp_path / name, start=start, stage="doors", steps=4, rate=0.01,
            decay_from=0.25, compile=False,
        )  # fmt: skip
        training.train(given)
        return torch.load(tmp_path / name, weights_only=True)

    class Killed(Exception):
        pass

    unbroken = run("unbroken.pt")
    save = training.save

    def save_and_die(path: Path, content: Any) -> None:
        save(path, content)
        raise Killed

    monkeypatch.setattr(training, "save", save_and_die)
    with pytest.raises(Killed):
        run("broken.pt")
    monkeypatch.setattr(training, "save", save)
    resumed = run("broken.pt")
    assert resumed["step"] == unbroken["step"] == 4
    for name, weight in unbroken["weights"].items():
        torch.testing.assert_close(resumed["weights"][name], weight, atol=0, rtol=0)
