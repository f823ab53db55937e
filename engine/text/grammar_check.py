"""Whether a grammar can be compiled, within bounds that hold for hostile ones.

Some schemas of a few hundred bytes take llguidance minutes (a `multipleOf` of a million, many
patterns that must all match). It cannot be interrupted, so what may be such a schema is compiled
first in a process that may be ended.
"""

from __future__ import annotations

import functools
import math
import re
import resource
import subprocess
import sys

from llguidance import LLTokenizer, TokenizerWrapper

from engine.text.constraints import Spelling, compiled, error_of

MAX_CHARACTERS = 128 * 1024
CPU_SECONDS = 2
# On a busy machine two seconds of CPU take longer; nobody should wait for ever.
WALL_SECONDS = 120
# What compiles in milliseconds: it is short, its patterns are few (fewer still where several may
# have to hold at once), and its multiples are of small numbers.
QUICK_CHARACTERS = 8192
QUICK_PATTERNS = 8
QUICK_COMBINED_PATTERNS = 2
QUICK_MULTIPLE = 1000
_MULTIPLE = re.compile(r'"multipleOf": ([^,}\s]+)')
_CONTROL = re.compile(r"<\[[0-9]+\]>")


@functools.lru_cache(maxsize=32)
def problem(text: str) -> str:
    """Why the grammar cannot be used; empty if it can be.

    The cost of a compilation hardly depends on the vocabulary, so 256 bytes and one control token
    stand for it here.
    """
    if len(text) > MAX_CHARACTERS:
        return f"more than {MAX_CHARACTERS // 1024} KiB of schema"
    if _quick(text):
        return _compile(text)
    try:
        checked = subprocess.run(
            [sys.executable, "-P", "-m", "engine.text.grammar_check"],
            input=text.encode(),
            capture_output=True,
            timeout=WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "compiling it takes too long; simplify its patterns, multipleOf and allOf"
    if checked.returncode == 0:
        return checked.stdout.decode()
    return "compiling it takes too much time or memory; simplify its patterns, multipleOf and allOf"


def _quick(text: str) -> bool:
    if len(text) > QUICK_CHARACTERS or '"patternProperties"' in text:
        return False
    combined = '"allOf"' in text or '"$ref"' in text
    patterns = QUICK_COMBINED_PATTERNS if combined else QUICK_PATTERNS
    # Multiples of 0.25 are told like those of 25.
    digits = ("".join(re.findall("[0-9]", number)) for number in set(_MULTIPLE.findall(text)))
    multiple = math.prod(int(number[:10] or 1) for number in digits)
    return text.count('"pattern"') <= patterns and multiple <= QUICK_MULTIPLE


def _compile(text: str) -> str:
    text = _CONTROL.sub("<[256]>", text)
    every_byte = [bytes([value]) for value in range(256)]
    spelling = Spelling([*every_byte, b""], 256, lambda plain: list(plain.encode()))
    return error_of(compiled(text, LLTokenizer(TokenizerWrapper(spelling))))


def main() -> None:
    """Compile what stands on standard input and print what is wrong with it."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    sys.stdout.write(_compile(sys.stdin.buffer.read().decode()))


if __name__ == "__main__":
    main()
