"""What is predicted of the recurrent and attention kernels stands in the document as computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import metal
from metal.layer_traffic import (
    STATE,
    main,
    our_attention,
    rerun,
    resumed,
    seconds,
    stock_attention,
)
from metal.traffic import GPUS


def test_the_document_has_the_tables(capsys):
    main()
    _, recurrent, attention = capsys.readouterr().out.strip().split("\n\n")
    readme = (Path(metal.__file__).parent / "README.md").read_text(encoding="utf-8")
    assert recurrent in readme
    assert attention in readme


def test_a_tape_saves_a_read_and_a_write_of_the_state():
    """16 rows of q, k, v and y weigh an eighth of a state."""
    for keep in (0, 5, 8):
        saved = rerun(8, keep).moved - resumed(8, keep).moved
        assert 1.8 * STATE < saved < 2 * STATE
        assert resumed(8, keep).instructions <= rerun(8, keep).instructions


def test_attention_pays_where_stock_mlx_multiplies_matrices_of_few_rows():
    gpu = next(g for g in GPUS if g.name == "M4 Pro")
    ratio = {
        rows: seconds(gpu, our_attention(rows, 32768)) / seconds(gpu, stock_attention(rows, 32768))
        for rows in (1, 8, 14, 16)
    }
    assert ratio[8] < 0.6
    assert 0.9 < ratio[1] < 1.05
    assert 0.9 < ratio[14] < 1
    assert ratio[16] > 1


def test_the_longer_of_memory_and_arithmetic_counts():
    gpu, work = GPUS[0], rerun(8, 5)
    memory = seconds(replace(gpu, tflops=1e6), work)
    assert seconds(replace(gpu, bandwidth=gpu.bandwidth / 2, tflops=1e6), work) == 2 * memory
    assert seconds(replace(gpu, tflops=1e-3), work) > memory
