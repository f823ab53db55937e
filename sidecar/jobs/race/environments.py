"""Other implementations, each installed into a virtual environment of its own."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from engine import EngineError

PIP_SECONDS = 1800.0
_COMPLETE = "versions.json"
_VERSIONS = (
    "import importlib.metadata, json, platform; "
    "print(json.dumps({'python': platform.python_version()} | "
    "{found.metadata['Name']: found.version for found in importlib.metadata.distributions()}))"
)


class PeerEnvironment(Struct, frozen=True, kw_only=True):
    """requirements: pinned, for pip. alone: such whose dependencies are not installed, because
    they are large and not needed for what is measured."""

    name: str
    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()


class Installed(Struct, frozen=True, kw_only=True):
    """python: the environment's interpreter. versions: by distribution, of everything in it."""

    python: Path
    versions: dict[str, str]

    def program(self, name: str) -> str:
        """A command that a package of the environment brought."""
        return str(self.python.with_name(name))


def install(environment: PeerEnvironment, folder: Path) -> Installed:
    """Make the environment below `folder`, if it is not there yet.

    Raises EngineError with pip's reason. What an interrupted installation left is made again.
    """
    digest = hashlib.sha256(msgspec.json.encode(environment)).hexdigest()[:8]
    place = folder / f"{environment.name}-{digest}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f".{place.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (place / _COMPLETE).exists():
                shutil.rmtree(place, ignore_errors=True)
                _make(environment, place)
            versions = msgspec.json.decode((place / _COMPLETE).read_bytes(), type=dict[str, str])
    except OSError as error:
        raise EngineError(f"{error.filename or place}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise EngineError(f"{place / _COMPLETE} is damaged; remove {place}") from error
    return Installed(python=_python(place), versions=versions)


def _make(environment: PeerEnvironment, place: Path) -> None:
    _run([sys.executable, "-P", "-m", "venv", str(place)], environment.name)
    python = str(_python(place))
    pip = [python, "-P", "-m", "pip", "--disable-pip-version-check"]
    pip += ["install", "--quiet", "--no-compile"]
    if environment.requirements:
        _run([*pip, *environment.requirements], environment.name)
    if environment.alone:
        _run([*pip, "--no-deps", *environment.alone], environment.name)
    said = _run([python, "-P", "-c", _VERSIONS], environment.name)
    (place / _COMPLETE).write_bytes(said.encode())


def _python(place: Path) -> Path:
    return place / "bin" / "python"


def _run(command: list[str], name: str) -> str:
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=PIP_SECONDS,
            env=peer_environment(os.environ),
        )
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"{name} could not be installed within {PIP_SECONDS:.0f} seconds"
        ) from None
    if ended.returncode:
        said = [line for line in ended.stderr.splitlines() if line.strip()]
        errors = [line for line in said if "ERROR" in line or "Error" in line] or said
        why = errors[-1].strip() if errors else f"exit code {ended.returncode}"
        raise EngineError(f"{name} could not be installed: {why}")
    return ended.stdout


def peer_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without what would lead another Python into our packages, and with one thread for
    whatever asks: all that is compared computes on one."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
    return kept | dict.fromkeys(threads, "1") | offline
