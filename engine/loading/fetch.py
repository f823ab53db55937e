"""Getting a model onto this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.errors import ModelError, RequestError
from engine.loading.checkpoint import Checkpoint
from engine.loading.registry import Source, resolve

Progress = Callable[[str, float | None], None]
# Weights, configuration, tokenizer and template; never a model's own code.
PATTERNS = [
    "*.json",
    "*.jinja",
    "*.txt",
    "*.tiktoken",
    "model*.safetensors",
    "tokenizer.model",
    "tiktoken.model",
]


def fetch(name: str, revision: str | None, progress: Progress, *, refresh: bool = False) -> Path:
    """The folder of the model `name`, downloaded first if it is not here.

    revision: a Hub branch, tag or commit; only Hub models have one. progress: what is being done,
    and its share in [0, 1] where known. refresh: ask the Hub for a newer state of a model that is
    here. A download that was cut off goes on where it stopped (the Hub's client keeps whole blocks
    of 10 MB). Raises ModelError that says what to do, or RequestError (``model``, ``revision``).
    """
    source = resolve(name)
    if revision is not None and source.kind != "hub":
        raise RequestError(f"{name} has no revisions; only Hub models have", field="revision")
    if source.kind == "hub":
        here = None if refresh else hub_folder(name, revision)
        return here or _fetch_from_hub(source, revision, progress)
    assert source.path is not None
    if source.kind == "smollm2" and not (source.path / "config.json").is_file():
        from engine.loading.smollm2 import fetch_smollm2

        fetch_smollm2(source.path, progress)
    return source.path


def hub_folder(name: str, revision: str | None = None) -> Path | None:
    """The folder of a whole Hub model that is here already; touches no network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        path = Path(
            snapshot_download(
                name, revision=revision, allow_patterns=PATTERNS, local_files_only=True
            )
        )
        Checkpoint(path).check()
    except (LocalEntryNotFoundError, ModelError):
        return None
    return path


def _fetch_from_hub(source: Source, revision: str | None, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    progress(f"fetching {source.name}", None)
    at = f" at revision {revision}" if revision else ""
    try:
        path = snapshot_download(
            source.name,
            revision=revision,
            allow_patterns=PATTERNS,
            tqdm_class=_progress_bar(source.name, progress),
        )
    except GatedRepoError as error:
        raise ModelError(
            f"{source.name} is gated: accept its terms on the Hub, then run `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{source.name} has no revision {revision}") from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{source.name}: the Hub has no such model, or it is private (then run "
            f"`hf auth login`); a folder is written ./{source.name}"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{source.name}{at} is not on this machine and the Hub cannot be reached: go online "
            "and run `pillion pull` again, or give the path of a folder"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(
            f"fetching {source.name}{at} failed: {error}; run `pillion pull` again to go on"
        ) from error
    Checkpoint(Path(path)).check()
    return Path(path)


def _progress_bar(name: str, progress: Progress) -> type[Any]:
    """A silent tqdm class that reports the share of bytes that are here.

    The whole grows while the files' sizes become known, so at first the share may fall."""
    # tqdm ships no types.
    from tqdm import tqdm  # type: ignore[import-untyped]

    # So its class is untyped too.
    class Reporting(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            # Bytes are counted twice, when they arrive and when they are in their place.
            arrivals = str(kwargs.pop("name", "")).endswith(".transfer")
            self._counts_bytes = kwargs.get("unit") == "B" and not arrivals
            super().__init__(*args, **(kwargs | {"disable": True}))
            # A disabled bar keeps no count of its own.
            self.total, self.n = kwargs.get("total"), kwargs.get("initial") or 0

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self._counts_bytes and self.total:
                progress(f"fetching {name}", min(self.n / self.total, 1.0))

    return Reporting
