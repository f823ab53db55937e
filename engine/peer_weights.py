"""Where the weights are that other implementations read; see `engine.loading.peer_weights`."""

from __future__ import annotations

from msgspec import Struct


class PeerWeights(Struct, frozen=True, kw_only=True):
    """What `engine.loading.peer_weights` found: paths of a file and two folders, or the error."""

    gguf: str = ""
    folder: str = ""
    cache: str = ""
    error: str = ""
