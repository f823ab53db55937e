"""What the emulator says of a kernel that does something wrong."""

from __future__ import annotations

import re


class KernelFault(Exception):
    """A kernel did what it must not.

    `kind` is one of: "compile", "dispatch", "divergence", "threadgroup memory", "simdgroup matrix",
    "poison" (an output holds what nobody wrote); and from a sanitizer: "race", "out of bounds",
    "undefined behaviour", "uninitialised", "input" (an input was written to), "crash".
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


SIGNS = [
    (r"ThreadSanitizer: data race", "race"),
    (r"MemorySanitizer: use-of-uninitialized-value", "uninitialised"),
    (r"AddressSanitizer: \S*(overflow|underflow)", "out of bounds"),
    (r"runtime error: index .* out of bounds", "out of bounds"),
    (r"runtime error: ", "undefined behaviour"),
]


def from_report(report: str, status: int) -> KernelFault:
    """The fault that a sanitized program's error output tells of."""
    own = re.search(r"^emulator: ([\w ]+): (.*)", report, re.MULTILINE)
    if own is not None:
        return KernelFault(own[1], own[2])
    for sign, kind in SIGNS:
        if re.search(sign, report):
            return KernelFault(kind, report[:5000])
    return KernelFault("crash", f"exit status {status}\n{report[:5000]}")
