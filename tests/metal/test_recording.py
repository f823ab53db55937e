"""The figures at the end of `make test-metal`."""

from __future__ import annotations

from recording import counted


def test_a_claim_counts_once_and_references_are_no_kernels_of_ours():
    claims = [
        ("test a", "gated_delta", "3 rows", True, True),
        ("test a", "gated_delta", "3 rows", True, False),
        ("test a", "gated_delta", "4 rows", True, True),
        ("test b", "gated_delta", "4 rows", True, True),
        ("test b", "verify_matmul", "values", False, True),
        ("test b", "mlx operations", "4 rows", True, True),
    ]
    assert counted(claims) == {
        "kernels": 2,
        "reference_kernels": 1,
        "checks": 5,
        "bit_equality_claims_held": "2 of 3",
    }
