"""What a fingerprint depends on, and that weights are not read twice."""

from __future__ import annotations

import json
from pathlib import Path

from engine.messages import EngineOptions
from engine.prefix_cache.fingerprint import DIGESTS, computed_by, fingerprint


def made(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "README.md").write_text("about it")
    return folder


def test_every_byte_of_what_counts(tmp_path: Path) -> None:
    model, cache = made(tmp_path / "m"), tmp_path / "c"
    cache.mkdir()
    first = fingerprint([model], ["a"], cache)
    assert fingerprint([model], ["a"], cache) == first
    assert fingerprint([model], ["b"], cache) != first
    assert fingerprint([model, made(tmp_path / "drafter")], ["a"], cache) != first
    (model / "README.md").write_text("more about it")
    assert fingerprint([model], ["a"], cache) == first
    (model / "chat_template.jinja").write_text("{{ message }}")
    second = fingerprint([model], ["a"], cache)
    assert second != first
    (model / "model.safetensors").write_bytes(b"Weights")
    assert fingerprint([model], ["a"], cache) != second


def test_digests_are_kept_and_not_trusted_when_they_are_nonsense(tmp_path: Path) -> None:
    model = made(tmp_path / "m")
    first = fingerprint([model], [], tmp_path)
    kept = json.loads((tmp_path / DIGESTS).read_text())
    assert len(kept) == 2
    kept = dict.fromkeys(kept, "0" * 64)
    (tmp_path / DIGESTS).write_text(json.dumps(kept))
    assert fingerprint([model], [], tmp_path) != first, "the files were read again"
    for text in ("", "[]", "{"):
        (tmp_path / DIGESTS).write_text(text)
        assert fingerprint([model], [], tmp_path) == first
    assert fingerprint([model], [], tmp_path / "no such folder") == first


def test_what_decides_about_bits() -> None:
    plain = computed_by(EngineOptions(), "dflash", "stock", 0)
    assert computed_by(EngineOptions(), "dflash", "stock", 0) == plain
    for other in (
        computed_by(EngineOptions(dtype="float32"), "dflash", "stock", 0),
        computed_by(EngineOptions(), "", "stock", 0),
        computed_by(EngineOptions(), "dflash", "ours", 0),
        computed_by(EngineOptions(), "dflash", "stock", 64),
    ):
        assert other != plain
