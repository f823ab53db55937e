"""``python -m engine.targets.baseline``: mlx_lm alone on the same weights, for `pillion bench`.

A process of its own, so that neither side slows the other through caches or threads. JSON lines:
stdin holds the `EngineOptions` and then `BaselineRequest`s, stdout answers each, the options too,
with a `BaselineReply`. Ends when stdin does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec

from engine.errors import PillionError
from engine.messages import BaselineReply, BaselineRequest, EngineOptions


def serve(lines: Iterable[bytes], replies: BinaryIO) -> None:
    """Answer `lines` until they end or one fails; a failure is the last reply."""
    from mlx_lm import stream_generate
    from mlx_lm.utils import load_tokenizer

    from engine.loading.load import load

    def answer(reply: BaselineReply) -> None:
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()

    lines = iter(lines)
    try:
        loaded = load(
            msgspec.json.decode(next(lines), type=EngineOptions), lambda what, share: None
        )
        eos = list(loaded.info.eos_token_ids)
        tokenizer = load_tokenizer(Path(loaded.info.path), eos_token_ids=eos)
        answer(BaselineReply())
        for line in lines:
            request = msgspec.json.decode(line, type=BaselineRequest)
            began = time.perf_counter()
            tokens: list[int] = []
            first = began
            for response in stream_generate(
                loaded.model, tokenizer, list(request.prompt), max_tokens=request.max_tokens
            ):
                if not tokens:
                    first = time.perf_counter()
                tokens.append(response.token)
            answer(
                BaselineReply(
                    tokens=tuple(tokens),
                    prefill_ms=1e3 * (first - began),
                    decode_ms=1e3 * (time.perf_counter() - first),
                )
            )
    except (PillionError, msgspec.MsgspecError) as error:
        answer(BaselineReply(error=str(error)))


def main() -> None:
    """Libraries that print must not end up between the replies."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    main()
