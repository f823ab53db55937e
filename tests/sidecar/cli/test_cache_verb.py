"""`pillion cache` against a daemon whose engine reports what the test says."""

from __future__ import annotations

from concurrent.futures import Future

import msgspec
import pytest
from pillion_command import Pillion

from engine import CacheEvictions, CacheHits, CacheNode, CacheReport, CacheStatus
from engine.testing import FakeEngine

STATUS = CacheStatus(
    memory_bytes=3 << 20,
    memory_budget=1 << 30,
    nodes=7,
    snapshots=2,
    disk_bytes=5 << 20,
    disk_budget=1 << 30,
    disk_files=4,
    disk_folder="/cache",
    disk_state="reading",
    disk_detail="another daemon writes",
    hits=(CacheHits(tier="disk", kind="restart", tokens=120),),
    evictions=(CacheEvictions(tier="disk", reason="damaged", count=3),),
    saved_seconds=12.34,
    shared_tokens=9,
)
NODES = (
    CacheNode(
        depth=0, start=0, end=5, bytes=2048, snapshot=True, on_disk=True, hits=2, text="de\x1b"
    ),
    CacheNode(
        depth=1,
        start=5,
        end=9,
        bytes=10,
        snapshot=False,
        on_disk=False,
        hits=0,
        demoted=True,
        path="a.py",
    ),
)


class KeepingEngine(FakeEngine):
    """Remembers what its cache was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.problem = ""
        self.status_now = STATUS

    def cache(self, action: str) -> Future[CacheReport]:
        self.asked.append(action)
        report: Future[CacheReport] = Future()
        report.set_result(
            CacheReport(
                status=self.status_now,
                nodes=NODES if action == "tree" else (),
                checked=4,
                damaged=1,
                removed=6,
                problem=self.problem,
            )
        )
        return report


@pytest.fixture
def backend() -> KeepingEngine:
    return KeepingEngine()


def test_without_a_daemon(pillion: Pillion) -> None:
    assert "pillion serve" in pillion("cache").err


def test_show(pillion: Pillion, daemon: object, backend: KeepingEngine) -> None:
    table = pillion("cache").out
    for said in (
        "3.0 MiB of 1.0 GiB: 7 prefixes, 2 snapshots",
        "5.0 MiB of 1.0 GiB in 4 files; reading: another daemon writes",
        "120 tokens by restart from disk",
        "9 tokens",
        "12.3 s",
        "3 disk (damaged)",
    ):
        assert said in table
    assert pillion("cache", "show", "--json").json["status"] == msgspec.json.decode(
        msgspec.json.encode(STATUS)
    )
    assert backend.asked == ["show", "show"]


def test_tree(pillion: Pillion, daemon: object) -> None:
    first, second = pillion("cache", "tree").out.splitlines()
    assert first == r"'de\x1b'  0-5, 2.0 KiB, 2 hits, snapshot, on disk"
    assert second == "  ''  5-9, 10 B, 0 hits, demoted, a.py"


def test_clear_and_verify(pillion: Pillion, daemon: object, backend: KeepingEngine) -> None:
    backend.status_now = msgspec.structs.replace(STATUS, disk_state="writing")
    assert pillion("cache", "clear").out == "6 entries removed\n"
    assert pillion("cache", "verify").out == "4 files read, 1 damaged and removed\n"
    backend.problem = "a node is nowhere"
    done = pillion("cache", "verify")
    assert (done.code, "a node is nowhere" in done.err) == (1, True)
    assert backend.asked == ["clear", "verify", "verify"]


@pytest.mark.parametrize(
    ("state", "left"),
    [
        ("reading", "are left to the daemon that writes in /cache"),
        ("read only", "are left, since /cache is read only"),
    ],
)
def test_files_that_are_not_its_own(
    pillion: Pillion, daemon: object, backend: KeepingEngine, state: str, left: str
) -> None:
    backend.status_now = msgspec.structs.replace(STATUS, disk_state=state)
    assert pillion("cache", "clear").out == f"6 entries removed; all files {left}\n"
    assert pillion("cache", "verify").out == f"4 files read, 1 damaged; these {left}\n"


def test_no_such_action(pillion: Pillion, daemon: object, backend: KeepingEngine) -> None:
    assert pillion("cache", "burn").code == 2
    assert backend.asked == []
