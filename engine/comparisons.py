"""What the processes of other implementations are asked, and what they answer (JSON lines)."""

from __future__ import annotations

from msgspec import Struct


class ParityCase(Struct, frozen=True, kw_only=True):
    """One comparison of `engine.targets.parity` with the official DFlash.

    tokens: drafted, or committed where both decode; token_differences: of ours that are not the
    same there. accepted: drafts, where both decode; accepted_length_differences: rounds in which
    the two accepted a different number. counts: false where the official verify forward of the
    target is not that of the installed mlx-lm, so that choices may differ and yet be right.
    error: why the process gave up.
    """

    name: str = ""
    counts: bool = True
    rounds: int = 0
    tokens: int = 0
    token_differences: int = 0
    accepted: int = 0
    accepted_length_differences: int = 0
    error: str = ""


class RoundProfile(Struct, frozen=True, kw_only=True):
    """Milliseconds of one kind of decode round (`engine.decoding.profile`), medians.

    round: how many rows are verified, and whether a drafter proposed them. draft: proposing. build,
    choice: Python and MLX making the graph of the forward and of the choice of tokens. wait: until
    the tokens are there. rest: rollback, and what the drafter is told. cpu: of the process, on all
    processors, per round. waits: how often a round waits for the device. error: why the process
    gave up.
    """

    model: str = ""
    round: str = ""
    sampling: str = ""
    draft_ms: float = 0.0
    build_ms: float = 0.0
    choice_ms: float = 0.0
    wait_ms: float = 0.0
    rest_ms: float = 0.0
    cpu_ms: float = 0.0
    waits: int = 0
    error: str = ""


class BaselineRequest(Struct, frozen=True, kw_only=True):
    """Asks `engine.targets.baseline` for a greedy reply."""

    prompt: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool = False


class BaselineReply(Struct, frozen=True, kw_only=True):
    """What the other implementation made of it: token ids (EOS included), target forwards behind
    the first, the time to the first and from there to the last. Empty says that the model is
    loaded. error: why the process gave up."""

    tokens: tuple[int, ...] = ()
    rounds: int = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    error: str = ""


class CrashTrial(Struct, frozen=True, kw_only=True):
    """One trial of `engine.prefix_cache.crash_trials`. killed: the writer was, and did not end by
    itself. healed: the next one could go on, within the budget, with nothing left half done.
    records: that were there and could be read; damaged: files that were found out and removed;
    wrong: records that are not what was written, bit for bit."""

    killed: bool
    healed: bool
    records: int
    damaged: int
    wrong: int
