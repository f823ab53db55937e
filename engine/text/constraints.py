"""Which tokens keep a reply inside its grammar (llguidance), row by row of a verify forward.

A row's mask depends on the grammar and on the tokens before the row, never on what was drafted or
taken back, so masked decoding is as lossless as free decoding.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from engine.errors import EngineError, PillionError, RequestError
from engine.messages import Grammar

# An agent sends the same tools with each of its turns.
MAX_COMPILED = 16
_PLACE = re.compile(r"^at \d+\(\d+\): |failed to compile JSON schema: ")


def limits() -> LLParserLimits:
    """What one grammar may cost; llguidance counts symbols and lexer states, not seconds."""
    return LLParserLimits(max_grammar_size=100_000, max_lexer_states=50_000, verbose_errors=False)


class Constraint:
    """Where one reply stands in its grammar."""

    def __init__(self, compiled: LLMatcher, end_ids: frozenset[int], field: str) -> None:
        self._compiled = compiled
        self._matcher = compiled.deep_copy()
        self._end_ids = end_ids
        self._field = field
        self._committed: list[int] = []
        self.finished = False

    def rows(self, drafts: Sequence[int], width: int) -> tuple[list[int], NDArray[np.bool_]]:
        """Those of `drafts` that the grammar lets through, and what each verified row may choose.

        width: of the logits. Returns M - 1 drafts and an (M, width) mask; M is at least 1. Raises
        RequestError when the grammar has become too large to go on with.
        """
        masks: list[NDArray[np.bool_]] = []
        taken_back = 0
        for draft in [*drafts, None]:
            if self._matcher.is_stopped() and not self._matcher.is_error():
                # The reply ends with the draft before this row: nobody takes what is chosen here.
                masks.append(np.ones(width, dtype=np.bool_))
                break
            mask = self._mask(width)
            if mask is None:
                break
            masks.append(mask)
            if draft is None or not mask[draft]:
                break
            if draft in self._end_ids:
                masks.append(np.ones(width, dtype=np.bool_))
                break
            if not self._matcher.consume_token(draft):
                break
            taken_back += 1
        if not masks:
            raise self._failure()
        if self._matcher.is_error() or not self._matcher.rollback(taken_back):
            self._restart()
        return list(drafts[: len(masks) - 1]), np.stack(masks)

    def _mask(self, width: int) -> NDArray[np.bool_] | None:
        """The next token's mask; None if llguidance gave up."""
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            return None
        bits = np.unpackbits(packed, bitorder="little", count=min(8 * packed.size, width))
        mask = np.zeros(width, dtype=np.bool_)
        mask[: bits.size] = bits
        return mask

    def _restart(self) -> None:
        """An error is for ever, and here it may have come from a draft that nobody commits."""
        self._matcher = self._compiled.deep_copy()
        self._matcher.consume_tokens(self._committed)

    def forced(self, limit: int) -> list[int]:
        """At most `limit` tokens that spell the text which has to come next; often none."""
        if self.finished:
            return []
        tokens = self._matcher.compute_ff_tokens()[:limit]
        if self._matcher.is_error():
            self._restart()
            return []
        return tokens

    def commit(self, token: int) -> None:
        """Take in the reply's next token. `finished` says afterwards whether it was the last.

        Raises RequestError when the grammar has become too large to go on with.
        """
        self._committed.append(token)
        if token in self._end_ids:
            self.finished = True
            return
        if not self._matcher.consume_token(token):
            raise self._failure()
        self.finished = self._matcher.is_stopped()

    def _failure(self) -> PillionError:
        reason = error_of(self._matcher)
        # The stop reason of a limit that is met between two tokens is only "InternalError".
        if self._matcher.stop_reason().endswith("TooComplex") or "limit" in reason:
            return RequestError(f"{self._field} is too complex: {reason}", field=self._field)
        return EngineError(f"the reply is outside its grammar: {reason}")


class Grammars:
    """Compiles grammars for one vocabulary. Belongs to one thread.

    token_bytes: the bytes of every token id; empty for control tokens, which only a grammar that
    names them by id lets through. end_ids: what may end a complete reply. encode: plain text to
    ids; how forced text is tokenised.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        end_ids: Iterable[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        self._end_ids = frozenset(token for token in end_ids if token < len(token_bytes))
        if not self._end_ids:
            raise RequestError("this model has no end token, so no reply can be held to a grammar")
        spelling = Spelling(token_bytes, min(self._end_ids), encode)
        self._tokenizer = LLTokenizer(TokenizerWrapper(spelling), eos_token=sorted(self._end_ids))
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def begin(self, grammar: Grammar) -> Constraint:
        """A constraint at its first token. Raises RequestError with the reason why not."""
        matcher = self._compiled.pop(grammar.text, None)
        if matcher is None:
            matcher = compiled(grammar.text, self._tokenizer)
            if reason := error_of(matcher):
                raise RequestError(f"{grammar.field}: {reason}", field=grammar.field)
        self._compiled[grammar.text] = matcher
        if len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        return Constraint(matcher, self._end_ids, grammar.field)


class Spelling:
    """A vocabulary in the words of `llguidance.TokenizerWrapper`."""

    def __init__(
        self, token_bytes: Sequence[bytes], eos: int, encode: Callable[[str], list[int]]
    ) -> None:
        self.eos_token_id = eos
        self.bos_token_id = None
        self.special_token_ids = [token for token, spelled in enumerate(token_bytes) if not spelled]
        self.tokens = [
            spelled or f"<|{token}|>".encode() for token, spelled in enumerate(token_bytes)
        ]
        self._encode = encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())


def compiled(text: str, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher at the first token of the grammar, in an error state if there is none."""
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits())
    # A grammar that no text satisfies is found out only here.
    matcher.compute_bitmask()
    return matcher


def error_of(matcher: LLMatcher) -> str:
    """llguidance's own words, empty if nothing is wrong."""
    if not matcher.is_error():
        return ""
    reason = matcher.get_error().replace("<non-verbose/>", "").strip()
    if reason.startswith("NoExtension"):
        return "no reply can satisfy it"
    # Where it is in the grammar says nothing to somebody who wrote a schema.
    return _PLACE.sub("", reason.split("\n   1 | ")[0])[:1000]
