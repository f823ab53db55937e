"""Each test here runs once on every instruction set of this processor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kernel_cases import KERNELS, MISSING, SETS

from engine.cpu import INSTRUCTION_SETS


@pytest.fixture(params=SETS or ["none"])
def kernels(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The extension, on one instruction set."""
    if MISSING:
        pytest.skip(f"no kernels here: {MISSING}")
    KERNELS.use(request.param)
    yield KERNELS
    KERNELS.use(max(SETS, key=INSTRUCTION_SETS.index))
