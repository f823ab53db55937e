"""Which other implementations are measured, with which versions, and how they are started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine import PeerWeights
from sidecar.jobs.race.contenders import Served
from sidecar.jobs.race.environments import Installed, PeerEnvironment, peer_environment
from sidecar.jobs.race.server_process import ServerProcess, free_port
from sidecar.jobs.race.tasks import CHAT, REWRITE

MLX_LM_SERVER, DSPARK, VLLM_MLX, LLAMA = "mlx_lm.server", "mlx-dspark", "vllm-mlx", "llama.cpp"
MLX_LM, DFLASH = "mlx_lm", "dflash"
PEERS = (MLX_LM, LLAMA, DFLASH, MLX_LM_SERVER, DSPARK, VLLM_MLX)
"""The names that ``--peers`` takes. mlx_lm and dflash read token ids, in Pillion's own environment
and beside an unpacked wheel (`engine.targets.baseline`); the others are servers."""

MLX = ("mlx==0.32.4; sys_platform == 'darwin'", "mlx[cpu]==0.32.4; sys_platform == 'linux'")
ENVIRONMENTS = {
    LLAMA: PeerEnvironment(name="llama.cpp", requirements=("xllamacpp==2026.10.11549",)),
    MLX_LM_SERVER: PeerEnvironment(name="mlx-lm", requirements=(*MLX, "mlx-lm==0.32.2")),
    DSPARK: PeerEnvironment(name="mlx-dspark", requirements=(*MLX, "mlx-dspark==0.20.3")),
    VLLM_MLX: PeerEnvironment(
        name="vllm-mlx",
        # It wants torchvision, opencv and gradio besides, for pictures and a web page.
        alone=("vllm-mlx==0.6.0", "mlx-vlm==0.7.10", "mlx-embeddings==0.1.0"),
        requirements=(
            *MLX,
            "mlx-lm==0.31.3",
            "transformers>=5,<6",
            "fastapi",
            "uvicorn",
            "psutil",
            "mcp",
            "jsonschema",
            "lm-format-enforcer",
            "llguidance",
            "prometheus-client",
            "pillow",
            "pytz",
            "pyyaml",
            "requests",
            "tabulate",
            "tqdm",
        ),
    ),
}

# A reply of these takes many seconds here. The servers decode as mlx_lm does, which is measured on
# all tasks; looking drafts up is for rewrites.
SERVERS_REGIMES, LOOKUP_REGIMES = (CHAT,), (REWRITE,)
# llama.cpp's ways to draft without a second model.
N_GRAM_TYPES = ("ngram_simple", "ngram_mod", "ngram_map_k", "ngram_cache")
LLAMA_SERVER = Path(__file__).with_name("llama_server.py")
LLAMA_CONTEXT = 4096

Command = Callable[[Installed, PeerWeights, int], Sequence[str]]


@dataclass(frozen=True)
class ServedPeer:
    """peer: of `PEERS`. model: as the server calls it, given the weights. The rest is as in
    `Served`."""

    name: str
    peer: str
    command: Command
    model: Callable[[PeerWeights], str] = field(default=lambda weights: weights.folder)
    serial: str | None = None
    regimes: tuple[str, ...] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    remembers: bool = False

    async def start(
        self, installed: Installed, weights: PeerWeights, environment: Mapping[str, str]
    ) -> Served:
        """Raises EngineError with the reason."""
        port = free_port()
        server = await asyncio.to_thread(
            ServerProcess.start,
            self.name,
            self.command(installed, weights, port),
            port=port,
            environment=peer_environment(environment),
        )
        return Served(
            name=self.name,
            server=server,
            model=self.model(weights),
            serial=self.serial,
            regimes=self.regimes,
            more=self.more,
            remembers=self.remembers,
        )


def _llama(*types: str) -> ServedPeer:
    def command(installed: Installed, weights: PeerWeights, port: int) -> list[str]:
        script = [str(installed.python), "-P", str(LLAMA_SERVER)]
        return [*script, weights.gguf, str(port), "1", str(LLAMA_CONTEXT), *types]

    return ServedPeer(
        name=" ".join((LLAMA, *types)),
        peer=LLAMA,
        command=command,
        serial=LLAMA if types else None,
        more={"cache_prompt": False},
    )


def _dspark(mode: str) -> ServedPeer:
    # Each of these is measured at the first start, for minutes here, to find that it is for Metal.
    metal = ["--no-small-m", "--no-sdpa-split", "--no-multirow-attn"]
    metal += ["--wide-gemm-min", "0", "--cpu-split", "0", "--no-warmup"]

    def command(installed: Installed, weights: PeerWeights, port: int) -> list[str]:
        serve = [installed.program("mlx-dspark"), "serve", "--mode", mode, *metal]
        return [*serve, "--model", weights.folder, "--host", "127.0.0.1", "--port", str(port)]

    return ServedPeer(
        name=f"{DSPARK} {mode}",
        peer=DSPARK,
        command=command,
        model=lambda weights: Path(weights.folder).name,
        serial=f"{DSPARK} baseline" if mode != "baseline" else None,
        regimes=LOOKUP_REGIMES,
        remembers=True,
    )


def _mlx_lm_server(installed: Installed, weights: PeerWeights, port: int) -> list[str]:
    serve = [str(installed.python), "-P", "-m", "mlx_lm", "server"]
    return [*serve, "--model", weights.folder, "--host", "127.0.0.1", "--port", str(port)]


def _vllm_mlx(installed: Installed, weights: PeerWeights, port: int) -> list[str]:
    serve = [installed.program("vllm-mlx"), "serve", weights.folder, "--offline"]
    return [*serve, "--host", "127.0.0.1", "--port", str(port)]


SERVED_PEERS = (
    _llama(),
    *(_llama(kind) for kind in N_GRAM_TYPES),
    ServedPeer(
        name=MLX_LM_SERVER,
        peer=MLX_LM_SERVER,
        command=_mlx_lm_server,
        regimes=SERVERS_REGIMES,
        remembers=True,
    ),
    _dspark("baseline"),
    _dspark("lookup"),
    ServedPeer(
        name=VLLM_MLX, peer=VLLM_MLX, command=_vllm_mlx, regimes=SERVERS_REGIMES, remembers=True
    ),
)
# One of each server, to see how soon the first token comes.
FIRST_TOKEN = (LLAMA, MLX_LM_SERVER, f"{DSPARK} lookup", VLLM_MLX)
