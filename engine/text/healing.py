"""Token healing: which tokens may come next when the reply must begin with given bytes.

A prompt that ends in the middle of a word was tokenised in a way the model has never seen the
word. The last piece is taken off the prompt and the reply is held to begin with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Healing:
    """token_bytes: the bytes of every token id; empty for control tokens, which never match."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self.token_bytes = token_bytes
        self._by_first_byte: dict[int, list[int]] = defaultdict(list)
        for token, spelled in enumerate(token_bytes):
            if spelled:
                self._by_first_byte[spelled[0]].append(token)

    def allowed(self, owed: bytes) -> list[int]:
        """Ids whose bytes begin with `owed`, or that `owed` begins with. Never empty for a
        byte-level vocabulary."""
        return [
            token
            for token in self._by_first_byte[owed[0]]
            if self.token_bytes[token].startswith(owed) or owed.startswith(self.token_bytes[token])
        ]

    def mask(self, owed: bytes, vocabulary: int) -> NDArray[np.bool_]:
        """`allowed` as a (vocabulary,) mask. All true when no token fits: better an unhealed
        reply than none."""
        mask = np.zeros(vocabulary, dtype=np.bool_)
        mask[self.allowed(owed)] = True
        return mask if mask.any() else ~mask
