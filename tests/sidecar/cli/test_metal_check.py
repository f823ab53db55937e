"""`pillion doctor --metal`: the table, the JSON and the exit code, of what a Mac would report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from engine import KernelReport, MetalReport
from sidecar.cli import app
from sidecar.cli.metal_check import NO_METAL, finish, table

USED = KernelReport(
    kernel="verify_matmul",
    shape="5120 -> 17408, 4 bits in groups of 64",
    dtype="bfloat16",
    modules=128,
    verdict="used",
    rows=(6, 7, 8),
    like_stock=True,
    stock_exact=(2, 3, 4, 5),
    ours={1: 100.0, 8: 150.0},
    stock={1: 90.0, 8: 300.0},
)
WRONG = KernelReport(
    kernel="verify_matmul",
    shape="5120 -> 1024, 4 bits in groups of 64",
    dtype="bfloat16",
    modules=2,
    verdict="wrong",
    detail="3 rows differ from the same one by one",
)


def report(*kernels: KernelReport) -> MetalReport:
    return MetalReport(
        device="Apple M4",
        architecture="applegpu_g16g",
        mlx="0.32.4",
        model="a model",
        rows=8,
        kernels=kernels,
        seconds=12.0,
    )


def test_the_table_says_what_is_used_exact_and_quicker(tmp_path, capsys):
    path = tmp_path / "report.json"
    with pytest.raises(typer.Exit) as ending:
        finish(report(USED), as_json=False, path=path)
    assert ending.value.exit_code == 0
    said = capsys.readouterr().out
    assert "a model on Apple M4 (applegpu_g16g), MLX 0.32.4" in said
    assert "attach it to a report" in said
    cells = [list(column.cells) for column in table(report(USED, WRONG)).columns]
    assert cells[2:] == [
        ["128", "2"],
        ["yes", "-"],
        ["not 6-8", "-"],
        ["rows 6-8", "WRONG"],
        ["0.90", "-"],
        ["2.00", "-"],
    ]
    written = json.loads(path.read_text())
    assert written["figures"]["metal"]["kernels"][0]["ours"] == {"1": 100.0, "8": 150.0}
    assert {"machine", "versions", "date"} <= written.keys()


def test_a_wrong_kernel_is_named_and_the_exit_code_is_one(tmp_path, capsys):
    with pytest.raises(typer.Exit) as ending:
        finish(report(USED, WRONG), as_json=False, path=tmp_path / "report.json")
    assert ending.value.exit_code == 1
    said = capsys.readouterr().out
    assert "WRONG" in said
    assert "3 rows differ from the same one by one" in said


def test_scripts_get_json(tmp_path, capsys):
    with pytest.raises(typer.Exit) as ending:
        finish(report(USED, WRONG), as_json=True, path=tmp_path / "report.json")
    assert ending.value.exit_code == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["metal"], printed["right"]) == (True, False)
    assert printed["report"]["kernels"][1]["verdict"] == "wrong"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_without_metal_it_says_so_and_exits_4(options, tmp_path, monkeypatch):
    monkeypatch.setattr("metal.available", lambda: False)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["doctor", "--metal", *options])
    assert result.exit_code == 4
    assert "there is no Metal here" in result.stdout
    if options:
        assert json.loads(result.stdout) == {"metal": False, "reason": NO_METAL}
    assert not list(Path(tmp_path).glob("pillion-metal*"))


def test_a_folder_that_cannot_be_written_to_is_refused_first(tmp_path, monkeypatch):
    monkeypatch.setattr("metal.available", lambda: True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pillion-metal.json").mkdir()
    result = CliRunner().invoke(app, ["doctor", "--metal"])
    assert result.exit_code != 0
    assert "pillion-metal.json: is a folder" in str(result.output) + str(result.exception)
