"""`pillion generate`: one prompt, one reply."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from sidecar.cli.complete import read_stdin
from sidecar.cli.connection import wait_until_ready
from sidecar.cli.options import AsJson, ConfigFile, Local
from sidecar.cli.replies import (
    ChatReply,
    Settings,
    as_text,
    daemon_for,
    note_cost,
    show_reply,
    stream_reply,
)
from sidecar.cli.surplus import show_surplus
from sidecar.cli.terminal import print_json
from sidecar.config import load_config


def command(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from stdin.")],
    system: Annotated[str | None, typer.Option(help="A system message before it.")] = None,
    max_tokens: Annotated[int, typer.Option(help="At most this many tokens.")] = 512,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from this much probability.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from this many; 0: all.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same reply.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; may be repeated.")
    ] = None,
    no_draft: Annotated[
        bool, typer.Option("--no-draft", help="Do not speculate; the reply is the same.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what drafting did, by kind of text, on stderr.")
    ] = False,
    local: Local = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Answer one prompt, as a conversation of one message through the model's chat template."""
    settings = load_config(path=config)
    messages = [{"role": "user", "content": as_text(read_stdin() if prompt == "-" else prompt)}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": as_text(system)})
    wanted = Settings(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop=stop or None,
        draft=False if no_draft else None,
        explain=explain or None,
    )
    reply = ChatReply()
    with daemon_for(settings, local=local) as address:
        wait_until_ready(address)
        pieces = stream_reply(address, messages, wanted, reply)
        if as_json:
            for _ in pieces:
                pass
            print_json(msgspec.to_builtins(reply))
        else:
            show_reply(pieces)
            note_cost(reply)
            if explain:
                show_surplus(reply.pillion)
