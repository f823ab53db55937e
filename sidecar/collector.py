"""Python's cyclic garbage collector, in a process that holds much and makes little garbage."""

from __future__ import annotations

import gc


def spare_what_is_loaded() -> None:
    """What is there now stays: the collector need not go through it again, and looks at the rest
    less often. Going through modules and tables takes tens of milliseconds, which is what the
    slowest keystroke in a hundred waited for."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
