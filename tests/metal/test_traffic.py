"""What is predicted stands in the document as the program computes it, and follows the counts."""

from __future__ import annotations

from pathlib import Path

import metal
from metal.chip import M1, M4, Chip
from metal.traffic import GPUS, Gpu, forward, main, ours, stock
from metal.verify_matmul import Shape

WIDE = Shape(5120, 17408, 64, 4)


def test_the_document_has_the_table(capsys):
    main()
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(GPUS)
    readme = (Path(metal.__file__).parent / "README.md").read_text(encoding="utf-8")
    assert "\n".join(table) in readme


def test_stock_mlx_comes_out_as_published():
    """mlx#3839: 4096 outputs of 12288 inputs on an M4 Pro cost 2.05 and 2.46 single rows."""
    gpu, shape = next(g for g in GPUS if g.name == "M4 Pro"), Shape(12288, 4096, 64, 4)
    alone = stock(gpu, shape, 1)
    assert abs(stock(gpu, shape, 6) / alone - 2.05) < 0.1
    assert abs(stock(gpu, shape, 8) / alone - 2.46) < 0.1


def test_reading_bounds_one_row_and_computing_many():
    slow = Gpu("slow memory", Chip(M1, "g"), 1, 100)
    # Each of the rows reads the weights again, ours read them once.
    assert stock(slow, WIDE, 4) / ours(slow, WIDE, 4) == 4
    fast = Gpu("fast memory", Chip(M4, "g"), 10_000, 1)
    assert ours(fast, WIDE, 16) > 9 * ours(fast, WIDE, 1)


def test_the_model_has_27_billion_weights():
    """Of which 1.3 are the input's table, which no product reads."""
    from metal.traffic import QWEN

    weights = sum(count * shape.k * shape.n for shape, count in QWEN.items())
    assert 25e9 < weights < 26e9
    mine, theirs = forward(GPUS[0], 1)
    assert mine == theirs
