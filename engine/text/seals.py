"""Spellings of control tokens that no caller can write.

A chat template is the only author of a prompt's structure. Its own literals that spell a control
token (``<|im_end|>``) are rewritten to *seals*, which carry a nonce drawn when the model is loaded,
and the rendered prompt is encoded by a tokenizer that knows the seals and none of the original
spellings. Text from messages, tools and files therefore stays ordinary text however a template
cuts, glues or transforms it, because it cannot contain the nonce.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping

OPEN, CLOSE = "\ue000", "\ue001"


class Seals:
    """controls: spelling of each control token to its id."""

    def __init__(self, controls: Mapping[str, int]) -> None:
        self._controls = dict(controls)
        self._spellings = {token: text for text, token in controls.items()}
        self._nonce = secrets.token_hex(12)
        # The tokenizer library matches added tokens leftmost and longest; so does this.
        longest_first = sorted(controls, key=len, reverse=True)
        self._spelled = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._sealed = re.compile(f"{OPEN}{self._nonce}x([0-9]+){CLOSE}")
        self.splice = f"{OPEN}{self._nonce}{CLOSE}"

    def of(self, token: int) -> str:
        """The seal of one control token id."""
        return f"{OPEN}{self._nonce}x{token}{CLOSE}"

    def seal(self, trusted: str) -> str:
        """`trusted` text with every spelled control token replaced by its seal."""
        return self._spelled.sub(lambda match: self.of(self._controls[match[0]]), trusted)

    def unseal(self, text: str) -> str:
        """The text that a reader should see: seals spelled out again, splices gone."""
        spelled = self._sealed.sub(lambda match: self._spellings[int(match[1])], text)
        return spelled.replace(self.splice, "")

    def spelled_in(self, text: str) -> set[str]:
        """Control tokens that `text` spells plainly."""
        return set(self._spelled.findall(text))

    def spans(self, sealed: str) -> list[tuple[int, int]]:
        """Where in `sealed` each whole seal begins and ends."""
        return [match.span() for match in self._sealed.finditer(sealed)]
