"""Which models are on this machine. Reads headers only; imports no mlx."""

from __future__ import annotations

from pathlib import Path

from engine.errors import ModelError
from engine.loading.checkpoint import Checkpoint
from engine.loading.memory_plan import plan
from engine.loading.pairs import AUTO, COPY, drafter_folder, drafter_source
from engine.loading.registry import BUILTIN, SMOLLM2, resolve
from engine.messages import InstalledModel


def describe(name: str, path: Path) -> InstalledModel:
    """Facts about the model in `path`. Raises ModelError naming file and key."""
    checkpoint = Checkpoint(path)
    checkpoint.check()
    folder = drafter_folder(AUTO, name)
    try:
        memory = plan(name, checkpoint, drafter=Checkpoint(folder) if folder else None)
        return InstalledModel(
            name=name,
            path=str(path),
            family=checkpoint.family,
            drafting=checkpoint.drafting,
            quantization=checkpoint.quantization,
            parameters=checkpoint.parameters,
            context=checkpoint.context,
            weight_bytes=checkpoint.weight_bytes,
            cache_bytes_per_token=checkpoint.cache_bytes_per_token(),
            state_bytes=checkpoint.state_bytes,
            drafter=Path(drafter_source(AUTO, name) or COPY).name,
            drafter_bytes=memory.drafter,
            limit_bytes=memory.limit,
            largest_context=memory.largest_context,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path / 'config.json'}: {type(error).__name__}: {error}") from error


def installed() -> list[InstalledModel]:
    """The built-in model, `smollm2-135m` once fetched, and the language models of the Hub's cache,
    in this order. One that is damaged or not whole is listed with its problem."""
    found = []
    for name in (BUILTIN, SMOLLM2):
        path = resolve(name).path
        assert path is not None
        if path.is_dir():
            found.append((name, path))
    return [_described(name, path) for name, path in [*found, *_hub_models()]]


def _described(name: str, path: Path) -> InstalledModel:
    try:
        return describe(name, path)
    except ModelError as error:
        return InstalledModel(name=name, path=str(path), problem=error.message)


def _hub_models() -> list[tuple[str, Path]]:
    """Name and newest snapshot of each cached repository with a config.json and weights.

    Layout: huggingface.co/docs/huggingface_hub/guides/manage-cache.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    models = []
    for repository in sorted(Path(HF_HUB_CACHE).glob("models--*--*")):
        name = "/".join(repository.name.split("--")[1:])
        snapshots = [
            snapshot
            for snapshot in repository.glob("snapshots/*")
            if (snapshot / "config.json").is_file() and any(snapshot.glob("model*.safetensors*"))
        ]
        if snapshots:
            models.append((name, max(snapshots, key=lambda snapshot: snapshot.stat().st_mtime)))
    return models
