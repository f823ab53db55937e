"""The official DFlash implementation (PyPI ``dflash``, MLX back end) on cases that are on disk.

Run by `engine.targets.parity` as a script in a process of its own, with that package on the path
and nothing of Pillion's. It reads a JSON list of cases from stdin and writes a JSON line for each.

Where it is not called as its own loop would call it, or does something else by its nature:

* A windowed layer's cache of the official loop (mlx-lm's rotating cache) is out of order once a
  full window has got a single row, while the mask assumes order: it then hides rows that are
  inside the window. Cases that append single rows therefore give windowed layers a growing cache,
  to which the same mask applies; the others use the official caches.
* Its verify forward of GatedDeltaNet targets repeats the layer with the q/k normalisation of
  mlx-lm 0.31, which mlx-lm 0.32.2 has changed. With such a target its choices may differ from
  plain decoding with the installed mlx-lm; those of a dense target do not.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map


def drafts(case: dict[str, Any]) -> dict[str, Any]:
    """The draft tokens of every scripted round."""
    from dflash.model_mlx import DFlash2DraftModel, load_draft
    from mlx_lm.models.cache import KVCache, make_prompt_cache

    inputs: Any = mx.load(case["rounds"])
    table, head = inputs["embedding"], inputs["head"]
    draft = load_draft(case["drafter"])
    draft.bind(
        SimpleNamespace(embed_tokens=lambda ids: table[ids], lm_head=lambda hidden: hidden @ head.T)
    )
    config = draft.config
    growing = case["growing_caches"]
    caches = [KVCache() for _ in draft.layers] if growing else make_prompt_cache(draft)
    masks = [config.mask_token_id] * (config.block_size - 1)
    start, found = 0, []
    for index, (rows, anchor) in enumerate(zip(case["rows"], case["anchors"], strict=True)):
        hidden = inputs["hidden"][None, start : start + rows]
        start += rows
        if index == 0 and not growing and "full_attention" not in config.layer_types:
            # As its prefill does: only what a window can see, behind an offset.
            hidden = hidden[:, -(config.sliding_window - 1) :]
            for cache in caches:
                cache.offset = rows - hidden.shape[1]
        block = mx.array([[anchor, *masks]])
        if isinstance(draft, DFlash2DraftModel):
            tokens, _, _ = draft.propose(block, hidden, caches, 0.0, logits_start=1)
        else:
            tokens = mx.argmax(draft(block, hidden, caches, logits_start=1), axis=-1)
        found.append(tokens[0].tolist())
    return {"drafts": found}


def generation(case: dict[str, Any]) -> dict[str, Any]:
    """The tokens that each round of the official loop commits, in float32, greedily."""
    from dflash.model_mlx import load_draft, stream_generate
    from mlx_lm.utils import load_model

    target, _ = load_model(Path(case["target"]))
    draft = load_draft(case["drafter"])
    for model in (target, draft):
        model.update(tree_map(lambda weight: weight.astype(mx.float32), model.parameters()))
    replies = stream_generate(
        target, draft, _tokenizer(), case["prompt"], max_tokens=case["max_tokens"]
    )
    return {"runs": [reply.tokens for reply in replies if reply.tokens]}


def _tokenizer() -> Any:
    """As much of a tokenizer as the loop touches; tokens have no text and none ends the reply."""
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    class Silent(TokenizerWrapper):
        eos_token_ids: frozenset[int] = frozenset()
        detokenizer = SimpleNamespace(
            add_token=lambda token: None, finalize=lambda: None, last_segment=""
        )

        def __init__(self) -> None:
            """No tokenizer to wrap."""

    return Silent()


def main() -> None:
    """Libraries that print must not end up between the replies."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for case in json.load(sys.stdin):
        answer = drafts(case) if "rows" in case else generation(case)
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
