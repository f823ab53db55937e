"""The steps of MLX's dispatch, by chip."""

from __future__ import annotations

import pytest

from metal.chip import Chip
from metal.cliffs import Product, attention_limit, product, rows_to_time, vector_limit

BASE_M1, PRO_M1, BASE_M2, ULTRA_M2 = Chip(13, "g"), Chip(13, "s"), Chip(14, "g"), Chip(14, "d")
PRO_M4, MAX_M5 = Chip(16, "s"), Chip(17, "s")


@pytest.mark.parametrize(
    ("chip", "limits"),
    [
        (MAX_M5, (33, 25, 13)),
        (PRO_M4, (13, 15, 13)),
        (ULTRA_M2, (32, 18, 12)),
        (BASE_M2, (14, 10, 6)),
        (PRO_M1, (14, 10, 7)),
        (Chip(12, "g"), (18, 12, 10)),
        (Chip(12, "d"), (32, 18, 12)),
    ],
    ids=str,
)
def test_where_rows_become_a_matrix(chip, limits):
    sizes = ((2048, 1024), (1024, 4096), (5120, 17408))
    assert tuple(vector_limit(chip, k, n) for k, n in sizes) == limits


def test_from_the_m3_on_five_rows_share_a_pass_over_the_weights():
    passes = [product(PRO_M4, rows, 5120, 17408).passes for rows in range(1, 14)]
    assert passes == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 1]
    kernels = [product(PRO_M4, rows, 5120, 17408).kernel for rows in (1, 2, 12, 13)]
    assert kernels == ["qmv", "qmv_wide", "qmv_wide", "qmm"]
    assert product(PRO_M4, 3, 128, 64) == Product("qmv_quad", 3)


def test_before_the_m3_every_row_reads_the_weights():
    assert product(BASE_M1, 5, 5120, 17408) == Product("qmv", 5)
    assert product(BASE_M1, 6, 5120, 17408) == Product("qmm", 1)


def test_attention_leaves_the_vector_kernel():
    assert [attention_limit(groups) for groups in (1, 4, 6, 8, 16)] == [9, 9, 6, 5, 3]


def test_only_both_sides_of_each_step_are_timed():
    shapes = [(5120, 17408), (17408, 5120), (5120, 6144)]
    assert rows_to_time(PRO_M4, shapes, 6, 16) == [1, 2, 5, 6, 10, 11, 12, 13, 16]
    # Each row is a pass of its own before the matrix kernel: a straight line.
    assert rows_to_time(BASE_M1, shapes, 6, 16) == [1, 2, 5, 6, 16]
    assert rows_to_time(PRO_M4, shapes, 6, 4) == [1, 2, 4]
    assert rows_to_time(PRO_M4, [], 1, 1) == [1]
