"""Hub models: fetched from a hub on loopback by the real client, in a process of its own (the
client reads its settings when it is imported)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import Hub, serve_hub
from model_folders import builtin_copy

from engine.builtin import TARGET

PROGRAM = """
import json, sys
from engine import PillionError, installed_models, pull_model
from engine.loading.fetch import fetch
shares = []
for name, revision, refresh in json.loads(sys.argv[1]):
    shares.clear()
    try:
        path = fetch(name, revision, lambda what, share: shares.append(share), refresh=refresh)
        print(json.dumps({"path": str(path), "shares": shares}))
    except PillionError as error:
        print(json.dumps({"error": error.message, "kind": type(error).__name__}))
print(json.dumps([[model.name, model.problem] for model in installed_models()]))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve_hub() as hub:
        hub.repositories["org/tiny"] = TARGET
        yield hub


def fetches(hub: Hub, *asked: tuple[str, str | None, bool]) -> list[Any]:
    """What each fetch came to, then the models that are here."""
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_DOWNLOAD_TIMEOUT": "5"}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(asked)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_a_model_arrives_once_without_its_code_and_stays(hub: Hub, tmp_path: Path) -> None:
    folder = builtin_copy(tmp_path / "model")
    (folder / "modeling_evil.py").write_text("raise SystemExit")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    hub.repositories["org/tiny"] = folder
    hub.cut.add("model.safetensors")
    first, again, pinned, tagged, refreshed, models = fetches(
        hub,
        ("org/tiny", None, False),
        ("org/tiny", None, False),
        ("org/tiny", hub.commit("org/tiny"), False),
        ("org/tiny", "v1", False),
        ("org/tiny", None, True),
    )
    path = Path(first["path"])
    assert {file.name for file in path.iterdir()} == {file.name for file in TARGET.iterdir()}
    for file in TARGET.iterdir():
        assert (path / file.name).read_bytes() == file.read_bytes()
    shares = [share for share in first["shares"] if share is not None]
    assert all(0 <= share <= 1 for share in shares)
    assert shares[-1] == 1.0
    assert any(line.startswith("RESUME model.safetensors") for line in hub.seen)
    # One transfer a file, and one more for the one that was cut off.
    assert sum(line.startswith("GET /org/") for line in hub.seen) == len(list(TARGET.iterdir())) + 1
    assert again == pinned == {"path": first["path"], "shares": []}
    assert tagged["path"] == refreshed["path"] == first["path"]
    asked = [line.rpartition("/")[2] for line in hub.seen if "/revision/" in line]
    assert asked == ["main", "v1", "main"]
    assert ["org/tiny", ""] in models


def test_what_is_wrong_is_said(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["org/gated"] = TARGET
    hub.gated.add("org/gated")
    broken = builtin_copy(tmp_path / "model")
    (broken / "model.safetensors").write_bytes((broken / "model.safetensors").read_bytes()[:-9])
    hub.repositories["org/broken"] = broken
    unknown, revision, gated, truncated, local, models = fetches(
        hub,
        ("org/none", None, False),
        ("org/tiny", "v9", False),
        ("org/gated", None, False),
        ("org/broken", None, False),
        (str(TARGET), "v1", False),
    )
    assert "org/none: the Hub has no such model" in unknown["error"]
    assert revision["error"] == "org/tiny has no revision v9"
    assert "org/gated is gated" in gated["error"]
    assert "model.safetensors: truncated" in truncated["error"]
    assert local["kind"] == "RequestError"
    assert "truncated" in dict(models)["org/broken"]


def test_offline(hub: Hub) -> None:
    fetches(hub, ("org/tiny", None, False))
    gone = Hub("http://127.0.0.1:9")
    here, refreshed, missing, _ = fetches(
        gone, ("org/tiny", None, False), ("org/tiny", None, True), ("org/other", None, False)
    )
    assert here["path"] == refreshed["path"]
    assert "org/other is not on this machine and the Hub cannot be reached" in missing["error"]
    assert "pillion pull" in missing["error"]
