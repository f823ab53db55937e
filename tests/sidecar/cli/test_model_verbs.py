"""`pillion models` and `pillion pull`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pillion_command import Pillion

from engine.builtin import TARGET


def test_models_lists_what_is_here_and_what_it_costs(pillion: Pillion) -> None:
    (builtin,) = pillion("models", "--json").json
    assert builtin["name"] == "builtin"
    assert builtin["family"] == "qwen3_5"
    assert builtin["drafting"] == "speculative"
    assert builtin["problem"] == ""
    assert Path(builtin["path"]) == TARGET
    assert builtin["weight_bytes"] == 15_001_488
    assert builtin["total_bytes"] == (
        builtin["weight_bytes"]
        + builtin["state_bytes"]
        + builtin["context"] * builtin["cache_bytes_per_token"]
    )


def test_models_for_a_person(pillion: Pillion) -> None:
    shown = pillion("models").out
    for fact in ("builtin", "qwen3_5 (speculative)", "7.5 M parameters", "at 4096 tokens"):
        assert fact in shown


def test_a_damaged_model_is_listed_with_its_problem(
    pillion: Pillion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILLION_CACHE", str(tmp_path))
    folder = tmp_path / "models" / "smollm2-135m"
    shutil.copytree(TARGET, folder)
    assert [model["problem"] for model in pillion("models", "--json").json] == ["", ""]
    (folder / "model.safetensors").write_bytes(b"cut off")
    listed = {model["name"]: model for model in pillion("models", "--json").json}
    assert "model.safetensors: damaged" in listed["smollm2-135m"]["problem"]
    assert "damaged" in pillion("models").out


def test_pulling_a_folder_checks_it(pillion: Pillion, tmp_path: Path) -> None:
    shutil.copytree(TARGET, tmp_path / "mine")
    pulled = pillion("pull", str(tmp_path / "mine"), "--json").json
    assert pulled["name"] == "mine"
    assert pulled["parameters"] == 7_500_720
    assert "14.3 MiB" in pillion("pull", "builtin").out
    (tmp_path / "mine" / "config.json").unlink()
    failed = pillion("pull", str(tmp_path / "mine"))
    assert failed.code == 1
    assert failed.out == ""
    assert "config.json: missing" in failed.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nothing",), 2, "model 'nothing' is unknown"),
        (("./nowhere",), 1, "./nowhere: no such folder"),
        (("builtin", "--revision", "v1"), 2, "builtin has no revisions"),
    ],
)
def test_what_cannot_be_pulled_is_one_line(
    pillion: Pillion, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = pillion("pull", *arguments)
    assert done.code == code
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_a_terminal_gets_a_bar_and_a_file_gets_lines() -> None:
    """Progress is on stderr, so stdout stays JSON either way."""
    import pty

    program = (
        "from sidecar.cli.pull import _progress\n"
        "with _progress() as progress:\n"
        "    for share in (None, 0.25, 0.5, 1.0):\n"
        "        progress('fetching it', share)\n"
    )
    command = [sys.executable, "-c", program]
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert piped.stderr == "fetching it\n"
    assert piped.stdout == ""
    leader, follower = pty.openpty()
    terminal = os.environ | {"TERM": "xterm", "COLUMNS": "80"}
    subprocess.run(command, stderr=follower, env=terminal, check=True)
    os.close(follower)
    assert b"fetching it" in os.read(leader, 65536)
    os.close(leader)


def test_listing_imports_neither_mlx_nor_transformers() -> None:
    program = (
        "import sys; from engine import installed_models; assert installed_models(); "
        "sys.exit(any(name in sys.modules for name in ('mlx', 'mlx_lm', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
