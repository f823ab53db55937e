"""edit, refactor, undo and log against a daemon with a scripted engine."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from pillion_command import Pillion

from engine import EngineClient, GenerateRequest
from engine.testing import FakeEngine
from sidecar.cli.private_daemon import daemon_in_thread
from sidecar.config import Config
from sidecar.runtime_dir import Address

CODE = "def f(self):\r\n    return self.x\r\n"


def answer(request: GenerateRequest) -> str:
    """The code in the prompt with `self` called `this`."""
    text = bytes(t for t in request.prompt if t < 256).decode()
    code = text.split("```python\n")[1].split("\n```")[0]
    return f"```python\n{code.replace('self', 'this')}\n```"


@pytest.fixture
def backend() -> FakeEngine:
    return FakeEngine(answer)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: two files of one project."""
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "a.py").write_bytes(CODE.encode())
    (folder / "a.py").chmod(0o755)
    (folder / "pkg" / "b.py").write_bytes(b"\xef\xbb\xbfx = self.y")
    monkeypatch.chdir(folder)
    return folder


def texts(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("a.py", "pkg/b.py")]


def test_edit_shows_a_diff_and_writes_nothing(
    pillion: Pillion, daemon: Address, project: Path
) -> None:
    before = texts(project)
    done = pillion("edit", "a.py:2", "Call it this.")
    assert done.code == 0
    assert "-    return self.x" in done.out
    assert "+    return this.x" in done.out
    assert "--apply writes it" in done.err
    assert texts(project) == before


def test_edit_apply_log_undo_redo(pillion: Pillion, daemon: Address, project: Path) -> None:
    before = texts(project)
    done = pillion("edit", "a.py", "Call it this.", "--apply", "--json").json
    assert done["written"] == ["a.py"]
    assert (project / "a.py").read_bytes() == CODE.replace("self", "this").encode()
    assert stat.S_IMODE((project / "a.py").stat().st_mode) == 0o755
    os.chdir(project / "pkg")
    (listed,) = pillion("log", "--json").json
    assert (listed["id"], listed["state"]) == (done["id"], "applied")
    assert "a.py: Call it this." in pillion("log", "--files").out
    undone = pillion("undo", done["id"])
    assert (undone.code, undone.err) == (0, "1 file restored\n")
    assert texts(project) == before
    assert "undone" in pillion("log").out
    assert pillion("undo").code == 2
    assert pillion("undo", "--redo", "--json").json["state"] == "applied"
    assert (project / "a.py").read_bytes() == CODE.replace("self", "this").encode()


def test_undo_leaves_what_was_changed_since(
    pillion: Pillion, daemon: Address, project: Path
) -> None:
    pillion("edit", "a.py", "Call it this.", "--apply")
    (project / "a.py").write_bytes(b"mine")
    done = pillion("undo")
    assert done.code == 1
    assert "a.py was changed meanwhile" in done.err
    assert (project / "a.py").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("none.py", "none.py is gone"),
        ("a.py:2-1", "lines count from 1"),
        ("a.py:0", "lines count from 1"),
        ("a.py:7", "no code in these lines"),
        ("link.py", "link.py is a symbolic link"),
        ("out.py", "out.py is a symbolic link"),
        ("bad.py", "bad.py is no UTF-8 text"),
        (".git/config", "belongs to git"),
        (".env", "looks like it holds secrets"),
    ],
)
def test_edit_refuses_by_name(
    pillion: Pillion, daemon: Address, project: Path, place: str, said: str
) -> None:
    (project / "link.py").symlink_to("a.py")
    (project.parent / "other").mkdir()
    (project.parent / "other" / "a.py").write_bytes(b"self\n")
    (project / "out.py").symlink_to(project.parent / "other" / "a.py")
    (project / "bad.py").write_bytes(b"\xff\xff\xff")
    (project / ".env").write_text("KEY=1\n")
    (project / ".git" / "config").write_bytes(b"[core]\n")
    done = pillion("edit", place, "Call it this.", "--apply")
    assert done.code in (1, 2)
    assert said in done.err


def test_an_answer_that_is_refused_is_exit_code_1(
    pillion: Pillion, settings: Config, project: Path
) -> None:
    before = texts(project)
    with daemon_in_thread(settings, EngineClient(FakeEngine("I will not."))):
        done = pillion("edit", "a.py", "Call it this.", "--apply")
        assert done.code == 1
        assert "the answer has no code block" in done.err
        done = pillion("refactor", "Call `self` this.", "--apply", "--json")
    assert done.code == 1
    ending = json.loads(done.out.splitlines()[-1])
    assert (ending["event"], ending["refused"], ending["changed"]) == ("end", 2, 0)
    assert texts(project) == before


def test_refactor_is_a_dry_run_unless_told(
    pillion: Pillion, daemon: Address, project: Path
) -> None:
    before = texts(project)
    done = pillion("refactor", "Call `self` this.")
    assert done.code == 0
    assert "+++ b/a.py" in done.out
    assert "+x = this.y" in done.out
    assert "2 files, 2 places for the model" in done.err
    assert "nothing was written" in done.err
    assert texts(project) == before


def test_refactor_apply_with_events(pillion: Pillion, daemon: Address, project: Path) -> None:
    before = texts(project)
    done = pillion("refactor", "Call `self` this.", "*.py", "!pkg/**", "--apply", "--json")
    assert done.code == 0
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [event["event"] for event in events] == ["plan", "file", "end", "applied"]
    assert events[0]["plan"][0]["path"] == "a.py"
    assert {"tok_s", "accepted_per_round", "tokens", "hunks"} <= set(events[1])
    assert texts(project) == [CODE.replace("self", "this").encode(), before[1]]
    assert pillion("undo").code == 0
    assert texts(project) == before


def test_refactor_names_what_it_leaves_out(
    pillion: Pillion, daemon: Address, project: Path
) -> None:
    (project / "bin.py").write_bytes(b"self\0")
    done = pillion("refactor", "Call `self` this.", "--apply")
    assert done.code == 1
    assert "bin.py is left alone: it is binary" in done.err
    assert (project / "pkg/b.py").read_bytes() == b"\xef\xbb\xbfx = this.y"


def test_refactor_takes_only_what_passes_the_check(
    pillion: Pillion, daemon: Address, project: Path
) -> None:
    before = texts(project)
    # Fails where a.py is changed, passes for the other file.
    done = pillion("refactor", "Call `self` this.", "--check", "grep -q self a.py", "--apply")
    assert done.code == 1
    assert "fails the check: exit code 1" in done.err
    assert texts(project) == [before[0], b"\xef\xbb\xbfx = this.y"]
    done = pillion("refactor", "Call `self` this.", "--check", "echo no way; false")
    assert done.code == 2
    assert "fails before anything is changed: no way" in done.err


def test_a_rename_needs_no_daemon(pillion: Pillion, project: Path) -> None:
    (project / "m.py").write_text("def old():\n    return 1  # old\n")
    (project / "n.py").write_text("from m import old\nold()\n")
    done = pillion("refactor", "--symbol", "old", "--rename", "fresh", "--apply")
    assert done.code == 0
    assert "no daemon is running" in done.err
    assert (project / "m.py").read_text() == "def fresh():\n    return 1  # old\n"
    assert (project / "n.py").read_text() == "from m import fresh\nfresh()\n"
    assert "rename old to fresh" in pillion("log").out


def test_a_plan_needs_no_daemon(pillion: Pillion, project: Path) -> None:
    done = pillion("refactor", "Call `self` this.", "--plan", "--json")
    assert [one["path"] for one in done.json["plan"]] == ["a.py", "pkg/b.py"]
    assert "a.py:1-2" in pillion("refactor", "Call `self` this.", "--plan").err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to do"),
        (["do it"], "say which files"),
        (["x", "--apply", "--dry-run"], "not both"),
        (["--rename", "x"], "rename needs symbol"),
        (["x", "--from-diff", "none.diff"], "No such file"),
        (["x", "--project", "none"], "no folder"),
        (["x", "none*"], "no file is meant"),
    ],
)
def test_refactor_refuses_by_name(
    pillion: Pillion, daemon: Address, project: Path, arguments: list[str], said: str
) -> None:
    done = pillion("refactor", *arguments)
    assert done.code == 2
    assert said in done.err


def test_git_sees_a_plain_change_and_an_untouched_index(
    pillion: Pillion, daemon: Address, project: Path
) -> None:
    index = project / ".git" / "index"
    index.write_bytes(b"DIRC")
    pillion("refactor", "Call `self` this.", "--apply")
    pillion("undo")
    assert index.read_bytes() == b"DIRC"
    assert [path.name for path in (project / ".git").iterdir()] == ["index"]
