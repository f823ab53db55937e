"""What loading a model will take, before a weight is read. Pure but for `memory_limit`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from engine.errors import ModelError
from engine.loading.checkpoint import Checkpoint

GIB = 1 << 30
# Of a machine without a GPU's working set: what is left to MLX beside the system and an editor.
RAM_SHARE = 0.8
# A context that nobody can work in is not offered.
LEAST_CONTEXT = 1024
# Contexts are cut to a multiple of this.
STEP = 256
# Rows that are in work at once, and copies of their logits while a token is chosen.
ROWS, LOGIT_COPIES = 512, 6


def memory_limit() -> int:
    """Bytes that weights and caches may take here: Metal's recommended working set, else a share
    of the memory."""
    if sys.platform == "darwin":
        import mlx.core as mx

        if mx.metal.is_available():
            return int(mx.device_info()["max_recommended_working_set_size"])
    return int(RAM_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes. per_token: of cache, target and drafter together, of one sequence. state: caches that
    do not grow. working: activations and logits of one forward. limit: what may be used.
    model_context: the longest the model was made for, in tokens."""

    name: str
    weights: int
    drafter: int
    per_token: int
    state: int
    working: int
    limit: int
    model_context: int

    def total(self, context: int) -> int:
        """With one sequence of `context` tokens."""
        return self.weights + self.drafter + self.working + self.state + context * self.per_token

    @property
    def largest_context(self) -> int:
        """The longest context that fits, at most the model's; 0 when the model does not."""
        room = self.limit - self.total(0)
        if room < 0:
            return 0
        fits = self.model_context if not self.per_token else room // self.per_token
        if fits >= self.model_context:
            return self.model_context
        return fits // STEP * STEP

    def context(self, asked: int | None) -> int:
        """The context to load with: what was asked for, else the longest that fits.

        Raises ModelError, naming the sizes and the largest context that would fit.
        """
        largest = self.largest_context
        if largest < min(LEAST_CONTEXT, self.model_context):
            raise ModelError(
                f"{self.name} does not fit: {self.described(0)}, of {_gib(self.limit)} that may "
                "be used. Choose a smaller model or a lower quantisation, or --draft copy"
            )
        if asked is not None and asked > largest:
            raise ModelError(
                f"{self.name} does not fit with a context of {asked} tokens: "
                f"{self.described(asked)}, of {_gib(self.limit)} that may be used. "
                f"The largest context that fits is {largest}: use --context {largest}"
            )
        return asked if asked is not None else largest

    def described(self, context: int) -> str:
        """The total at `context` tokens and its parts, for a message."""
        parts = {
            "weights": self.weights,
            "drafter": self.drafter,
            "caches": self.state + context * self.per_token,
            "working buffers": self.working,
        }
        listed = ", ".join(f"{what} {_gib(size)}" for what, size in parts.items() if size)
        return f"{_gib(self.total(context))} ({listed})"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def plan(
    name: str,
    checkpoint: Checkpoint,
    *,
    drafter: Checkpoint | None = None,
    drafter_bits: int | None = None,
    limit: int | None = None,
) -> MemoryPlan:
    """The plan for a checkpoint and, where it has one, its drafter (read from their headers)."""
    config = checkpoint.text_config
    hidden = int(config.get("hidden_size") or 0)
    intermediate = int(config.get("intermediate_size") or 4 * hidden)
    logits = LOGIT_COPIES * 8 * 4 * checkpoint.vocab_size
    drafter_bytes = per_token = 0
    if drafter is not None:
        drafter_bytes = drafter.weight_bytes
        if drafter_bits:
            # A group of 64 weights has a 16-bit scale and bias beside it.
            drafter_bytes = int(drafter_bytes * (drafter_bits + 0.5) / 16)
        # The projected row, which a prefix snapshot keeps, and the layers' keys and values.
        per_token = 2 * int(drafter.config.get("hidden_size") or 0)
        if "full_attention" in (drafter.config.get("layer_types") or ["full_attention"]):
            per_token += drafter.cache_bytes_per_token()
    return MemoryPlan(
        name=name,
        weights=checkpoint.weight_bytes,
        drafter=drafter_bytes,
        per_token=per_token + checkpoint.cache_bytes_per_token(),
        state=checkpoint.state_bytes,
        working=logits + ROWS * 2 * (4 * hidden + 3 * intermediate),
        limit=memory_limit() if limit is None else limit,
        model_context=checkpoint.context,
    )
