"""What a status bar shows of the daemon: one state, in the order in which it matters. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from msgspec import Struct

from engine import EngineStatus

_ENOUGH_ROUNDS = 64

State = Literal["loading", "ready", "busy", "target-only", "error", "stopped"]


class Summary(Struct, frozen=True, kw_only=True):
    """state: ``busy`` while someone waits for the model; ``target-only`` where it never drafts;
    ``stopped`` where somebody ended it.

    message: one line for people. action: what to do about it; empty where nothing. percent: of
    the step of loading that it names. model: its name, before it is loaded too. target_only: why no
    drafts are used; empty where they are. tok_s: decoded tokens a second, surplus_ms: time that
    drafting saved for each token, cache_hit_share: prompt tokens that were not computed again;
    all since the start, None before there are any.
    """

    state: State
    message: str
    action: str = ""
    percent: int | None = None
    model: str = ""
    target_only: str = ""
    tok_s: float | None = None
    surplus_ms: float | None = None
    cache_hit_share: float | None = None


def summarize(status: EngineStatus, *, requested_model: str, working: bool) -> Summary:
    """requested_model: as the settings name it. working: whether a request is open that someone
    waits for."""
    model = status.model.id if status.model is not None else requested_model
    if status.state == "loading":
        percent = None if status.progress is None else round(100 * status.progress)
        return Summary(
            state="loading",
            message=f"{model}: {status.detail or 'loading'}",
            percent=percent,
            model=model,
        )
    if status.state != "ready":
        stopped = status.state == "stopped"
        return Summary(
            state="stopped" if stopped else "error",
            message=f"{model}: {status.detail or status.state}",
            action=(
                "start the daemon again (`pillion serve`)"
                if stopped or status.model is not None
                else "see `pillion models` and `pillion doctor`"
            ),
            model=model,
        )
    why = _target_only(status)
    state: State = "busy" if working else "target-only" if why else "ready"
    return Summary(
        state=state,
        message=f"{model}: {f'without drafts ({why})' if why else state}",
        model=model,
        target_only=why,
        tok_s=_ratio(status.totals.completion_tokens, status.totals.decode_seconds, 1),
        surplus_ms=_surplus_ms(status),
        cache_hit_share=_ratio(status.totals.cached_tokens, status.totals.prompt_tokens, 3),
    )


def _target_only(status: EngineStatus) -> str:
    if not status.drafters:
        exactness = status.exactness
        if exactness is not None and exactness.width == 1 < exactness.asked:
            return exactness.reason or "its verify forwards are not exact on this machine"
        return "; ".join(status.notes) or "drafting is off, or not possible with this model"
    if sum(regime.rounds for regime in status.regimes) < _ENOUGH_ROUNDS:
        return ""
    if any(regime.drafters for regime in status.regimes):
        return ""
    reasons: Counter[str] = Counter()
    for regime in status.regimes:
        reasons.update({why: round(1e6 * spent) for why, spent in regime.target_only.items()})
    return reasons.most_common(1)[0][0] if reasons else ""


def _surplus_ms(status: EngineStatus) -> float | None:
    tokens = sum(regime.tokens for regime in status.regimes)
    return _ratio(1e3 * sum(regime.saved for regime in status.regimes), tokens, 1)


def _ratio(part: float, whole: float, digits: int) -> float | None:
    return round(part / whole, digits) if whole else None
