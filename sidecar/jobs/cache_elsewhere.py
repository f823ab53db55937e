"""What other implementations' caches save of a line being typed, and whether replies depend on
them: the same questions as `cache_benchmark` asks of ours, over their HTTP."""

from __future__ import annotations

import http.client
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from engine import EngineError
from sidecar.jobs.cache_benchmark import FILES, LINE, code

# Of one request.
SECONDS = 600.0
# Enough to see what is computed again, and read within minutes by a model without fast kernels.
FILE_LINES, CONTEXT_LINES = 40, 6
REPLY_TOKENS = 8


class Completed(Struct, frozen=True, kw_only=True):
    """prompt, cached: tokens, as the server counts them."""

    text: str
    prompt: int
    cached: int

    @property
    def computed(self) -> int:
        return self.prompt - self.cached


class TypedElsewhere(Struct, frozen=True, kw_only=True):
    """extra, edited: as in `Keystrokes`."""

    extra: int
    edited: int


def complete(port: int, model: str, prompt: str, **more: Any) -> Completed:
    """One greedy completion of a server on loopback. Raises EngineError saying what it said."""
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, **more}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", msgspec.json.encode(body), headers)
        response = connection.getresponse()
        said = response.read()
        if response.status != 200:
            raise EngineError(f"/v1/completions: {response.status} {said[:200].decode('replace')}")
        reply = msgspec.json.decode(said)
        usage, timings = reply["usage"], reply.get("timings") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return Completed(
            text=reply["choices"][0]["text"],
            prompt=usage["prompt_tokens"],
            # llama.cpp counts them beside its times.
            cached=timings.get("cache_n", cached) or 0,
        )
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"/v1/completions: {error!r}") from error
    except (msgspec.DecodeError, LookupError, TypeError) as error:
        raise EngineError(f"/v1/completions: no completion in {said[:200]!r}") from error
    finally:
        connection.close()


def typed_elsewhere(port: int, model: str, keys: int, step: Callable[[], None]) -> TypedElsewhere:
    """Type a line into a file beside six others, a completion a key; then edit the fourth."""
    files = [code(f"module_{n}", CONTEXT_LINES) for n in range(FILES)]
    begun = "".join(files) + code("edited", FILE_LINES)
    first = complete(port, model, begun)
    last, extra = first, 0
    for typed in range(1, min(keys, len(LINE)) + 1):
        last = complete(port, model, begun + LINE[:typed])
        extra = max(extra, first.prompt - last.cached)
        step()
    files[3] = files[3].replace("total", "summed", 1)
    again = complete(port, model, "".join(files) + code("edited", FILE_LINES) + LINE[:keys])
    before = complete(port, model, "".join(files[:3]))
    step()
    edited = max(again.computed - (again.prompt - before.prompt), 0)
    return TypedElsewhere(extra=extra, edited=edited)


def branched_elsewhere(port: int, model: str, count: int, step: Callable[[], None]) -> int:
    """How many of `count` replies to prompts that branch off others at random are not those of the
    same server when it is told to use no cache (``cache_prompt``, as llama.cpp has it)."""
    draw, differences = random.Random(7), 0
    stems: list[str] = [code("stem", 12)]
    for _ in range(count):
        prompt = _branch(draw, stems)
        cached, plain = [
            complete(port, model, prompt, max_tokens=REPLY_TOKENS, cache_prompt=cached).text
            for cached in (True, False)
        ]
        differences += cached != plain
        stems.append(prompt + plain)
        step()
    return differences


def _branch(draw: random.Random, stems: Sequence[str]) -> str:
    stem = draw.choice(stems[-10:])
    cut = draw.randrange(len(stem) // 2, len(stem)) + 1
    words = (draw.choice(("total", "scale", " = ", "(", ")\n", "7")) for _ in range(8))
    return (stem[:cut] + "".join(words))[:600]
