from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from race_results import results

from engine import RequestError
from sidecar.cli.bench_peers import chosen, peers_settings, write_document
from sidecar.jobs.race.chart import chart
from sidecar.jobs.race.document import Machine, document
from sidecar.jobs.race.results import Results

WHERE = Machine(
    machine={"processor": "A Chip", "cores": 2, "system": "Linux", "memory_bytes": 8 << 30},
    versions={"mlx": "0.32.4"},
    date="2026-11-30",
)


def test_the_document_says_what_was_measured_and_what_we_lose() -> None:
    text = document(results(), WHERE, "benchmarks.svg")
    for said in (
        "machine: A Chip, 2 cores, 8 GiB, Linux",
        "mlx 0.32.4",
        "2026-11-30; 600 seconds",
        "![tokens a second](benchmarks.svg)",
        "| target-only decoding, over mlx_lm | `target_over_mlx_lm` | 10.00 | 10.00-10.00 | 4 |",
        "| Pillion target-only | 7.5 (5.0-10.0) | 7.5 (5.0-10.0) |",
        "| llama.cpp | 200 / 240 | 1.25 | 0.50 | 1.50 | 0.75 |",
        "| llama.cpp ngram_mod | NO: rename, advice |",
        "| llama.cpp ngram_mod | rewrite | 0.80 (0.80-0.80) |",
        "| vllm-mlx | warm-up: it / fell over |",
        "Not all of our kernels were used in builtin",
        "| llama.cpp | xllamacpp 2026.10.11549 |",
        "| llama.cpp | 400 |",
        "| HTTP | 100.0 | 98.0 | 2.0% (1.0% to 3.0%) |",
        "begun functions of requests==2.32.5",
    ):
        assert said in text, said
    assert "did not get to its end" not in text


def test_a_run_that_measured_nothing_is_a_document_too() -> None:
    empty = msgspec.structs.replace(
        results(),
        complete=False,
        comparisons={},
        rows=(),
        builtin_rows=(),
        lost=(),
        first_token=(),
        doors=(),
        verify=None,
        memory={},
        peers={},
        kernels={},
        doubtful=(),
        figures={},
        absent={"llama.cpp": "llama.cpp could not be installed: no index"},
    )
    text = document(empty, WHERE, None)
    assert "did not get to its end" in text
    assert "| llama.cpp | llama.cpp could not be installed: no index |" in text
    assert "| `target_over_mlx_lm` | not measured |" in text
    ElementTree.fromstring(chart(empty))


def test_the_chart_has_a_bar_for_every_system() -> None:
    found = ElementTree.fromstring(chart(results()))
    titles = [title.text or "" for title in found.iter("{http://www.w3.org/2000/svg}title")]
    assert titles.count("llama.cpp ngram_mod: 18.8 tokens a second") == 2
    assert titles.count("mlx_lm: 6.0 tokens a second") == 2, "reading the prompts of both tasks"


def test_the_files_are_written_side_by_side(tmp_path: Path) -> None:
    write_document(results(), tmp_path / "BENCHMARKS.md")
    assert "](BENCHMARKS.svg)" in (tmp_path / "BENCHMARKS.md").read_text()
    ElementTree.parse(tmp_path / "BENCHMARKS.svg")


def test_results_survive_being_written() -> None:
    encoded = msgspec.json.encode(results())
    assert msgspec.json.decode(encoded, type=Results) == results()


def test_peers_and_tasks_are_chosen_by_name() -> None:
    settings = peers_settings(
        ["llama.cpp,mlx_lm"], ["rewrite", "chat"], repeat=2, max_tokens=None, minutes=1.0
    )
    assert settings.peers == ("mlx_lm", "llama.cpp")
    assert settings.regimes == ("rewrite", "chat")
    assert settings.max_tokens == 48
    with pytest.raises(RequestError, match="--peer ollama: there is no such one"):
        chosen(["ollama"], ("llama.cpp",), "peer")
