from __future__ import annotations

import pytest

from engine import EngineError, EngineOptions
from sidecar.config import EngineConfig
from sidecar.jobs.peers import MLX_LM, OFFICIAL_DFLASH, Peer


@pytest.mark.slow
async def test_a_peer_that_cannot_load_says_why() -> None:
    with pytest.raises(EngineError, match=r"z-lab dflash: .*no-such-folder"):
        await Peer.start(OFFICIAL_DFLASH, EngineConfig(model="./no-such-folder"))


@pytest.mark.slow
async def test_a_peer_that_dies_is_noticed() -> None:
    peer = await Peer.start(MLX_LM, EngineOptions(draft="none"))
    try:
        assert peer.name == "mlx_lm"
        run = await peer.reply(tuple(range(20, 40)), 5, ignore_eos=False)
        assert len(run.tokens) == 5
        assert run.rounds == 4
        assert run.seconds > 0
        await peer.stop()
        with pytest.raises(EngineError, match="mlx_lm process ended with exit code"):
            await peer.reply((20, 21), 3, ignore_eos=False)
    finally:
        await peer.stop()
