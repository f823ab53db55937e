"""What every test of a Metal kernel records, and the figures that `make test-metal` ends with."""

from __future__ import annotations

import time
from typing import Any

import pytest
from emulator import available, missing
from recording import RecordClaim, RecordFault, counted

FIGURES = "metal figures"
_began = time.monotonic()


@pytest.fixture
def record_claim(request: pytest.FixtureRequest) -> RecordClaim:
    """Counts checks into the figures at the end of the run."""

    def record(kernel: str, claim: str, held: bool, *, bits: bool = False) -> None:
        # Travels with the test's report, from another process too.
        record = "claim", request.node.nodeid, kernel, claim, bits, bool(held)
        request.node.user_properties.append((FIGURES, record))
        assert held, f"{kernel}: {claim}"

    return record


@pytest.fixture
def record_fault(request: pytest.FixtureRequest) -> RecordFault:
    """Counts seeded faults into the figures at the end of the run."""

    def record(found: bool) -> None:
        request.node.user_properties.append((FIGURES, ("fault", bool(found))))

    return record


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("metal") and not available():
        pytest.skip(missing)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [
        report
        for kind in ("passed", "failed")
        for report in terminalreporter.stats.get(kind, [])
        if report.when == "call"
    ]
    records = [
        value for report in reports for key, value in report.user_properties if key == FIGURES
    ]
    if not records:
        if any("emulator" in report.nodeid for report in terminalreporter.stats.get("skipped", [])):
            terminalreporter.section("tests/metal: NO KERNEL WAS RUN", red=True)
            terminalreporter.line(missing)
        return
    claims = [record[1:] for record in records if record[0] == "claim"]
    faults = [record[1] for record in records if record[0] == "fault"]
    terminalreporter.section("tests/metal")
    for name, figure in {
        **counted(claims),
        # A claim that does not hold fails its test.
        "failures": sum(len(terminalreporter.stats.get(kind, [])) for kind in ("failed", "error")),
        "seconds": round(time.monotonic() - _began),
        "emulator_faults_seeded": len(faults),
        "emulator_faults_found": sum(faults),
    }.items():
        terminalreporter.line(f"{name}: {figure}")
