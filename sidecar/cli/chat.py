"""`pillion chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import msgspec
import typer

from engine import PillionError, RequestError
from sidecar.cli.connection import NotRunning, wait_until_ready
from sidecar.cli.options import ConfigFile, Local
from sidecar.cli.replies import (
    ChatReply,
    Settings,
    as_text,
    daemon_for,
    note_cost,
    show_reply,
    stream_reply,
)
from sidecar.cli.terminal import note, print_json, say_error
from sidecar.config import load_config
from sidecar.runtime_dir import Address

_COMMANDS = "/reset forgets the conversation, /exit or Ctrl-D ends, Ctrl-C stops a reply"


def command(
    message: Annotated[
        str | None, typer.Argument(help="Ask this one thing; left out: a conversation.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message at the start.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="At most this many tokens a reply.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same reply.")] = None,
    no_draft: Annotated[
        bool, typer.Option("--no-draft", help="Do not speculate; the replies are the same.")
    ] = False,
    local: Local = False,
    config: ConfigFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each reply as a JSON object a line.")
    ] = False,
) -> None:
    """Talk with the model. Without MESSAGE every line of stdin is a message."""
    settings = load_config(path=config)
    wanted = Settings(
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        draft=False if no_draft else None,
    )
    with daemon_for(settings, local=local) as address:
        status = wait_until_ready(address)
        conversation = Conversation(address, wanted, system, as_json=as_json)
        if message is not None:
            conversation.ask(as_text(message))
        else:
            _converse(conversation, status["model"]["id"])


class Conversation:
    """The messages so far. A reply that failed or was stopped leaves no trace in them."""

    def __init__(
        self, address: Address, settings: Settings, system: str | None, *, as_json: bool
    ) -> None:
        self._address = address
        self._settings = settings
        self._system = (
            [{"role": "system", "content": as_text(system)}] if system is not None else []
        )
        self._as_json = as_json
        self.messages: list[dict[str, str]] = list(self._system)

    def reset(self) -> None:
        self.messages = list(self._system)

    def ask(self, text: str) -> None:
        """Show the reply to `text`. Raises what the daemon answers with."""
        asked = [*self.messages, {"role": "user", "content": text}]
        reply = ChatReply()
        with contextlib.closing(
            stream_reply(self._address, asked, self._settings, reply)
        ) as pieces:
            if self._as_json:
                for _ in pieces:
                    pass
                if sys.stdin.isatty():
                    print_json(msgspec.to_builtins(reply))
                else:
                    sys.stdout.write(msgspec.json.encode(reply).decode() + "\n")
                    sys.stdout.flush()
            else:
                show_reply(pieces)
        self.messages = [*asked, {"role": "assistant", "content": reply.text}]
        if not self._as_json:
            note_cost(reply)


def _converse(conversation: Conversation, model: str) -> None:
    interactive = sys.stdin.isatty()
    if interactive:
        # Gives `input` line editing and a history.
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - imported for what it does to `input`
        note(f"{model}. {_COMMANDS}.")
    while (line := _next_line(interactive)) is not None:
        text = line.strip()
        if text == "/exit":
            return
        if text == "/reset":
            conversation.reset()
            note("forgotten")
        elif text.startswith("/") and interactive and " " not in text:
            note(_COMMANDS)
        elif text:
            try:
                conversation.ask(as_text(text))
            except KeyboardInterrupt:
                if not interactive:
                    raise
                sys.stdout.write("\n")
                note("stopped; that message is forgotten")
            except NotRunning:
                raise
            except PillionError as error:
                if not interactive:
                    raise
                say_error(error.message)


def _next_line(interactive: bool) -> str | None:
    try:
        if not interactive:
            return sys.stdin.readline() or None
        return input("> ")
    except EOFError:
        sys.stdout.write("\n")
        return None
    except KeyboardInterrupt:
        sys.stdout.write("\n")
        return ""
    except UnicodeDecodeError:
        raise RequestError("stdin is not UTF-8 text") from None
