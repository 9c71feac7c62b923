"""The command's root: options that hold for every command, and the list of sub-commands.

A command's module is imported when that command is called, or its help is shown: one that shows the
version, or is misspelt, must not wait for Arrow and everything above it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, MutableMapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape
from typer.main import get_command, get_group

import lowmark
from lowmark.cli import INTERRUPTED, raise_if_interrupted
from lowmark.cli.node_option import offer_node
from lowmark.cli.session import CommandGroup, help_if_bare, wrong_use

COMMANDS = {
    "serve": "serve",
    "status": "status",
    "table": "table",
    "zone": "zone",
    "node": "node",
    "rebalance": "rebalance",
    "partition": "partition",
    "append": "append",
    "read": "read",
    "changes": "changes",
    "export": "export",
    "get": "get",
    "delete": "get",
    "cursor": "cursor",
    "explain": "get",
    "tide": "tide",
    "watermark": "watermark",
    "compact": "compact",
    "runs": "runs",
    "history": "history",
    "worker": "worker",
    "ledger": "ledger",
    "catalog": "catalog",
    "meta": "meta",
    "log": "log",
    "bench": "bench",
    "completion": "completion",
}
"""The commands in the order of the help text, each with its module. There it is a function of the
command's name or, if it has commands of its own, `app`.
"""


class _Commands(MutableMapping[str, Any]):
    """The commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, COMMANDS[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def _load(name: str, module: str) -> Any:
    # Once per process: of the commands that a test runs in its own, most are the same few.
    found = importlib.import_module(f"lowmark.cli.{module}")
    loaded: Any
    if hasattr(found, "app"):
        loaded = get_group(found.app)
    else:
        alone = typer.Typer(add_completion=False)
        alone.command(name)(getattr(found, name))
        loaded = get_command(alone)
    loaded.name = name
    return as_written(offer_node(loaded))


class _Root(CommandGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


app = typer.Typer(
    name="lowmark",
    cls=_Root,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the `lowmark` command."""
    try:
        try:
            app(prog_name="lowmark")
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _drop_output()  # the reader of our output has seen enough
    except OSError as error:
        _drop_output()
        print(f"lowmark: the output could not be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def _drop_output() -> None:
    """Let the interpreter's own last flush go nowhere, instead of failing once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"lowmark {lowmark.__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    settings: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Settings file; else $LOWMARK_SETTINGS, else ./lowmark.toml if there is one.",
        ),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(help="How much to say on stderr.", show_default="warning"),
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Lowmark: a replicated, versioned table log for Python and Spark."""
    help_if_bare(ctx)
    from lowmark.node import configure_logging, load_settings  # noqa: PLC0415 (see above)

    arguments = {"logging": {"level": log_level}} if log_level else {}
    with wrong_use():
        ctx.obj = load_settings(settings, arguments=arguments)
    configure_logging(ctx.obj.logging)
    raise_if_interrupted()


def as_written(command: Any) -> Any:
    """Prepare the help texts of a command, and of all below it, to be shown as they were written,
    in lines as wide as the terminal.

    Typer keeps the line breaks of a docstring from its second paragraph on: at 80 columns every
    other line would break in the middle. It also takes what stands in square brackets for markup,
    and leaves it out.
    """
    command.help = escape(_unwrapped(command.help or ""))
    for parameter in command.params:
        if parameter.help:
            parameter.help = escape(parameter.help)
    for below in getattr(command, "commands", {}).values():
        as_written(below)
    return command


def _unwrapped(text: str) -> str:
    """Each paragraph in one line, except for those that are indented."""
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else paragraph.replace("\n", " ")
        for paragraph in text.split("\n\n")
    )
