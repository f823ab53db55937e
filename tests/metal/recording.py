"""How a test of a Metal kernel says what it checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

# Names of kernels that are not ours begin so.
REFERENCE = "mlx "


class RecordClaim(Protocol):
    """Counts one check of a kernel and fails the test where it does not hold.

    `kernel` is the kernel's name (one of MLX's own begins with "mlx "), `claim` what is claimed, in
    words; `bits` says that the claim is equality to the bit.
    """

    def __call__(self, kernel: str, claim: str, held: bool, *, bits: bool = False) -> None: ...


class RecordFault(Protocol):
    """Counts a fault that was seeded into a kernel, and whether it was found."""

    def __call__(self, found: bool) -> None: ...


def counted(claims: Iterable[tuple[str, str, str, bool, bool]]) -> dict[str, int | str]:
    """Figures of claims (test, kernel, claim, bits, held): one that a test repeats counts once, and
    holds if it always did."""
    once: dict[tuple[str, str, str, bool], bool] = {}
    for *claim, held in claims:
        key = claim[0], claim[1], claim[2], claim[3]
        once[key] = once.get(key, True) and held
    kernels = {kernel for _, kernel, _, _ in once}
    theirs = {kernel for kernel in kernels if kernel.startswith(REFERENCE)}
    bits = [held for (_, kernel, _, bits), held in once.items() if bits and kernel not in theirs]
    return {
        "kernels": len(kernels - theirs),
        "reference_kernels": len(theirs),
        "checks": len(once),
        "bit_equality_claims_held": f"{sum(bits)} of {len(bits)}",
    }
