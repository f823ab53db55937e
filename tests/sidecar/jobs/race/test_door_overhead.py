from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest
from private_home import short_folder

from engine import EngineClient, Finished
from engine.testing import FakeEngine
from sidecar.cli.connection import Rpc
from sidecar.cli.peer_benchmark import daemon_beside, private_config
from sidecar.jobs.race.doors import HTTP, JSON_RPC, PAIRS_A_REPEAT, door_overheads
from sidecar.jobs.race.tasks import tasks


@pytest.fixture
def folder() -> Iterator[Path]:
    made = short_folder()
    yield made
    rmtree(made)


async def test_the_same_replies_go_through_both_doors(folder: Path) -> None:
    engine = FakeEngine("def total(rows):\n    return sum(rows)\n" * 3)
    config = private_config(folder / "doors")
    async with daemon_beside(config, EngineClient(engine)) as (client, address):
        with Rpc(address) as rpc:
            found = await door_overheads(
                client,
                await tasks(client, ("chat", "rewrite")),
                port=int(address.url.rpartition(":")[2]),
                api_key=address.api_key,
                call=rpc.call,
                max_tokens=16,
                repeat=1,
            )
    assert [(one.door, one.pairs) for one in found] == [
        (HTTP, 2 * PAIRS_A_REPEAT),
        (JSON_RPC, 2 * PAIRS_A_REPEAT),
    ]
    assert all(one.in_process > 0 and one.through_door > 0 for one in found)
    assert not any(request.draft for request in engine.seen)
    replies = [end.token_hash for end in engine.endings.values() if isinstance(end, Finished)]
    # A warm-up and the pairs of two replies, inside and outside, by each door.
    assert len(replies) == (1 + PAIRS_A_REPEAT) * 2 * 2 * 2
