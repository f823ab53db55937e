"""The shipped model is the one that was released."""

from __future__ import annotations

from pathlib import Path

from engine.builtin import DRAFTERS, TARGET
from engine.builtin.__main__ import FOLDER, MANIFEST, check


def test_every_shipped_file_is_listed_and_whole() -> None:
    sizes, faults = check(FOLDER, MANIFEST.read_text("utf-8"))
    assert faults == []
    files = [path for folder in (TARGET, *DRAFTERS) for path in folder.rglob("*")]
    shipped = {path.relative_to(FOLDER).as_posix() for path in files if path.is_file()}
    assert {name for name, _ in sizes} == shipped


def test_a_damaged_and_a_missing_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    good = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert check(tmp_path, f"{good}  a\n") == ([("a", 5)], [])
    sizes, faults = check(tmp_path, f"{'0' * 64}  a\n{good}  b\n")
    assert sizes == []
    assert faults[0].startswith("a: SHA-256 is 2cf24d")
    assert faults[1] == "b: No such file or directory"
