"""``python -m engine.targets.baseline``: mlx_lm alone on the same weights, for `pillion bench`.

A process of its own, so that neither side slows the other through caches or threads. JSON lines:
stdin holds the `EngineOptions` and then `BaselineRequest`s, stdout answers each, the options too,
with a `BaselineReply`. Ends when stdin does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from engine.errors import PillionError
from engine.messages import BaselineReply, BaselineRequest, EngineOptions


def serve(lines: Iterable[bytes], replies: BinaryIO) -> None:
    """Answer `lines` until they end or one fails; a failure is the last reply."""
    try:
        for reply in _replies(iter(lines)):
            replies.write(msgspec.json.encode(reply) + b"\n")
            replies.flush()
    except (PillionError, msgspec.MsgspecError) as error:
        replies.write(msgspec.json.encode(BaselineReply(error=str(error))) + b"\n")


def _replies(lines: Iterator[bytes]) -> Iterator[BaselineReply]:
    from mlx_lm import stream_generate
    from mlx_lm.utils import load_tokenizer

    from engine.loading.load import load

    if (first := next(lines, None)) is None:
        return
    loaded = load(msgspec.json.decode(first, type=EngineOptions), lambda what, share: None)
    end = list(loaded.info.eos_token_ids)
    tokenizer = load_tokenizer(Path(loaded.info.path), eos_token_ids=end)
    yield BaselineReply()
    for line in lines:
        request = msgspec.json.decode(line, type=BaselineRequest)
        tokens: list[int] = []
        began = first_token = time.perf_counter()
        for response in stream_generate(
            loaded.model, tokenizer, list(request.prompt), max_tokens=request.max_tokens
        ):
            if not tokens:
                first_token = time.perf_counter()
            tokens.append(response.token)
        yield BaselineReply(
            tokens=tuple(tokens),
            prefill_ms=1e3 * (first_token - began),
            decode_ms=1e3 * (time.perf_counter() - first_token),
        )


def main() -> None:
    """Libraries that print must not end up between the replies."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with replies:
        serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
