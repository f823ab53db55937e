"""``python -m engine.targets.baseline PEER``: another implementation on the same weights, for
`pillion bench`. PEER: ``mlx_lm``, which decodes target-only, or ``dflash``, z-lab's own.

A process of its own, so that neither side slows the other through caches or threads. JSON lines:
stdin holds the `EngineOptions` and then `BaselineRequest`s, stdout answers each, the options too,
with a `BaselineReply`. Ends when stdin does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from engine.comparisons import BaselineReply, BaselineRequest
from engine.errors import ModelError, PillionError
from engine.messages import EngineOptions

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from engine.loading.load import Loaded

# The tokens of each round, the prefill's first.
Generate = Callable[["TokenizerWrapper", Sequence[int], int], Iterator[list[int]]]


def serve(lines: Iterable[bytes], replies: BinaryIO, peer: str = "mlx_lm") -> None:
    """Answer `lines` until they end or one fails; a failure is the last reply."""
    try:
        for reply in _replies(iter(lines), peer):
            replies.write(msgspec.json.encode(reply) + b"\n")
            replies.flush()
    except (PillionError, msgspec.MsgspecError) as error:
        replies.write(msgspec.json.encode(BaselineReply(error=str(error))) + b"\n")


def _replies(lines: Iterator[bytes], peer: str) -> Iterator[BaselineReply]:
    from mlx_lm.utils import load_tokenizer

    from engine.loading.load import load

    if (first := next(lines, None)) is None:
        return
    options = msgspec.json.decode(first, type=EngineOptions)
    loaded = load(options, lambda what, share: None)
    end = loaded.info.eos_token_ids
    tokenizer = load_tokenizer(Path(loaded.info.path), eos_token_ids=list(end))
    generate = _peer(peer, loaded, options)
    yield BaselineReply()
    for line in lines:
        request = msgspec.json.decode(line, type=BaselineRequest)
        tokenizer.eos_token_ids = () if request.ignore_eos else end
        yield _timed(generate(tokenizer, request.prompt, request.max_tokens))


def _timed(runs: Iterator[list[int]]) -> BaselineReply:
    tokens: list[int] = []
    began = first = last = time.perf_counter()
    rounds = 0
    for run in runs:
        last = time.perf_counter()
        if tokens:
            rounds += 1
        else:
            first = last
        tokens += run
    return BaselineReply(
        tokens=tuple(tokens),
        rounds=rounds,
        prefill_ms=1e3 * (first - began),
        decode_ms=1e3 * (last - first),
    )


def _peer(name: str, loaded: Loaded, options: EngineOptions) -> Generate:
    if name == "mlx_lm":
        return _mlx_lm(loaded)
    if name == "dflash":
        from engine.targets.peer_dflash import OfficialDFlash

        return OfficialDFlash(loaded, options).generate
    raise ModelError(f"no implementation {name!r} to compare with: there are mlx_lm and dflash")


def _mlx_lm(loaded: Loaded) -> Generate:
    from mlx_lm import stream_generate

    def generate(
        tokenizer: TokenizerWrapper, prompt: Sequence[int], max_tokens: int
    ) -> Iterator[list[int]]:
        for response in stream_generate(
            loaded.model, tokenizer, list(prompt), max_tokens=max_tokens
        ):
            yield [response.token]

    return generate


def main() -> None:
    """Libraries that print must not end up between the replies."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with replies:
        serve(sys.stdin.buffer, replies, *sys.argv[1:])


if __name__ == "__main__":
    main()
