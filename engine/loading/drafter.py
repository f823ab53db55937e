"""A DFlash checkpoint folder to a drafter in memory. Runs inside the engine thread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models.rope_utils import initialize_rope

from engine.drafters.dflash import DFlashModel, Rope
from engine.drafters.dflash_config import DFlashConfig
from engine.errors import ModelError, RequestError
from engine.loading.checkpoint import Checkpoint

Progress = Callable[[str, float | None], None]

BITS = (4, 8)
GROUP_SIZES = (64, 32)
# The candidate selector and the convolutions' kernels are a few percent of the weights.
FULL_PRECISION = ("kernel_projection", "hidden_projection")
DTYPES = ("BF16", "F16", "F32")
# Early revisions of some drafters shipped their target's embedding and head with them.
BORROWED = ("embed_tokens.", "lm_head.", "model.embed_tokens.")


def load_drafter(
    path: Path,
    *,
    hidden_size: int,
    vocab_size: int,
    num_layers: int,
    bits: int | None,
    progress: Progress,
) -> DFlashModel:
    """The drafter in the folder `path`, for a target of these sizes.

    bits: 4 or 8 to quantise the stack's matrices, None to keep them. progress: what is being done
    and its share in [0, 1]. Raises ModelError naming the file and the key or tensor that is
    missing, foreign, of another shape, truncated or for another target; RequestError
    (``draft_bits``).
    """
    if bits is not None and bits not in BITS:
        raise RequestError(f"draft_bits must be 4, 8 or none, got {bits}", field="draft_bits")
    checkpoint = Checkpoint(path)
    file = path / "config.json"
    config = DFlashConfig.parse(checkpoint.config, file)
    config.check_target(file, hidden_size=hidden_size, vocab_size=vocab_size, num_layers=num_layers)
    check_tensors(checkpoint, config)
    model = DFlashModel(config, _rope(config, file))
    model.load_weights(_arrays(checkpoint), strict=True)
    model.eval()
    # One part after the other, so that the unquantised weights never stand side by side.
    parts: list[nn.Module] = [*model.layers, model]
    for done, part in enumerate(parts):
        progress(f"loading the drafter {path.name}", done / len(parts))
        _prepare(part, bits, _dtype(model.dtype, bits))
        mx.eval(part.parameters())
    return model


def check_tensors(checkpoint: Checkpoint, config: DFlashConfig) -> None:
    """Raise ModelError naming the file and tensor unless the checkpoint has exactly the tensors
    that its config asks for. A missing one would otherwise only show as useless drafts."""
    expected, found = config.tensor_shapes(), checkpoint.tensors
    for name, tensor in found.items():
        file = checkpoint.path / tensor.file
        if name.startswith(BORROWED):
            raise ModelError(
                f"{file}: {name}: a drafter takes these from its target; fetch its newest revision"
            )
        if name not in expected:
            raise ModelError(f"{file}: {name}: no tensor of this drafter's config.json")
        if tensor.shape != expected[name]:
            raise ModelError(
                f"{file}: {name}: shape {list(tensor.shape)}, but config.json asks for "
                f"{list(expected[name])}"
            )
        if tensor.dtype not in DTYPES:
            raise ModelError(f"{file}: {name}: dtype {tensor.dtype} is none of {DTYPES}")
    for name in expected:
        if name not in found:
            files = sorted({str(checkpoint.path / tensor.file) for tensor in found.values()})
            raise ModelError(f"{', '.join(files)}: {name}: missing")


def _arrays(checkpoint: Checkpoint) -> list[tuple[str, mx.array]]:
    arrays: list[tuple[str, mx.array]] = []
    for file in sorted({tensor.file for tensor in checkpoint.tensors.values()}):
        shard: Any = mx.load(str(checkpoint.path / file))
        arrays += shard.items()
    return arrays


def _rope(config: DFlashConfig, file: Path) -> Rope:
    try:
        rope: Rope = initialize_rope(
            dims=config.head_dim,
            base=config.rope_theta,
            traditional=False,
            scaling_config=None if config.rope is None else dict(config.rope),
            max_position_embeddings=config.max_position_embeddings,
        )
    except KeyError as error:
        raise ModelError(f"{file}: rope_parameters.{error.args[0]}: missing") from error
    except (ValueError, TypeError, ZeroDivisionError, AssertionError) as error:
        raise ModelError(f"{file}: rope_parameters: {error}") from error
    return rope


def _dtype(stored: mx.Dtype, bits: int | None) -> mx.Dtype:
    """The dtype of what is not quantised, and of activations.

    float16 overflows in a quantised DFlash 2 stack (no draft is accepted any more), so it becomes
    bfloat16. A CPU multiplies quantised weights with 16-bit scales about 8 times slower than with
    float32 ones.
    """
    if bits is None:
        return stored
    if mx.default_device().type == mx.DeviceType.cpu:
        return mx.float32
    return mx.bfloat16 if stored == mx.float16 else stored


def _prepare(part: nn.Module, bits: int | None, dtype: mx.Dtype) -> None:
    """Cast a part's weights and quantise its matrices, lazily. Doing it twice changes nothing."""
    part.update(
        tree_map(
            lambda array: array.astype(dtype) if array.dtype in _FLOATS else array,
            part.parameters(),
        )
    )
    if bits is None:
        return
    for group_size in GROUP_SIZES:
        nn.quantize(
            part,
            group_size=group_size,
            bits=bits,
            class_predicate=lambda name, module, size=group_size: (
                isinstance(module, nn.Linear)
                and not name.endswith(FULL_PRECISION)
                and module.weight.shape[-1] % size == 0
            ),
        )


_FLOATS = (mx.bfloat16, mx.float16, mx.float32)
