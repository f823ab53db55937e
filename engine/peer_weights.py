"""Where the weights that other implementations read are: what `engine.loading.peer_weights` says."""

from __future__ import annotations

from msgspec import Struct


class PeerWeights(Struct, frozen=True, kw_only=True):
    """What `engine.loading.peer_weights` found: paths of a file and two folders, or the error."""

    gguf: str = ""
    folder: str = ""
    cache: str = ""
    error: str = ""
