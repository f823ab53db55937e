import pytest

from engine import RequestError
from sidecar.edits.search import Found, Query, Skipped, lines_with, search, words_of, words_of_diff
from sidecar.edits.writable_root import WritableRoot


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "w"
    files = {
        "a.py": b"def old(): pass\nx = 1\nold()\n",
        "b/c.py": b"# old\n",
        "b/d.txt": b"older\n",
        "ignored/e.py": b"old\n",
        ".gitignore": b"ignored/\n",
        ".env": b"old=secret\n",
        "bad.py": b"old = '\xff'\n",
        "binary.py": b"old\0\n",
        "wide.py": b"\xff\xfe" + "old\n".encode("utf-16-le"),
        "large.py": b"old\n" * 500,
        "libs/m/f.py": b"old\n",
        "libs/m/.git": b"gitdir: x\n",
        "read_only.py": b"old\n",
    }
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "read_only.py").chmod(0o444)
    (tmp_path / "outside.py").write_bytes(b"old\n")
    (folder / "link.py").symlink_to(tmp_path / "outside.py")
    return folder


def look(project, **query):
    with WritableRoot(project) as root:
        looked = list(search(root, Query(most_bytes=1000, **query)))
    found = {one.path: one.lines for one in looked if isinstance(one, Found)}
    return found, {one.path: one.reason for one in looked if isinstance(one, Skipped)}


def test_words_are_found_and_what_cannot_be_edited_is_named(project):
    found, skipped = look(project, words=("old",))
    assert found == {"a.py": (0, 2), "b/c.py": (0,), "wide.py": (0,)}
    assert skipped == {
        "bad.py": "is no UTF-8 text (byte 7)",
        "binary.py": "is binary",
        "large.py": "has 2000 bytes; at most 1000 are edited",
        "libs/m/f.py": "belongs to another repository, libs/m",
        "read_only.py": "is read-only",
    }


def test_names_only(project):
    found, _ = look(project, words=("old",), names=True)
    assert found == {"a.py": (0, 2), "wide.py": (0,)}


def test_globs_mean_whole_files_and_links_are_named(project):
    found, skipped = look(project, globs=("*.py", "!b/**", "!libs/**"))
    assert found == {"a.py": (), "wide.py": ()}
    assert skipped["link.py"] == "is a symbolic link"
    assert set(skipped) == {"bad.py", "binary.py", "large.py", "link.py", "read_only.py"}


@pytest.mark.parametrize(
    ("glob", "reason"),
    [
        ("ignored/e.py", "is ignored, or looks like a secret"),
        (".env", "is ignored, or looks like a secret"),
        ("none.py", "is gone"),
        ("../outside.py", "is not a plain path below the workspace"),
        ("b/../a.py", "is not a plain path below the workspace"),
    ],
)
def test_a_file_that_is_named_and_not_edited_has_its_reason(project, glob, reason):
    assert look(project, globs=(glob,)) == ({}, {glob: reason})


def test_a_home_is_no_project(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with WritableRoot(tmp_path) as root, pytest.raises(RequestError, match="no project"):
        list(search(root, Query(words=("a",))))


def test_words_of_a_diff_are_those_it_takes_away():
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-fetch(url, timeout)\n+load(url, timeout)\n"
    assert words_of_diff(diff) == ("fetch",)
    with pytest.raises(RequestError, match="takes no name away"):
        words_of_diff("+a = 1\n")


def test_words_of_an_instruction():
    assert words_of("Rename `a.b` to `c`, and `a.b`.") == ("a.b", "c")


def test_only_whole_words():
    assert lines_with(("a.b",), "xa.b\na.b()\na.bc\n", "python", names=False) == (1,)
