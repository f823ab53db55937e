"""`pillion models`: which models are here and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import typer

from engine import InstalledModel, installed_models
from sidecar.cli.options import AsJson
from sidecar.cli.terminal import human_bytes, print_facts, print_json


def command(
    as_json: AsJson = False,
) -> None:
    """List the models on this machine, with their memory: weights, cache per token, and both
    together for one sequence as long as the context."""
    models = installed_models()
    if as_json:
        print_json([as_json_types(model) for model in models])
        return
    for index, model in enumerate(models):
        if index:
            typer.echo()
        print_facts(facts(model))


def as_json_types(model: InstalledModel) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(model)
    return shown | {"total_bytes": model.total_bytes}


def facts(model: InstalledModel) -> Iterator[tuple[str, str]]:
    """One model's lines; of a damaged one only what is wrong with it."""
    yield "model", model.name
    yield "problem", model.problem
    if not model.problem:
        yield "family", f"{model.family} ({model.drafting})"
        yield (
            "weights",
            (
                f"{human_bytes(model.weight_bytes)} ({model.parameters / 1e6:.1f} M parameters, "
                f"{model.quantization})"
            ),
        )
        yield "cache", f"{human_bytes(model.cache_bytes_per_token)} a token"
        yield "drafter", _drafter(model)
        yield "memory", f"{human_bytes(model.total_bytes)} at {model.context} tokens of context"
        yield "fits", _fits(model)
    yield "path", model.path


def _drafter(model: InstalledModel) -> str:
    if model.drafter == "copy" or not model.drafter_bytes:
        return model.drafter if model.drafter == "copy" else f"{model.drafter} (not here yet)"
    return f"{model.drafter}, {human_bytes(model.drafter_bytes)}"


def _fits(model: InstalledModel) -> str:
    limit = f"of {human_bytes(model.limit_bytes)} that may be used here"
    if not model.largest_context:
        return f"no: its weights alone are too much {limit}"
    return f"up to {model.largest_context} tokens of context {limit}"
