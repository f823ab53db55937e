"""A name to a model in memory. Runs inside the engine thread, which then owns every array."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import load_model

from engine.cpu import INSTRUCTION_SETS
from engine.errors import ModelError, RequestError
from engine.json_file import read_json
from engine.loading.checkpoint import Checkpoint
from engine.loading.fetch import fetch
from engine.loading.memory_plan import plan
from engine.loading.pairing import drafter_bits
from engine.loading.pairs import drafter_folder
from engine.loading.registry import BUILTIN, resolve
from engine.messages import EngineOptions, ModelInfo, Sampling
from engine.text.codec import TextCodec

Progress = Callable[[str, float | None], None]
# How far an agent's real prompts may reach beyond what the built-in model was trained on: what it
# says there is worth less yet, but it costs what it costs.
STRETCH = 8
DTYPES = {"bfloat16": mx.bfloat16, "float32": mx.float32}


@dataclass(frozen=True)
class Loaded:
    """config: the parsed config.json."""

    model: nn.Module
    config: dict[str, Any]
    codec: TextCodec
    info: ModelInfo


def load(options: EngineOptions, progress: Progress) -> Loaded:
    """Fetch if need be, check, load and describe the model of `options`.

    progress: gets what is being done, and its share in [0, 1] where that is known. Raises
    ModelError (file and key) or RequestError (``model``, ``context``, ``dtype``). Code that comes
    with a model is never run.
    """
    if options.dtype not in ("auto", *DTYPES):
        raise RequestError(
            f"dtype must be auto, bfloat16 or float32, got {options.dtype!r}", field="dtype"
        )
    if options.kernels not in ("auto", "off", *INSTRUCTION_SETS):
        allowed = ", ".join(("auto", "off", *INSTRUCTION_SETS))
        raise RequestError(
            f"kernels must be one of {allowed}, got {options.kernels!r}", field="kernels"
        )
    _avoid_run_time_compilation()
    source = resolve(options.model)
    path = fetch(options.model, options.revision, progress)
    progress(f"loading {source.name}", None)
    checkpoint = Checkpoint(path)
    # Checked first: a truncated file would otherwise load as noise, or not say which file it is.
    checkpoint.check()
    context = _context(options, checkpoint)
    codec = TextCodec(path)
    model = _load_weights(checkpoint)
    dtype = _dtype(options.dtype, model)
    if dtype is not None:
        _cast(model, dtype)
    mx.eval(model.parameters())
    info = _describe(source.name, checkpoint, model, codec, context)
    return Loaded(model=model, config=checkpoint.config, codec=codec, info=info)


def load_lazily(
    options: EngineOptions, progress: Progress
) -> tuple[nn.Module, dict[str, Any], str]:
    """The model of `options` with weights that are read when they are looked at, its parsed
    config.json, and its name. Raises as `load` does."""
    source = resolve(options.model)
    path = fetch(options.model, options.revision, progress)
    checkpoint = Checkpoint(path)
    checkpoint.check()
    return _load_weights(checkpoint), checkpoint.config, source.name


def _avoid_run_time_compilation() -> None:
    """On a CPU, `mx.compile` runs g++ at first use, for seconds, and loads the result from a folder
    of a well-known name under the system's temporary one, where any user of the machine could have
    put a library first. Decoding is no slower without it."""
    if _on_cpu():
        mx.disable_compile()


def _on_cpu() -> bool:
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def _context(options: EngineOptions, checkpoint: Checkpoint) -> int:
    """The context to serve: as asked, else the longest that fits the memory."""
    asked = options.context
    most = checkpoint.context * (STRETCH if options.model == BUILTIN else 1)
    if asked is not None and not 1 <= asked <= most:
        raise RequestError(
            f"context must be in [1, {most}] for {options.model}, got {asked}", field="context"
        )
    folder = drafter_folder(options.draft, options.model)
    bits = drafter_bits(options.draft_bits, checkpoint.quantization)
    drafter = None
    # What is wrong with a drafter is said when it is loaded.
    with suppress(ModelError):
        drafter = Checkpoint(folder) if folder is not None else None
    memory = plan(options.model, checkpoint, drafter=drafter, drafter_bits=bits)
    if asked is not None and asked > checkpoint.context:
        memory = dataclasses.replace(memory, model_context=asked)
    return memory.context(asked)


def _load_weights(checkpoint: Checkpoint) -> nn.Module:
    config = checkpoint.path / "config.json"
    if "model_file" in checkpoint.config:
        raise ModelError(f"{config}: model_file: models that bring their own code are not loaded")
    try:
        model, _ = load_model(checkpoint.path, lazy=True, trust_remote_code=False)
    except ValueError as error:
        if "not supported" in str(error) and checkpoint.family in str(error):
            raise ModelError(
                f"{config}: model_type: mlx-lm has no model {checkpoint.family!r}"
            ) from error
        raise ModelError(f"{checkpoint.path}: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        # A config that lacks what its model class needs fails wherever that is first read.
        raise ModelError(f"{config}: {type(error).__name__}: {error}") from error
    except (RuntimeError, OSError) as error:
        raise ModelError(f"{checkpoint.path}: {error}") from error
    return model


def _dtype(asked: str, model: nn.Module) -> mx.Dtype | None:
    """The dtype to cast to, or None to keep the checkpoint's.

    On a CPU, MLX multiplies quantised weights with 16-bit scales about 8 times slower than with
    float32 ones, so there quantised models are cast.
    """
    if asked != "auto":
        return DTYPES[asked]
    quantised = any(hasattr(module, "scales") for module in model.modules())
    return mx.float32 if quantised and _on_cpu() else None


def _cast(model: nn.Module, dtype: mx.Dtype) -> None:
    """Cast floating-point weights, but for those that the model itself wants kept."""
    wanted = getattr(model, "cast_predicate", lambda _path: True)
    model.update(
        tree_map_with_path(
            lambda path, array: array.astype(dtype) if _is_float(array) and wanted(path) else array,
            model.parameters(),
        )
    )


def _describe(
    name: str, checkpoint: Checkpoint, model: nn.Module, codec: TextCodec, context: int
) -> ModelInfo:
    arrays = [array for _, array in tree_flatten(model.parameters())]
    sizes: Counter[int] = Counter()
    for array in arrays:
        if _is_float(array):
            sizes[array.dtype.size] += array.nbytes
    element_bytes = max(sizes, key=sizes.__getitem__, default=2)
    return ModelInfo(
        id=name,
        path=str(checkpoint.path),
        family=checkpoint.family,
        context=context,
        vocab_size=checkpoint.vocab_size or codec.vocab_size,
        parameters=checkpoint.parameters,
        weight_bytes=sum(array.nbytes for array in arrays),
        cache_bytes_per_token=checkpoint.cache_bytes_per_token(element_bytes),
        quantization=checkpoint.quantization,
        eos_token_ids=tuple(sorted(codec.eos_token_ids)),
        has_chat_template=codec.has_chat_template,
        has_fim=codec.has_fim,
        fingerprint=checkpoint.fingerprint,
        default_sampling=default_sampling(checkpoint.path),
    )


def _is_float(array: mx.array) -> bool:
    return bool(mx.issubdtype(array.dtype, mx.floating))


def default_sampling(path: Path) -> Sampling:
    """What generation_config.json recommends; greedy where it asks for no sampling."""
    file = path / "generation_config.json"
    values = read_json(file)
    if not values.get("do_sample", "temperature" in values):
        return Sampling()
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    given = {name: values[name] for name in names if values.get(name) is not None}
    try:
        return Sampling(**({"temperature": 1.0} | given))
    except (RequestError, TypeError) as error:
        raise ModelError(f"{file}: {error}") from error
