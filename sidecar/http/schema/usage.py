"""What every reply says about its cost: OpenAI's `usage` and the `pillion` object."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from engine import CacheUse, Finished, RegimeSurplus, Round, Span


class PromptTokensDetails(Struct, frozen=True):
    cached_tokens: int


class CompletionTokensDetails(Struct, frozen=True):
    """Draft tokens that the target confirmed, and those it did not (OpenAI counts predicted
    outputs under the same names)."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int | UnsetType = UNSET


class Usage(Struct, frozen=True, kw_only=True):
    """completion_tokens counts every token the model produced, a final EOS included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ReplyFacts(Struct, frozen=True, kw_only=True):
    """The `pillion` object; names and units are those of `engine.Finished`. `timeline` and `log`
    are there if `explain` asked for them. repaired_calls: tool calls that were not quite in form,
    and what was wrong. unread_calls: why something that looks like a call was left in the text.
    served_by: the upstream that decoded it; fallback: why one did not."""

    seed: int
    exact: bool
    inexact_reason: str | None
    token_hash: str
    tokens_per_round: float
    rounds: int
    accepted: int
    rejected: int
    width: int
    width_reason: str | None
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    cache: CacheUse
    regimes: tuple[RegimeSurplus, ...]
    repaired_calls: tuple[str, ...] | UnsetType = UNSET
    unread_calls: tuple[str, ...] | UnsetType = UNSET
    timeline: tuple[Span, ...] | UnsetType = UNSET
    log: tuple[Round, ...] | UnsetType = UNSET
    served_by: str | UnsetType = UNSET
    fallback: str | UnsetType = UNSET


def usage_of(*replies: Finished, reasoning: int = 0, choices: int | None = None) -> Usage:
    """OpenAI's `usage` of replies. reasoning: tokens of them that were. choices: to each prompt,
    which counts once; None if there was one prompt."""
    asked = replies[:: choices or len(replies)]
    prompt = sum(finished.prompt_tokens for finished in asked)
    completion = sum(len(finished.tokens) for finished in replies)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(
            sum(finished.cached_tokens for finished in asked)
        ),
        completion_tokens_details=CompletionTokensDetails(
            sum(finished.accepted for finished in replies),
            sum(finished.rejected for finished in replies),
            reasoning or UNSET,
        ),
    )


def facts_of(
    finished: Finished, repaired: tuple[str, ...] = (), unread: tuple[str, ...] = ()
) -> ReplyFacts:
    """The `pillion` object of a reply; times are rounded to the microsecond."""
    return ReplyFacts(
        repaired_calls=repaired or UNSET,
        unread_calls=unread or UNSET,
        seed=finished.seed,
        exact=finished.exact,
        inexact_reason=finished.inexact_reason,
        token_hash=finished.token_hash,
        tokens_per_round=round(finished.tokens_per_round, 3),
        rounds=finished.rounds,
        accepted=finished.accepted,
        rejected=finished.rejected,
        width=finished.width,
        width_reason=finished.width_reason,
        queue_ms=round(finished.queue_ms, 3),
        prefill_ms=round(finished.prefill_ms, 3),
        decode_ms=round(finished.decode_ms, 3),
        cache=finished.cache,
        regimes=finished.regimes,
        timeline=finished.timeline or UNSET,
        log=finished.log or UNSET,
        served_by=finished.served_by or UNSET,
        fallback=finished.fallback or UNSET,
    )
