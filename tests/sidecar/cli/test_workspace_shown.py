"""The folders that clients work in, as `pillion status` and `pillion doctor` show them."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from reported_surplus import report

from sidecar.cli.doctor import OK, WARNING, check_folders
from sidecar.cli.status import rows

FOLDER = {
    "root": "/p",
    "mode": "watch",
    "detail": "",
    "files": 12,
    "directories": 3,
    "changes": 2,
    "last_change": None,
}


def shown(folder):
    return dict(rows(report(workspace=[folder])))["workspace"]


def test_a_folder_that_is_watched():
    assert shown(FOLDER) == "/p: watch, 12 files in 3 directories"
    changed = shown(FOLDER | {"last_change": time.time() - 3700})
    assert changed.endswith("last change 1 h 1 min ago")


def test_a_folder_that_is_polled_says_why():
    polled = FOLDER | {"mode": "poll", "detail": "polled, because the system gives no watches"}
    assert "poll (polled, because" in shown(polled)
    level, detail = check_folders([FOLDER, polled])
    assert level == WARNING
    assert "/p is polled, because" in detail
    assert "max_user_watches" in detail


def test_folders_that_are_fine():
    assert check_folders([FOLDER]) == (OK, "/p: watch, 12 files in 3 directories")
    assert check_folders([])[0] == OK
    gone = FOLDER | {"mode": "missing", "detail": "there is no such folder now", "directories": 0}
    assert check_folders([gone]) == (OK, "/p: missing (there is no such folder now)")
