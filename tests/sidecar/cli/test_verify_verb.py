from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from engine import EngineClient, EngineOptions, EngineStatus, GenerateRequest, NotReady
from engine.testing import FakeEngine
from sidecar.cli import verify
from sidecar.cli.verify import Proof, Settings, every_proof, prove

Reply = Callable[[GenerateRequest], str] | str


def facts(request: GenerateRequest) -> Mapping[str, Any]:
    drafted = {"accepted": 3, "rejected": 1, "width": 8, "rounds": 2} if request.draft else {}
    return drafted | ({"margins": (0.5, 0.25, 0.125)} if request.margins else {})


async def proved(reply: Reply, settings: Settings, *, drafts: bool = True) -> int:
    engine = FakeEngine(reply, facts=facts if drafts else None)
    return await prove([proof_of(engine)], "fake", settings)


def proof_of(engine: FakeEngine, name: str = "auto", **how: Any) -> Proof:
    return Proof(name, lambda: EngineClient(engine), **how)


async def test_equal_replies_exit_0_and_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "verify.json"
    settings = Settings(pairs=9, max_tokens=3, seed=4, json=path)
    assert await proved("abcdef", settings) == 0
    printed = capsys.readouterr()
    assert "fake, auto: 9 pairs, 0 differences, 27 drafts accepted, 9 rejected" in printed.out
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
    assert await prove([proof_of(engine)], "fake", Settings(pairs=150)) == 2
    assert "150 pairs, up to 10 tokens a reply" in capsys.readouterr().err
    assert {request.max_tokens for request in engine.seen[1:]} == {10}


class Unloadable(FakeEngine):
    def status(self) -> EngineStatus:
        return EngineStatus(state="failed", detail="no such model")


async def test_a_model_that_does_not_load_is_said() -> None:
    with pytest.raises(NotReady, match="no such model"):
        await prove([proof_of(Unloadable())], "fake", Settings(pairs=1))


async def test_several_proofs_are_run_in_turn_and_added_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = [FakeEngine("abc", facts=facts) for _ in range(2)]
    proofs = [
        proof_of(engines[0], "one", drafters=("dflash",)),
        proof_of(engines[1], "swapped", policy="switch"),
    ]
    path = tmp_path / "verify.json"
    assert await prove(proofs, "fake", Settings(pairs=6, max_tokens=3, json=path)) == 0
    printed = capsys.readouterr().out
    assert "fake, one: 6 pairs, 0 differences" in printed
    assert "fake, swapped: 6 pairs, 0 differences" in printed
    for engine, proof in zip(engines, proofs, strict=True):
        assert {request.drafters for request in engine.seen} == {proof.drafters}
        assert {request.policy for request in engine.seen} == {proof.policy}
    report = json.loads(path.read_text())
    figures = report["figures"]
    assert (figures["pairs"], figures["differences"], figures["accepted"]) == (12, 0, 36)
    assert [(run["drafter"], run["pairs"]) for run in figures["runs"]] == [
        ("one", 6),
        ("swapped", 6),
    ]
    assert [pair["drafter"] for pair in report["pairs"]] == ["one"] * 6 + ["swapped"] * 6


@pytest.mark.parametrize(
    ("second", "code"),
    [("different", 1), ("unproven", 2)],
)
async def test_the_worst_of_several_proofs_counts(second: str, code: int) -> None:
    good = FakeEngine("abc", facts=facts)
    bad = FakeEngine(
        lambda r: "abX" if r.draft and second == "different" else "abc",
        facts=facts if second == "different" else None,
    )
    empty = FakeEngine("abc")
    proofs = (
        [proof_of(empty), proof_of(bad), proof_of(good)]
        if code == 1
        else [
            proof_of(good),
            proof_of(bad),
        ]
    )
    assert await prove(proofs, "fake", Settings(pairs=2, max_tokens=3)) == code


def test_all_is_every_known_drafter_a_random_one_and_swapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[EngineOptions] = []
    monkeypatch.setattr(verify, "engine_client", started.append)
    monkeypatch.setattr(verify, "known_drafters", lambda model: ("/x/dflash2", "/x/dflash"))
    random = tmp_path / "random"
    proofs = every_proof(EngineOptions(), random)
    assert [proof.name for proof in proofs] == [
        "dflash2",
        "dflash",
        "random drafter",
        "swapped in mid-reply",
    ]
    assert [proof.drafters for proof in proofs] == [*[("dflash",)] * 3, ()]
    assert [proof.policy for proof in proofs] == [*["always"] * 3, "switch"]
    for proof in proofs:
        proof.client()
    drafts = [options.draft for options in started]
    assert drafts == ["/x/dflash2", "/x/dflash", str(random), "/x/dflash2"]
    assert (random / "model.safetensors").is_file()


def test_a_model_without_a_drafter_is_proven_with_a_random_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[EngineOptions] = []
    monkeypatch.setattr(verify, "engine_client", started.append)
    monkeypatch.setattr(verify, "known_drafters", lambda model: ())
    proofs = every_proof(EngineOptions(), tmp_path / "random")
    assert [proof.name for proof in proofs] == ["random drafter", "swapped in mid-reply"]
    for proof in proofs:
        proof.client()
    assert {options.draft for options in started} == {str(tmp_path / "random")}


@pytest.mark.parametrize("switch", [False, True])
def test_drafters_and_widths_can_change_every_round(
    switch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies: list[str] = []

    async def noted(proofs: Sequence[Proof], name: str, settings: Settings) -> int:
        policies.extend(proof.policy for proof in proofs)
        return 0

    monkeypatch.setattr(verify, "prove", noted)
    with pytest.raises(typer.Exit):
        verify.command(switch=switch, pairs=1)
    assert policies == ["switch" if switch else "always"]
