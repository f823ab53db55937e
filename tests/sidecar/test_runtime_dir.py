"""The private folder: who may use it, its lock and its address file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.config import DaemonConfig
from sidecar.runtime_dir import Address, AlreadyRunning, RuntimeDir, RuntimeDirError

ADDRESS = Address(pid=1, socket="/s", url="http://127.0.0.1:1", version="0", model="builtin")


@pytest.fixture
def runtime(home: Path) -> RuntimeDir:
    return RuntimeDir(home / "run" / "pillion")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_default_is_below_xdg_runtime_dir(home: Path) -> None:
    assert RuntimeDir.of(DaemonConfig()).path == home / "run" / "pillion"
    assert RuntimeDir.of(DaemonConfig(runtime_dir="~/mine")).path == home / "mine"


def test_created_private_whatever_the_umask(runtime: RuntimeDir) -> None:
    before = os.umask(0)
    try:
        runtime.create()
    finally:
        os.umask(before)
    assert mode(runtime.path) == 0o700
    runtime.create()


def test_readable_by_others_is_closed(runtime: RuntimeDir) -> None:
    runtime.path.mkdir(mode=0o755)
    runtime.create()
    assert mode(runtime.path) == 0o700


def test_untrusted_folders_are_refused(runtime: RuntimeDir, home: Path) -> None:
    runtime.path.mkdir()
    runtime.path.chmod(0o777)
    with pytest.raises(RuntimeDirError, match="can be written by other users"):
        runtime.create()
    runtime.path.rmdir()
    (home / "elsewhere").mkdir(mode=0o700)
    runtime.path.symlink_to(home / "elsewhere")
    with pytest.raises(RuntimeDirError, match="is a symbolic link"):
        runtime.create()
    runtime.path.unlink()
    runtime.path.write_text("")
    with pytest.raises(RuntimeDirError, match="is not a folder"):
        runtime.create()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_folder_of_another_user_is_refused(runtime: RuntimeDir) -> None:
    runtime.create()
    os.chown(runtime.path, 12345, 12345)
    with pytest.raises(RuntimeDirError, match=r"belongs to another user \(uid 12345\)"):
        runtime.create()
    with pytest.raises(RuntimeDirError, match="another user"):
        runtime.read_address()


def test_lock_keeps_a_second_daemon_out(runtime: RuntimeDir) -> None:
    runtime.create()
    assert runtime.holder() is None
    with runtime.locked():
        assert runtime.holder() == os.getpid()
        with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}.*pillion stop"):
            with runtime.locked():
                pass
        assert runtime.holder() == os.getpid()
    assert runtime.holder() is None
    with runtime.locked():
        pass


def test_lock_dies_with_its_process(runtime: RuntimeDir) -> None:
    runtime.create()
    code = (
        "import os, sys, pathlib; from sidecar.runtime_dir import RuntimeDir\n"
        "with RuntimeDir(pathlib.Path(sys.argv[1])).locked(): os._exit(9)"
    )
    subprocess.run([sys.executable, "-P", "-c", code, runtime.path], check=False)
    assert runtime.lock.read_text().strip().isdecimal()
    assert runtime.holder() is None
    with runtime.locked():
        assert runtime.holder() == os.getpid()


def test_address_file(runtime: RuntimeDir) -> None:
    assert runtime.read_address() is None
    runtime.create()
    assert runtime.read_address() is None
    runtime.write_address(ADDRESS)
    assert runtime.read_address() == ADDRESS
    assert mode(runtime.address) == 0o600
    assert b"api_key" not in runtime.address.read_bytes()
    assert [path.name for path in runtime.path.iterdir()] == ["daemon.json"]
    runtime.address.write_text("{")
    assert runtime.read_address() is None
    runtime.remove_address()
    runtime.remove_address()


def test_address_in_an_untrusted_folder_is_not_believed(runtime: RuntimeDir) -> None:
    runtime.create()
    runtime.write_address(ADDRESS)
    runtime.path.chmod(0o777)
    with pytest.raises(RuntimeDirError):
        runtime.read_address()
