from __future__ import annotations

from pathlib import Path

import pytest

from engine.builtin import TARGET
from engine.errors import ModelError
from engine.loading.checkpoint import Checkpoint
from engine.loading.memory_plan import GIB, MemoryPlan, memory_limit, plan

# Qwen3.8-27B-4bit with z-lab/Qwen3.8-27B-DFlash2 at 4 bits: 16 attention layers of 4 x 256 keys
# and values in bf16 (64 KiB a token), 48 recurrent states of 3.1 MB; the drafter keeps one
# projected row of 5,120 bf16 a token.
QWEN = MemoryPlan(
    name="Qwen3.8-27B-4bit",
    weights=int(15.5e9),
    drafter=int(1.1e9),
    per_token=64 * 1024 + 2 * 5120,
    state=48 * 3_200_000,
    working=200 << 20,
    limit=0,
    model_context=262_144,
)


def on_a_mac(gigabytes: int) -> MemoryPlan:
    """Metal's recommended working set is about two thirds of the memory of these Macs."""
    from dataclasses import replace

    return replace(QWEN, limit=gigabytes * GIB * 2 // 3)


def test_qwen_27b_on_a_16_gb_mac_is_refused_by_name_with_what_it_needs():
    memory = on_a_mac(16)
    assert memory.largest_context == 0
    with pytest.raises(ModelError) as refusal:
        memory.context(None)
    message = refusal.value.message
    assert "Qwen3.8-27B-4bit does not fit: 15.8 GiB (weights 14.4 GiB, drafter 1.0 GiB" in message
    assert "of 10.7 GiB that may be used" in message


def test_qwen_27b_on_a_24_gb_mac_has_room_for_a_short_context_only():
    memory = on_a_mac(24)
    assert 2_000 < memory.context(None) < 4_000
    with pytest.raises(ModelError, match=f"use --context {memory.largest_context}"):
        memory.context(8_192)


def test_qwen_27b_on_a_24_gb_mac_fits_without_its_drafter():
    from dataclasses import replace

    memory = replace(on_a_mac(24), drafter=0, per_token=64 * 1024)
    assert 15_000 < memory.largest_context < 20_000
    with pytest.raises(ModelError, match=f"use --context {memory.largest_context}"):
        memory.context(32_768)


def test_qwen_27b_on_a_32_gb_mac():
    memory = on_a_mac(32)
    assert 60_000 < memory.largest_context < 80_000
    assert memory.context(None) == memory.largest_context
    assert memory.context(32_768) == 32_768
    with pytest.raises(ModelError, match=f"largest context that fits is {memory.largest_context}"):
        memory.context(131_072)


def test_a_model_that_fits_gets_its_whole_context():
    memory = plan("builtin", Checkpoint(TARGET), limit=GIB)
    assert memory.context(None) == memory.model_context == 4096
    assert memory.weights > 15_000_000
    assert memory.total(4096) - memory.total(0) == 4096 * 1024


def test_a_drafter_is_counted_with_its_rows():
    alone = plan("builtin", Checkpoint(TARGET), limit=GIB)
    both = plan("builtin", Checkpoint(TARGET), drafter=Checkpoint(TARGET), limit=GIB)
    quantised = plan(
        "builtin", Checkpoint(TARGET), drafter=Checkpoint(TARGET), drafter_bits=4, limit=GIB
    )
    assert both.drafter == both.weights
    assert both.per_token > alone.per_token
    assert both.drafter / 4 < quantised.drafter < both.drafter / 3


def test_the_limit_of_this_machine_is_less_than_its_memory():
    memory = Path("/proc/meminfo")
    if memory.exists():
        total = int(memory.read_text().split()[1]) * 1024
        assert 0.5 * total < memory_limit() < total


def test_the_largest_context_really_fits_and_the_next_does_not():
    for limit in range(16, 40):
        memory = on_a_mac(limit)
        largest = memory.largest_context
        if 0 < largest < memory.model_context:
            assert memory.total(largest) <= memory.limit < memory.total(largest + 512)
