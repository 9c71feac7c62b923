"""The command's root: options that hold for every command, and the list of sub-commands.

A command's module is imported when that command is called, or its help is shown: one that shows the
version or the list of commands, or is misspelt, must not wait for Arrow and everything above it.
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
from typer.core import TyperCommand
from typer.main import get_command, get_group

import lowmark
from lowmark.cli import INTERRUPTED, begin
from lowmark.cli.node_option import offer_node, set_for_run
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
    "tls": "tls",
    "catalog": "catalog",
    "token": "token",
    "meta": "meta",
    "log": "log",
    "bench": "bench",
    "profile": "profile",
    "completion": "completion",
}
"""The commands in the order of the help text, each with its module. There it is a function of the
command's name or, if it has commands of its own, `app`.
"""

SUMMARIES = {
    "serve": "Run a node, until Ctrl-C or SIGTERM.",
    "status": (
        "Show nodes, groups, leaders, lag, tables, and where the metastore and the catalog are."
    ),
    "table": "Create, show, change and drop tables.",
    "zone": (
        "Manage zones: the nodes of partitions, how many replicas they have, how soon they move."
    ),
    "node": "List, drain, remove and replace the nodes of a cluster.",
    "rebalance": "Show, plan, pause, limit and cancel moves of partitions between nodes.",
    "partition": (
        "List partitions with their nodes and leaders; reset or rebuild copies after a loss."
    ),
    "append": "Append the rows of a file to a table, batch by batch.",
    "read": (
        "Read a table's changes in the order of their offsets; or the table as it was at a time."
    ),
    "changes": (
        "Show what changed from one place to another: inserts, updates and deletes, key by key."
    ),
    "export": (
        "Write a table to a directory for other programs: the last row of each key, as of one time."
    ),
    "get": "Show the latest row of a key. Exit code 1 if there is none; a line says why.",
    "delete": "Delete rows by their keys: all of them, or none if a key is not valid.",
    "cursor": (
        "Manage cursors: named readers of a table, for which the rows that they have not read stay."
    ),
    "explain": (
        "Show what is kept of a table, which readers need it, and why; or how a key stands."
    ),
    "tide": "Draw a table's tide: ledger, horizon, backlog, low watermark, and readers, by offset.",
    "watermark": "Show the low watermark, its goal, and its holders; or move it.",
    "compact": (
        "Compact a table: write the last row of each key to a ledger, up to the low watermark."
    ),
    "runs": "List runs of compaction, of one table or of all, the newest first; or look at one.",
    "history": (
        "Show the history of a table, newest first: schema versions, runs of compaction, and "
        "cuts, each with its time and author."
    ),
    "worker": "Compact tables when they are due, until Ctrl-C or SIGTERM.",
    "ledger": "Show, verify and rebuild ledgers, the compacted form of a table.",
    "tls": "Make certificates: an authority of the cluster's own, and a folder for each node.",
    "catalog": "Show the catalog version by version, change it, and cut its history.",
    "token": "Create, list and revoke tokens, which clients show to a cluster that asks for them.",
    "meta": "Show keys of the metastore, with their revisions and history; or reset the metastore.",
    "log": "Show, verify and compact the log of a node.",
    "bench": (
        "Measure Lowmark beside what this machine and other programs can do; needs a checkout."
    ),
    "profile": "List and show profiles: databases that you work with, by name, in a file of yours.",
    "completion": "Print a script that completes commands and options in your shell.",
}
"""What the list of commands says of each: the first paragraph of its help. By this the list is
shown without importing what all the commands need.
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
    return take_words(as_written(offer_node(loaded)))


class _Root(CommandGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def get_params(self, ctx: Any) -> list[Any]:
        return _taking_words(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        commands = self.commands
        self.commands = {name: TyperCommand(name, help=SUMMARIES[name]) for name in COMMANDS}
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = commands


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
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The profile of your file of profiles that names the database; else"
            " $LOWMARK_PROFILE. What other options and variables name comes before it.",
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
    if profile is not None:
        set_for_run(ctx, "LOWMARK_PROFILE", profile)
    # The one command that needs none shows which there are, where the one that is named is not.
    needed = ctx.invoked_subcommand != "profile"
    with wrong_use():
        ctx.obj = load_settings(settings, arguments=arguments, by_profile=needed)
    configure_logging(ctx.obj.logging)
    if profile is not None and needed:
        from lowmark.runtime.profiles import named_profile, say_overridden  # noqa: PLC0415

        with wrong_use():
            say_overridden(named_profile(profile))
    begin()


def take_words(command: Any) -> Any:
    """Have a command, and all below it, take options that are not given, and those that are plain
    words, as they are.

    Typer converts every value by pydantic, which takes longer to import than most commands take
    for their work. What is a number, a path or a choice, or not ASCII, is still converted so.
    """
    given = command.get_params  # those of the command, and --help
    command.get_params = lambda ctx: _taking_words(given(ctx))
    for below in getattr(command, "commands", {}).values():
        take_words(below)
    return command


def _taking_words(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if not isinstance(parameter.get_runtime_param, _Words):
            parameter.get_runtime_param = _Words(parameter)
    return parameters


class _Words:
    """What stands for Typer's conversion of one option, and asks it where that is needed."""

    def __init__(self, parameter: Any) -> None:
        self._typers = parameter.get_runtime_param
        self._one = parameter.nargs == 1 and not parameter.multiple
        self._kind = parameter.type_descriptor.annotation

    def __call__(self) -> _Words:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return None if self._one else ()
        if self._one and type(value) is self._kind:  # a number is a default; else it were text
            if not isinstance(value, str) or value.isascii():
                return value
        return self._typers().coerce(value, param=param, ctx=ctx)


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
