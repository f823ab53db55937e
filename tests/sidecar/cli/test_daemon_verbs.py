"""status, stop, doctor and serve, as far as they meet a daemon that runs or does not."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
from pillion_command import Pillion

from engine import EngineClient, EngineStatus, Exactness
from engine.testing import FakeEngine
from sidecar.cli.doctor import _proven
from sidecar.cli.private_daemon import daemon_in_thread
from sidecar.cli.serve import curl_line
from sidecar.config import Config, load_config
from sidecar.runtime_dir import Address, RuntimeDir


def test_status_without_a_daemon(pillion: Pillion) -> None:
    done = pillion("status")
    assert done.code == 1
    assert "pillion serve" in done.out
    assert '"not running"' in pillion("status", "--json").out


def test_status(pillion: Pillion, daemon: Address) -> None:
    status = pillion("status", "--json").json
    assert status["state"] == "ready"
    assert status["url"] == daemon.url
    table = pillion("status").out
    assert "exact up to width 8" in table
    assert f"{daemon.url}/v1" in table
    assert "\x1b" not in table


def test_status_while_the_model_loads(pillion: Pillion, settings: Config) -> None:
    backend = FakeEngine(loading=threading.Event())
    with daemon_in_thread(settings, EngineClient(backend)):
        table = pillion("status").out
        assert "loading: loading the script" in table
        assert "builtin" in table


def test_stop(pillion: Pillion, daemon: Address, settings: Config) -> None:
    assert pillion("stop").out == f"stopped (pid {daemon.pid})\n"
    assert RuntimeDir.of(settings.daemon).holder() is None
    assert pillion("stop").out == "no daemon is running\n"
    assert pillion("stop", "--json").json == {"stopped": False, "pid": None}


def test_an_untrusted_folder_is_named(pillion: Pillion, home: Path) -> None:
    folder = home / "run" / "pillion"
    folder.mkdir()
    folder.chmod(0o777)
    for verb in ("status", "stop", "doctor"):
        done = pillion(verb)
        assert done.code == 1
        assert f"{folder} can be written by other users" in done.out + done.err


def test_serve_refuses_what_makes_no_sense(pillion: Pillion) -> None:
    assert "--max-width: must be at least 1" in pillion("serve", "--max-width", "0").err
    assert "--wait goes with --detach" in pillion("serve", "--wait").err
    assert "[http] api_key" in pillion("serve", "--host", "0.0.0.0").err
    assert "no such settings file" in pillion("serve", "--config", "none.toml").err


def test_serve_beside_a_running_daemon(pillion: Pillion, daemon: Address) -> None:
    done = pillion("serve", "--detach")
    assert done.code == 0
    assert f"already running (pid {daemon.pid}), with builtin" in done.err
    assert daemon.socket in done.out
    other = pillion("serve", "--detach", "--model", "smollm2-135m")
    assert other.code == 1
    assert "serves builtin, not smollm2-135m" in other.err


def test_the_curl_line_keeps_the_key_to_itself(settings: Config) -> None:
    address = Address(pid=1, socket="/s", url="http://h:1", version="", model="m", api_key="secret")
    assert "secret" not in curl_line(address)
    assert "$PILLION_HTTP_API_KEY" in curl_line(address)


def levels(checks: list[dict[str, str]]) -> dict[str, str]:
    return {check["name"]: check["level"] for check in checks}


def test_doctor(pillion: Pillion, daemon: Address) -> None:
    found = pillion("doctor", "--json").json
    assert found["ok"] is True
    assert levels(found["checks"])["daemon"] == levels(found["checks"])["mlx"] == "ok"


def test_doctor_names_bad_settings_and_goes_on_before_them(
    pillion: Pillion, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = home / "bad.toml"
    file.write_text("[http]\nprot = 1\n")
    done = pillion("doctor", "--config", str(file))
    assert done.code == 1
    assert f"{file}: [http] prot: no such setting; did you mean port?" in done.out
    assert "mlx" in done.out
    monkeypatch.setenv("PYTHONPATH", "")
    warned = pillion("doctor", "--strict")
    assert warned.code == 1
    assert "empty or relative entry" in warned.out


class UnevenEngine(FakeEngine):
    """Says that this machine's kernels treat three rows otherwise than one."""

    def status(self) -> EngineStatus:
        exactness = Exactness(exact=False, width=2, asked=8, prefill=True, reason="3 rows differ")
        return msgspec.structs.replace(super().status(), exactness=exactness)


@pytest.mark.parametrize(
    ("fast", "said"),
    [
        (False, "exact up to width 2 of 8: 3 rows differ"),
        (True, "NOT exact: [engine] fast is on and this machine's kernels differ: 3 rows differ"),
    ],
)
def test_a_machine_that_is_not_exact_is_told(pillion: Pillion, fast: bool, said: str) -> None:
    settings = load_config({"http.port": 0, "engine.fast": fast})
    with daemon_in_thread(settings, EngineClient(UnevenEngine())):
        assert said in pillion("status").out
        done = pillion("doctor")
        assert done.code == 0
        assert f"warning  daemon        fake, {said}" in done.out
        assert pillion("doctor", "--strict").code == 1


def test_doctor_tells_of_wrong_replies() -> None:
    status = {
        "model": {"id": "m"},
        "exactness": {"exact": True, "width": 8, "asked": 8, "prefill": True, "reason": ""},
        "fast": False,
        "totals": {"audit_differences": 2},
    }
    assert _proven(status) == (
        "fatal",
        "m, exact up to width 8; the audit found 2 wrong replies",
    )
