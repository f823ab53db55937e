from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine import EngineClient, EngineStatus, GenerateRequest, NotReady
from engine.testing import FakeEngine
from sidecar.cli.verify import Settings, prove

Reply = Callable[[GenerateRequest], str] | str


def facts(request: GenerateRequest) -> Mapping[str, Any]:
    drafted = {"accepted": 3, "rejected": 1, "width": 8, "rounds": 2} if request.draft else {}
    return drafted | ({"margins": (0.5, 0.25, 0.125)} if request.margins else {})


async def proved(reply: Reply, settings: Settings, *, drafts: bool = True) -> int:
    engine = FakeEngine(reply, facts=facts if drafts else None)
    return await prove(EngineClient(engine), "fake", settings)


async def test_equal_replies_exit_0_and_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "verify.json"
    settings = Settings(pairs=9, max_tokens=3, seed=4, json=path)
    assert await proved("abcdef", settings) == 0
    printed = capsys.readouterr()
    assert "fake: 9 pairs, 0 differences, 27 drafts accepted, 9 rejected" in printed.out
    assert "1.00 tokens a round" in printed.out
    assert "9 of 9 pairs, 0 differences" in printed.err
    report = json.loads(path.read_text())
    assert set(report) >= {"figures", "machine", "versions", "date", "pairs", "exactness"}
    figures = report["figures"]
    assert (figures["pairs"], figures["differences"], figures["model"]) == (9, 0, "fake")
    assert (figures["exact"], figures["width"]) == (True, 8)
    assert (figures["accepted"], figures["rejected"]) == (27, 9)
    assert report["pairs"][0]["drafted_hash"] == report["pairs"][0]["serial_hash"]


async def test_a_difference_exits_1_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lie = (5, "penalised")

    def reply(request: GenerateRequest) -> str:
        lies = (request.seed, request.sampling.penalised) == (lie[0], True) and request.draft
        return "abX" if lies else "abc"

    path = tmp_path / "verify.json"
    settings = Settings(pairs=3, max_tokens=3, seed=5, json=path)
    assert await proved(reply, settings) == 1
    printed = capsys.readouterr()
    assert "1 of 3 pairs differ" in printed.err
    (row,) = [line for line in printed.out.splitlines() if "median" in line]
    # Where (token 2), what (X and c as ids), and how close it was.
    assert all(cell in row for cell in ("penalised", " 5 ", " 2 ", " 88 ", " 99 ", "0.125"))
    report = json.loads(path.read_text())
    assert report["figures"]["differences"] == 1
    differing = [pair for pair in report["pairs"] if pair["difference"]]
    assert [(pair["sampling"], pair["difference"]["position"]) for pair in differing] == [
        ("penalised", 2)
    ]


async def test_no_verified_draft_proves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert await proved("abc", Settings(pairs=3, max_tokens=3), drafts=False) == 2
    assert "nothing is proven" in capsys.readouterr().err


async def test_chaos_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "verify.json"
    settings = Settings(pairs=6, max_tokens=8, chaos=True, json=path)
    assert await proved("a longer reply", settings) == 0
    assert "meanwhile: " in capsys.readouterr().out
    chaos = json.loads(path.read_text())["figures"]["chaos"]
    assert chaos["preemptions"] + chaos["cancellations"] + chaos["repeats"] == 12


async def test_the_length_of_replies_follows_the_pace(capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine("x" * 99, facts={"decode_ms": 7 * 100.0, "rounds": 7})
    # 300 s for 2 * 150 replies at 0.1 s a token: 10 tokens each.
    assert await prove(EngineClient(engine), "fake", Settings(pairs=150)) == 2
    assert "150 pairs, up to 10 tokens a reply" in capsys.readouterr().err
    assert {request.max_tokens for request in engine.seen[1:]} == {10}


class Unloadable(FakeEngine):
    def status(self) -> EngineStatus:
        return EngineStatus(state="failed", detail="no such model")


async def test_a_model_that_does_not_load_is_said() -> None:
    with pytest.raises(NotReady, match="no such model"):
        await prove(EngineClient(Unloadable()), "fake", Settings(pairs=1))
