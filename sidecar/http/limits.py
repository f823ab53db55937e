"""How long the HTTP door waits for the other side."""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """In seconds. No client needs other values; tests shorten them.

    body: a whole request body must have arrived. first_event: a streamed reply's status line is
    held back so long for a refusal by the engine to become a 4xx. keep_alive: silence on an open
    stream before a comment is sent. stall: a client that reads nothing for so long is gone.
    """

    body: float = 60.0
    first_event: float = 1.0
    keep_alive: float = 5.0
    stall: float = 60.0
