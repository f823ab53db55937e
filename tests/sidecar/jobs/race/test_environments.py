from __future__ import annotations

from pathlib import Path

import pytest

from engine import EngineError
from sidecar.cli.bench_peers import install_peers
from sidecar.jobs.race.environments import PeerEnvironment, install, peer_environment


@pytest.mark.slow
def test_an_environment_is_made_once(tmp_path: Path) -> None:
    empty = PeerEnvironment(name="empty", requirements=())
    installed = install(empty, tmp_path)
    assert installed.python.exists()
    assert "python" in installed.versions
    assert installed.program("thing") == str(installed.python.parent / "thing")

    mark = installed.python.parent / "mark"
    mark.touch()
    assert install(empty, tmp_path) == installed
    assert mark.exists()
    (mark.parents[1] / "versions.json").unlink()
    install(empty, tmp_path)
    assert not mark.exists(), "what an interrupted installation left is made again"


@pytest.mark.slow
def test_what_pip_says_is_the_reason(tmp_path: Path) -> None:
    missing = PeerEnvironment(name="missing", requirements=("./no-such-package",))
    with pytest.raises(EngineError, match=r"missing could not be installed: ERROR: .*no-such"):
        install(missing, tmp_path)


def test_a_peer_that_cannot_be_installed_is_absent(tmp_path: Path) -> None:
    (tmp_path / "peers").write_text("in the way")
    installed, absent = install_peers(("mlx_lm", "llama.cpp"), tmp_path / "peers")
    assert installed == {}
    assert absent.keys() == {"llama.cpp"}
    assert "File exists" in absent["llama.cpp"]


def test_a_peer_sees_nothing_of_our_python() -> None:
    environment = peer_environment({"PYTHONPATH": "x", "VIRTUAL_ENV": "y", "PATH": "z"})
    assert environment["PATH"] == "z"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert "PYTHONPATH" not in environment
    assert "VIRTUAL_ENV" not in environment
