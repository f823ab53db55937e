"""The decoding loop: who runs next, one turn at a time, on the engine thread.

Owns the target, every sequence and the prefix cache. A turn is one prefill chunk or one decode
round; between turns the engine thread looks at its inbox.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol

import mlx.core as mx
import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.audit import Audit
from engine.client import Codec
from engine.decoding.autoregressive import autoregressive, choose_rows, commit, observe
from engine.decoding.cost_measure import CostMeasurement
from engine.decoding.drafting import Drafting
from engine.decoding.policies import Always, BySurplus, Never, Policy, Switching, Watching
from engine.decoding.sampling import History
from engine.decoding.speculative import speculative
from engine.decoding.surplus import SurplusController
from engine.decoding.surplus_report import RegimeSurplus, Tally
from engine.drafters.copy import CopyDrafter
from engine.drafters.dflash import DFlashModel
from engine.drafters.dflash_drafter import DFlashDrafter
from engine.drafters.grammar import GrammarDrafter
from engine.drafters.portfolio import Portfolio
from engine.drafters.prediction import PredictionDrafter
from engine.errors import ContextLengthExceeded, PillionError, RequestError
from engine.messages import (
    EngineOptions,
    Event,
    Exactness,
    Failed,
    GenerateRequest,
    ModelInfo,
    Prefilling,
    Priority,
    Totals,
)
from engine.prefix_cache.messages import CacheOptions
from engine.prefix_cache.reuse import PrefixReuse
from engine.scheduler import Scheduler
from engine.sequence import SequenceState
from engine.sessions import Sessions
from engine.targets.target import Target
from engine.text.constraints import Constraint, Grammars
from engine.text.healing import Healing
from engine.text.regimes import RegimeParser

# Copies are as long as this where rows are cheap; the block of a trained drafter is shorter or as
# long.
DEFAULT_WIDTH = 16
# The end of the prompt that finds a prediction again: longer than what two turns have in common.
PREDICTED_BEHIND = 32
# How often to look whether the prefix cache has come back from disk.
REUSE_SECONDS = 0.05


class Vocabulary(Codec, Protocol):
    """A codec that also knows how its tokens are spelled."""

    def token_bytes(self) -> list[bytes]:
        """The bytes of every token id; empty for control tokens."""

    def control_spellings(self) -> dict[int, str]:
        """How each control token is spelled."""


class DecodingLoop:
    """emit: takes every event. chunk: prompt tokens per turn. width: most rows of a verify
    forward. new_portfolio: the drafters of a request, given its seed; copying alone by default.
    surplus: decides about drafting; without one every round drafts that can. measurement: begins
    to measure again what rounds cost. cache, fingerprint: see `PrefixReuse`. turned: told behind
    each turn whose it was; "" is idle work for nobody."""

    def __init__(
        self,
        target: Target,
        codec: Vocabulary,
        info: ModelInfo,
        options: EngineOptions,
        exactness: Exactness,
        *,
        width: int,
        chunk: int,
        emit: Callable[[Event], None],
        new_portfolio: Callable[[GenerateRequest, int], Portfolio] | None = None,
        surplus: SurplusController | None = None,
        measurement: Callable[[], CostMeasurement] | None = None,
        cache: CacheOptions | None = None,
        fingerprint: Callable[[], str] | None = None,
        turned: Callable[[str], None] | None = None,
    ) -> None:
        self.turned = turned or (lambda _id: None)
        self._target = target
        self._codec = codec
        self._info = info
        self._exactness = exactness
        self._fast = options.fast
        self.width = width
        self._chunk = chunk
        self._emit = emit
        self._scheduler = Scheduler(options.max_active, options.max_queue)
        self._sequences: dict[str, SequenceState] = {}
        self._sessions = Sessions()
        self._healing: Healing | None = None
        self._grammars: Grammars | None = None
        self.new_portfolio = new_portfolio or portfolios(target, None)
        self._drafting = options.draft != "none" and width > 1
        self.surplus = surplus
        self._new_measurement = measurement
        self._measurement: CostMeasurement | None = None
        self._controls = codec.control_spellings()
        self._tally = Tally()
        self.regimes: tuple[RegimeSurplus, ...] = ()
        self.totals = Totals()
        self.audit = Audit()
        self._auditing = options.audit
        invariant = exactness.prefill or options.fast
        self.reuse = PrefixReuse(
            target,
            cache or CacheOptions(),
            grid=1 if invariant else chunk,
            fingerprint=fingerprint,
            sessions=self._sessions,
        )

    @property
    def waits(self) -> float | None:
        """Seconds until a turn may have something to do though nobody asks for anything."""
        return REUSE_SECONDS if self.reuse.waits else self.audit.waits

    @property
    def active(self) -> int:
        return self._scheduler.active

    @property
    def queued(self) -> int:
        return self._scheduler.queued

    def open(self, request: GenerateRequest) -> None:
        """Queue a request, or fail it at once."""
        self._sessions.heard(request)
        try:
            sequence = self._sequence(request)
            self._scheduler.add(request.id, request.priority)
        except PillionError as error:
            self._fail(request.id, error)
            return
        self._sequences[request.id] = sequence
        self._rank(request.session)

    def _rank(self, session: str | None) -> None:
        """While its session's own thread is at work, an aside yields to everybody."""
        if session is None:
            return
        of_it = [one for one in self._sequences.values() if one.request.session == session]
        at_work = any(self._sessions.thread_of(one.request) is not None for one in of_it)
        for one in of_it:
            yields = at_work and self._sessions.aside(one.request)
            self._scheduler.change(one.id, Priority.IDLE if yields else one.request.priority)

    def _sequence(self, request: GenerateRequest) -> SequenceState:
        room = self._info.context - len(request.prompt)
        if room < 1:
            raise ContextLengthExceeded(len(request.prompt), self._info.context, field="prompt")
        foreign = next((t for t in request.prompt if not 0 <= t < self._info.vocab_size), None)
        if foreign is not None:
            raise RequestError(f"prompt: {foreign} is not a token id", field="prompt")
        biased = next(
            (t for t, _ in request.sampling.logit_bias if t >= self._info.vocab_size), None
        )
        if biased is not None:
            raise RequestError(f"logit_bias: {biased} is not a token id", field="logit_bias")
        if request.must_start_with and self._healing is None:
            self._healing = Healing(self._codec.token_bytes())
        constraint = self._constraint(request)
        drafting = self._drafting and request.draft
        seed = request.seed if request.seed is not None else secrets.randbits(53)
        portfolio = self.new_portfolio(request, seed) if drafting else None
        policy = self._policy(request, seed, portfolio)
        if portfolio is not None and isinstance(policy, BySurplus):
            policy.thin_out(portfolio, self.width - 1, len(request.prompt))
        sequence = SequenceState(
            request,
            codec=self._codec,
            end_ids=(*self._info.eos_token_ids, *request.stop_token_ids),
            limit=min(request.max_tokens or room, room),
            seed=seed,
            drafter=portfolio,
            drafting=Drafting(
                portfolio,
                policy,
                RegimeParser(self._controls, request.prompt),
                self.surplus.costs if self.surplus is not None else None,
                explain=request.explain,
            ),
            token_bytes=self._healing.token_bytes if self._healing else (),
            constraint=constraint,
        )
        if constraint is not None and sequence.drafter is not None:
            sequence.drafter.grammar = GrammarDrafter(constraint)
        if request.sampling.penalised:
            sequence.history = History(request.prompt)
        return sequence

    def _policy(self, request: GenerateRequest, seed: int, portfolio: Portfolio | None) -> Policy:
        if portfolio is None:
            costs = self.surplus.costs if self.surplus is not None else None
            return Never("drafting is off" if request.draft else "asked not to draft", costs)
        if request.policy == "switch":
            return Switching(seed)
        if request.policy == "watch":
            return Watching()
        if request.policy == "always" or request.drafters or self.surplus is None:
            return Always(request.drafters)
        return BySurplus(self.surplus)

    def _constraint(self, request: GenerateRequest) -> Constraint | None:
        if request.grammar is None:
            return None
        if self._grammars is None:
            self._grammars = Grammars(
                self._codec.token_bytes(), self._info.eos_token_ids, self._codec.encode
            )
        return self._grammars.begin(request.grammar)

    def cancel(self, request_id: str) -> None:
        """End a request now; unknown ids are ignored."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            sequence.cancel()
            self._close(sequence)

    def turn(self) -> bool:
        """Advance one request by one turn. False when there is nothing to do."""
        request_id = self._scheduler.pick(lambda id: self.reuse.fetches(self._sequences[id]))
        if request_id is not None:
            self._turn_of(self._sequences[request_id])
        elif not (self.reuse.step() or self._begin_audit() or self._measure_again()):
            return False
        self.turned(request_id or "")
        return True

    def _turn_of(self, sequence: SequenceState) -> None:
        sequence = self.reuse.leader(sequence, self._sequences.values()) or sequence
        try:
            self._advance(sequence)
        except PillionError as error:
            self._forget(sequence)
            self._fail(sequence.id, error)
            return
        self._emit_new(sequence)
        if sequence.ending is not None:
            self._close(sequence)

    def _advance(self, sequence: SequenceState) -> None:
        prompt = len(sequence.request.prompt)
        if sequence.caches is None:
            sequence.counters.opened = sequence.counters.opened or time.monotonic()
            if not self.reuse.begin(sequence):
                return
        if sequence.prefilled < prompt - self._last_rows(sequence):
            self._prefill(sequence)
        elif sequence.request.warm:
            sequence.warmed()
        elif sequence.counters.first_token is None:
            self._first_token(sequence)
        else:
            began = time.perf_counter()
            self._round(sequence)
            self._count(decode_seconds=time.perf_counter() - began)

    def _last_rows(self, sequence: SequenceState) -> int:
        """Rows of the forward that gives the first token: as many as a round may have."""
        return 1 if sequence.request.warm else self.reuse.last_rows(sequence, self.width)

    def _prefill(self, sequence: SequenceState) -> None:
        began = time.perf_counter()
        start, last = sequence.prefilled, len(sequence.request.prompt) - 1
        end = self.reuse.next_stop(sequence, start, min(start + self._chunk, last))
        tokens = sequence.tokens[start:end]
        self._target.prefill(tokens, sequence.caches)
        if sequence.drafter is not None:
            sequence.drafter.commit(tokens)
        observe(self._target, sequence, len(tokens))
        if sequence.drafter is not None and end < last - self.width:
            # What comes right before the first token is read behind it.
            sequence.drafter.catch_up()
        sequence.prefilled = end
        self.reuse.reached(sequence, end)
        self._report(
            Prefilling(id=sequence.id, done=end, total=last + 1, cached=sequence.counters.cached)
        )
        self._count(prefill_seconds=time.perf_counter() - began)

    def _first_token(self, sequence: SequenceState) -> None:
        began = time.perf_counter()
        last, known = sequence.tokens[sequence.prefilled :], sequence.first_logits
        logits = known[None] if known is not None else self._target.forward(last, sequence.caches)
        logits = logits[-1:]
        chosen = choose_rows(sequence, logits, (), self._allowed(sequence, [])[1])
        if known is None:
            if sequence.drafter is not None:
                sequence.drafter.commit(last)
            observe(self._target, sequence, len(last))
            sequence.prefilled += len(last)
        total = len(sequence.request.prompt)
        self._report(
            Prefilling(id=sequence.id, done=total, total=total, cached=sequence.counters.cached)
        )
        commit(sequence, (), chosen)
        sequence.counters.first_token = time.monotonic()
        self._emit_new(sequence)
        # Whoever waits for the token does not wait for copies in the cache.
        self.reuse.settle(sequence)
        if known is None:
            self.reuse.reached(sequence, total, logits)
        self._count(prefill_seconds=time.perf_counter() - began)

    def _emit_new(self, sequence: SequenceState) -> None:
        if (chunk := sequence.chunk()) is not None:
            self._report(chunk)

    def _round(self, sequence: SequenceState) -> None:
        drafting, before = sequence.drafting, len(sequence.tokens)
        room = 1 if sequence.owed else min(self.width, sequence.remaining)
        drafts, allowed = self._allowed(sequence, drafting.propose(before, room))
        decode = speculative if drafts else autoregressive
        decode(self._target, sequence, drafts, allowed)
        run = sequence.tokens[before:]
        drafting.settle(len(drafts), run, ended=sequence.ending is not None)

    def _allowed(
        self, sequence: SequenceState, drafts: list[int]
    ) -> tuple[list[int], NDArray[np.bool_] | None]:
        """Those of `drafts` that the reply's grammar lets through, and what each verified row may
        choose: (M, vocabulary), None if everything."""
        width = self._info.vocab_size
        if sequence.constraint is not None:
            return sequence.constraint.rows(drafts, width)
        if sequence.owed and self._healing is not None:
            return [], self._healing.mask(sequence.owed, width)[None]
        return drafts, None

    def _close(self, sequence: SequenceState) -> None:
        """Remember what was computed, count, tell the caller.

        The sequence is forgotten last: if any of this fails, it still gets an ending.
        """
        assert sequence.ending is not None
        self.reuse.remember(sequence)
        finished = sequence.finished(
            width=self.width if sequence.drafter is not None else 1,
            width_reason=self._exactness.reason or None if sequence.drafter is not None else None,
            exact=self._exactness.exact or not self._fast,
            inexact_reason=None if self._exactness.exact or not self._fast else self._inexact(),
        )
        if self.audit.owns(sequence.id):
            self._forget(sequence)
            equal = self.audit.settle(finished)
            if equal is not None:
                self._count(audits=1, audit_differences=0 if equal else 1)
            if equal is False:
                self._distrust()
            return
        if self._auditing:
            self.audit.consider(sequence.request, finished)
        self._tally.include(sequence.drafting.tally)
        self.regimes = self._tally.report()
        counters = sequence.counters
        self._count(
            requests=1,
            cancelled=int(finished.finish_reason == "cancelled"),
            prompt_tokens=finished.prompt_tokens,
            cached_tokens=counters.cached,
            completion_tokens=len(finished.tokens),
            rounds=counters.rounds,
            accepted=counters.accepted,
            rejected=counters.rejected,
        )
        self._forget(sequence)
        self._emit(finished)

    def _inexact(self) -> str:
        return f"[engine] fast is on and this machine's kernels differ: {self._exactness.reason}"

    def _begin_audit(self) -> bool:
        """In idle time decode a past drafted reply again, target-only."""
        request = self.audit.next()
        if request is None:
            return False
        self.open(request)
        return True

    def _measure_again(self) -> bool:
        """In idle time, a round at a time, once rounds take longer than was measured, or less."""
        if self.surplus is None or self._new_measurement is None:
            return False
        if self._measurement is None and self.surplus.costs.stale:
            self._measurement = self._new_measurement()
        if self._measurement is None:
            return False
        if not self._measurement.step():
            self.surplus.costs.renew(self._measurement.curve())
            self._measurement = None
        return True

    def _distrust(self) -> None:
        """An audit found a reply that serial decoding does not give: stop drafting."""
        self.width, self._drafting = 1, False
        reason = f"audit: {self.audit.difference}; drafting is off until the next start"
        self._exactness = msgspec.structs.replace(
            self._exactness, exact=False, width=1, reason=reason
        )

    @property
    def exactness(self) -> Exactness:
        return self._exactness

    def _forget(self, sequence: SequenceState) -> None:
        self.reuse.forget(sequence)
        self._scheduler.remove(sequence.id)
        self._sequences.pop(sequence.id, None)
        self._rank(sequence.request.session)

    def _report(self, event: Event) -> None:
        if not self.audit.owns(event.id):
            self._emit(event)

    def _fail(self, request_id: str, error: PillionError) -> None:
        if self.audit.owns(request_id):
            self.audit.drop()
            return
        self._count(requests=1, failed=1)
        self._emit(failed(request_id, error))

    def fail_all(self, error: PillionError) -> None:
        """The engine is going down: every open request gets the same ending."""
        for request_id in list(self._sequences):
            sequence = self._sequences.pop(request_id)
            self._scheduler.remove(request_id)
            self._fail(sequence.id, error)

    def _count(self, **more: Any) -> None:
        self.totals = msgspec.structs.replace(
            self.totals, **{name: getattr(self.totals, name) + n for name, n in more.items()}
        )


def widest(drafter: DFlashModel | None) -> int:
    """Rows of the widest verify forward unless another limit is asked for: at least a block's."""
    return max(DEFAULT_WIDTH, drafter.config.block_size if drafter is not None else 0)


def portfolios(
    target: Target, drafter: DFlashModel | None
) -> Callable[[GenerateRequest, int], Portfolio]:
    """How a request gets its drafters, given its seed (the drafter shares the target's noise)."""

    def new_portfolio(request: GenerateRequest, seed: int) -> Portfolio:
        copy, prediction = CopyDrafter(), None
        if request.prediction:
            prediction = PredictionDrafter(request.prediction, behind=len(request.prompt))
            # As if the prompt's end had been followed by it before.
            copy.commit([*request.prompt[-PREDICTED_BEHIND:], *request.prediction])
        if drafter is None:
            return Portfolio(copy, None, prediction)
        context = DFlashDrafter(
            drafter,
            embed=target.embed,
            head=target.head,
            sampling=request.sampling,
            seed=seed if request.draft_seed is None else request.draft_seed,
        )
        return Portfolio(copy, context, prediction)

    return new_portfolio


def failed(request_id: str, error: PillionError) -> Failed:
    """The event that stands for `error`."""
    field = error.field if isinstance(error, RequestError) else None
    return Failed(id=request_id, code=error.code, message=error.message, field=field)


def active_memory() -> int:
    """Bytes that MLX holds in arrays."""
    return int(mx.get_active_memory())
