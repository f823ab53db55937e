import os
import select

import pytest

from engine import RequestError
from sidecar.edits.crash_trials import fingerprint
from sidecar.edits.journal import Change
from sidecar.edits.scratch import Scratch

CHANGES = [Change("a.py", b"old a", b"new a"), Change("sub/b.py", b"old b", b"new b")]


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "w"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.py").write_bytes(b"old a")
    (folder / "sub" / "b.py").write_bytes(b"old b")
    (folder / "a.py").chmod(0o755)
    return folder


def refused(project, command, **options):
    """What the check says, and that the project itself is as it was."""
    before = fingerprint(project.parent)
    with Scratch(project, command, **options) as scratch:
        found = scratch.refused(CHANGES)
    assert fingerprint(project.parent) == before
    return found


def test_all_are_tried_together_and_then_alone(project):
    assert refused(project, "true") == {}
    assert refused(project, "grep -q old sub/b.py") == {"sub/b.py": "fails the check: exit code 1"}
    assert refused(project, "test -x a.py") == {}
    both = 'test "$(cat a.py sub/b.py)" != "new anew b" || { echo both; false; }'
    assert set(refused(project, both).values()) == {"fails the check, with others: both"}


def test_a_check_that_fails_on_the_project_as_it_is(project):
    with pytest.raises(RequestError, match="fails before anything is changed: no such tool"):
        refused(project, "echo no such tool; exit 127")


def test_a_check_that_hangs_is_ended_with_all_it_started(project, tmp_path):
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    # The pipe has had a writer, and is at its end as soon as it has none.
    os.close(os.open(held, os.O_WRONLY))
    with pytest.raises(RequestError, match=r"it takes longer than 0\.5 seconds"):
        refused(project, f"sleep 600 > {held} & sleep 600", seconds=0.5)
    assert select.select([reader], [], [], 60)[0] == [reader]
    os.close(reader)


@pytest.mark.parametrize("link", ["ln -sf", "ln -f"])
def test_a_check_that_makes_links_leads_nowhere_else(project, tmp_path, link):
    outside = tmp_path / "outside.py"
    outside.write_bytes(b"mine")
    assert refused(project, f"{link} {outside} a.py") == {}
    assert outside.read_bytes() == b"mine"


def test_a_folder_that_a_check_replaced_by_a_link_leads_nowhere_else(project, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "b.py").write_bytes(b"mine")
    with pytest.raises(
        RequestError, match=r"a link to elsewhere in the place of sub/b.py's folder"
    ):
        refused(project, f"rm -rf sub && ln -s {outside} sub")
    assert (outside / "b.py").read_bytes() == b"mine"


def test_a_file_that_goes_while_it_is_copied_is_left_out(project, monkeypatch):
    monkeypatch.setattr(
        "sidecar.edits.scratch.Listing.names", lambda _: {"a.py", "gone.py", "sub/b.py"}
    )
    assert refused(project, "test ! -e gone.py") == {}
