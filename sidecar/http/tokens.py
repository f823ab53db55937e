"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine import RequestError
from sidecar.http.endpoint import Endpoint, Exchange
from sidecar.http.models import served_model
from sidecar.http.schema.infill import (
    Detokenized,
    DetokenizeRequest,
    Tokenized,
    TokenizeRequest,
    TokenPiece,
)
from sidecar.jobs.chat import check_countable


class Tokenize(Endpoint[TokenizeRequest]):
    """Text to token ids."""

    shape = TokenizeRequest

    async def answer(self, wire: TokenizeRequest, exchange: Exchange) -> None:
        engine = self.services.engine
        model = served_model(self.services)
        text = wire.content if wire.content is not None else wire.prompt
        if text is None:
            raise RequestError("content is missing", field="content")
        check_countable(len(text), "content" if wire.content is not None else "prompt")
        ids = await engine.encode(text, control=wire.parse_special)
        begin = await engine.encode("", control=True)
        if wire.parse_special and not wire.add_special and begin and ids[: len(begin)] == begin:
            ids = ids[len(begin) :]
        elif wire.add_special and not wire.parse_special:
            ids = [*begin, *ids]
        tokens: tuple[int | TokenPiece, ...] = tuple(ids)
        if wire.with_pieces:
            spelled = await engine.token_bytes()
            # For a long text this takes a while, and others wait for the loop.
            tokens = await asyncio.to_thread(_pieces, ids, spelled)
        await exchange.json(Tokenized(tokens=tokens, count=len(ids), max_model_len=model.context))


class Detokenize(Endpoint[DetokenizeRequest]):
    """Token ids to text."""

    shape = DetokenizeRequest

    async def answer(self, wire: DetokenizeRequest, exchange: Exchange) -> None:
        size = served_model(self.services).vocab_size
        check_countable(len(wire.tokens), "tokens")
        for index, token in enumerate(wire.tokens):
            if not 0 <= token < size:
                raise RequestError(
                    f"tokens[{index}]: {token} is not a token id; this model has {size}",
                    field=f"tokens[{index}]",
                )
        text = await self.services.engine.decode(wire.tokens)
        await exchange.json(Detokenized(content=text, prompt=text))


def _pieces(ids: Sequence[int], spelled: Sequence[bytes]) -> tuple[TokenPiece, ...]:
    return tuple(_piece(token, spelled[token]) for token in ids)


def _piece(token: int, spelled: bytes) -> TokenPiece:
    try:
        return TokenPiece(token, spelled.decode())
    except UnicodeDecodeError:
        return TokenPiece(token, tuple(spelled))
