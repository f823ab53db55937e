"""How a test of a Metal kernel says what it checked."""

from __future__ import annotations

from typing import Protocol


class RecordClaim(Protocol):
    """Counts one check of a kernel and fails the test where it does not hold.

    `kernel` is the kernel's name (one of MLX's own begins with "mlx "), `claim` what is claimed, in
    words; `bits` says that the claim is equality to the bit.
    """

    def __call__(self, kernel: str, claim: str, held: bool, *, bits: bool = False) -> None: ...


class RecordFault(Protocol):
    """Counts a fault that was seeded into a kernel, and whether it was found."""

    def __call__(self, found: bool) -> None: ...
