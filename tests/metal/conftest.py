"""What every test of a Metal kernel records, and the figures that `make test-metal` ends with."""

from __future__ import annotations

import time
from typing import Any

import pytest
from emulator import available, missing
from recording import RecordClaim, RecordFault

FIGURES = "metal figures"
# Names of kernels that are not ours begin so.
REFERENCE = "mlx "
_began = time.monotonic()


@pytest.fixture
def record_claim(request: pytest.FixtureRequest) -> RecordClaim:
    """Counts checks into the figures at the end of the run."""

    def record(kernel: str, claim: str, held: bool, *, bits: bool = False) -> None:
        # Travels with the test's report, from another process too.
        request.node.user_properties.append((FIGURES, ("claim", kernel, bits, bool(held))))
        assert held, f"{kernel}: {claim}"

    return record


@pytest.fixture
def record_fault(request: pytest.FixtureRequest) -> RecordFault:
    """Counts seeded faults into the figures at the end of the run."""

    def record(found: bool) -> None:
        request.node.user_properties.append((FIGURES, ("fault", "", False, bool(found))))

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
    claims = [record for record in records if record[0] == "claim"]
    faults = [record for record in records if record[0] == "fault"]
    kernels = {kernel for _, kernel, _, _ in claims}
    theirs = {kernel for kernel in kernels if kernel.startswith(REFERENCE)}
    bits = [held for _, kernel, bits, held in claims if bits and kernel not in theirs]
    terminalreporter.section("tests/metal")
    for name, figure in {
        "kernels": len(kernels - theirs),
        "reference_kernels": len(theirs),
        "checks": len(claims),
        # A claim that does not hold fails its test.
        "failures": sum(len(terminalreporter.stats.get(kind, [])) for kind in ("failed", "error")),
        "bit_equality_claims_held": f"{sum(bits)} of {len(bits)}",
        "seconds": round(time.monotonic() - _began),
        "emulator_faults_seeded": len(faults),
        "emulator_faults_found": sum(found for _, _, _, found in faults),
    }.items():
        terminalreporter.line(f"{name}: {figure}")
