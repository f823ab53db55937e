"""What a model's name stands for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine import ModelError, RequestError
from engine.builtin import TARGET
from engine.loading.registry import cache_dir, resolve


def test_names() -> None:
    assert resolve("builtin").path == TARGET
    assert resolve("smollm2-135m").kind == "smollm2"
    assert resolve("mlx-community/Qwen3-0.6B-4bit").kind == "hub"


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    (tmp_path / "mine").mkdir()
    (home / "its").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("./mine", str(tmp_path / "mine")):
        source = resolve(name)
        assert (source.kind, source.path, source.name) == ("folder", tmp_path / "mine", "mine")
    assert resolve("~/its").path == home / "its"


def test_a_folder_in_the_current_directory_never_replaces_a_hub_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "qwen").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name").kind == "hub"
    with pytest.raises(RequestError, match="folder"):
        resolve("qwen")
    assert resolve("./org/name").kind == "folder"


@pytest.mark.parametrize("name", ["", "qwen", "a b", "org//x y"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises((RequestError, ModelError), match=r"model"):
        resolve(name)


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(ModelError, match=r"\./nowhere: no such folder"):
        resolve("./nowhere")


def test_where_fetched_models_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    if sys.platform == "darwin":
        assert cache_dir() == home / "Library" / "Caches" / "pillion"
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache_dir() == tmp_path / "pillion"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache_dir() == home / ".cache" / "pillion"
    monkeypatch.setenv("PILLION_CACHE", "~/elsewhere")
    assert cache_dir() == home / "elsewhere"
