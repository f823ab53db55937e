"""The pair of the published size, as far as this fits a test: see `published_pair`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("published_pair.py")
GIB = 1 << 30


@pytest.mark.slow
def test_a_drafter_of_the_published_size_drafts_a_block(tmp_path: Path) -> None:
    """81 tensors and 3.85 GB of bfloat16 become a 4-bit drafter that drafts for a 4-bit target."""
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), "4"],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    facts = json.loads(ran.stdout)
    print(facts)
    assert facts["tensors"] == 81
    assert 3.8e9 < facts["checkpoint_bytes"] < 3.9e9
    assert len(facts["drafts"]) == 7
    assert len(set(facts["drafts"])) > 1
    assert all(0 <= token < 248320 for token in facts["drafts"])
    assert facts["verified_rows"] == 8
    assert facts["peak_bytes"] < 8 * GIB
