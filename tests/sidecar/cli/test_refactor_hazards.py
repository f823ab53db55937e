"""One refactor over a project in which everything is in the way that can be."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from pillion_command import Pillion

from engine import EngineClient, GenerateRequest
from engine.testing import FakeEngine
from sidecar.cli.private_daemon import daemon_in_thread
from sidecar.config import Config
from sidecar.edits.crash_trials import fingerprint

FILES = {
    "a.py": b"x = self.a\r\n",
    "b/c.py": b"\xef\xbb\xbfx = self.c",
    "binary.py": b"self\0",
    "deleted.py": b"x = self.deleted\n",
    "edited.py": b"x = self.edited\n",
    "encoding.py": b"# caf\xe9 self\n",
    "full.py": b"x = self.full\n",
    "libs/module/d.py": b"x = self.d\n",
    "libs/module/.git": b"gitdir: ../../.git/modules/module\n",
    "read_only.py": b"x = self.read_only\n",
    "untouched.txt": b"nothing of that name\n",
}
LEFT_OUT = {
    "binary.py": "is binary",
    "deleted.py": "is gone",
    "edited.py": "was changed meanwhile",
    "encoding.py": "is no UTF-8 text (byte 5)",
    "full.py": "cannot be written: No space left on device",
    "large.py": "has 52428800 bytes; at most 1048576 are edited",
    "libs/module/d.py": "belongs to another repository, libs/module",
    "link.py": "is a symbolic link",
    "out/secret.py": "leads through a symbolic link",
    "read_only.py": "is read-only",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "read_only.py").chmod(0o444)
    with (folder / "large.py").open("wb") as large:
        large.truncate(50 << 20)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.py").write_bytes(b"x = self.secret\n")
    (folder / "link.py").symlink_to(tmp_path / "outside" / "secret.py")
    (folder / "out").symlink_to(tmp_path / "outside")
    monkeypatch.chdir(folder)
    return folder


def fill_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room left for one of the files: the one of this size, once it is changed."""
    fsync = os.fsync

    def full(handle: int) -> None:
        status = os.fstat(handle)
        beside = {path.stat().st_ino for path in folder.glob(".pillion-*")}
        if status.st_ino in beside and status.st_size == len(FILES["full.py"]):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)


def test_each_is_named_and_nothing_else_is_affected(
    pillion: Pillion, settings: Config, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: GenerateRequest) -> str:
        """Meanwhile somebody edits one file and deletes another."""
        (project / "edited.py").write_bytes(b"x = self.edited  # by hand\n")
        (project / "deleted.py").unlink(missing_ok=True)
        text = bytes(token for token in request.prompt if token < 256).decode()
        code = text.split("```python\n")[1].split("\n```")[0]
        return f"```python\n{code.replace('self', 'this')}\n```"

    before = fingerprint(project.parent)
    asked = ("refactor", "Call `self` this.", "*.py", "out/secret.py", "--apply", "--json")
    with (
        daemon_in_thread(settings, EngineClient(FakeEngine(answer))),
        monkeypatch.context() as patched,
    ):
        fill_disk(project, patched)
        done = pillion(*asked)
    assert done.code == 1
    *_, end, applied = [json.loads(line) for line in done.out.splitlines()]
    left_alone = {one["path"]: one["reason"] for one in applied["left_alone"]}
    assert end["reasons"] | left_alone == LEFT_OUT
    after = fingerprint(project.parent)
    project_files = {str(Path("project") / name) for name in ("a.py", "b/c.py")}
    changed = {path for path in before if before[path] != after.get(path)}
    assert changed == project_files | {"project/edited.py", "project/deleted.py"}
    assert (project / "a.py").read_bytes() == b"x = this.a\r\n"
    assert (project / "b/c.py").read_bytes() == b"\xef\xbb\xbfx = this.c"
    assert pillion("undo").code == 0
    assert all(fingerprint(project.parent)[path] == before[path] for path in project_files)
