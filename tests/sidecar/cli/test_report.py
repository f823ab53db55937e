from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from engine import RequestError
from sidecar.cli.report import check_writable, write_report


def test_a_report_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    check_writable(None)
    check_writable(tmp_path / "ok.json")
    with pytest.raises(RequestError, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(RequestError, match="there is no folder"):
        check_writable(tmp_path / "missing" / "x.json")


def test_a_report_says_where_it_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    write_report(path, {"pairs": 3}, extra=[1])
    report = json.loads(path.read_text())
    assert report["figures"] == {"pairs": 3}
    assert report["extra"] == [1]
    assert set(report["machine"]) == {"system", "processor", "cores", "memory_bytes"}
    assert all(report["machine"].values())
    assert {"pillion", "python", "mlx", "mlx-lm"} <= set(report["versions"])
    assert datetime.datetime.fromisoformat(report["date"]).tzinfo is not None
    assert list(tmp_path.iterdir()) == [path]
