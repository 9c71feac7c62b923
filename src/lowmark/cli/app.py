"""The command's root: options that hold for every command, and the list of sub-commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import lowmark
from lowmark.cli import bench, catalog, cursor, ledger, log, meta, runs, table, watermark
from lowmark.cli.append import append
from lowmark.cli.compact import compact
from lowmark.cli.explain import explain
from lowmark.cli.get import delete, get
from lowmark.cli.read import read
from lowmark.cli.serve import serve
from lowmark.cli.session import CommandGroup, help_if_bare, wrong_use
from lowmark.cli.status import status
from lowmark.cli.tide import tide
from lowmark.node import LogLevel, configure_logging, load_settings

__all__ = ["app", "main"]

app = typer.Typer(
    name="lowmark",
    cls=CommandGroup,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve)
app.command()(status)
app.add_typer(table.app, name="table")
app.command()(append)
app.command()(read)
app.command()(get)
app.command()(delete)
app.add_typer(cursor.app, name="cursor")
app.command()(explain)
app.command()(tide)
app.add_typer(watermark.app, name="watermark")
app.command()(compact)
app.add_typer(runs.app, name="runs")
app.add_typer(ledger.app, name="ledger")
app.add_typer(catalog.app, name="catalog")
app.add_typer(meta.app, name="meta")
app.add_typer(log.app, name="log")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the `lowmark` command."""
    try:
        try:
            app(prog_name="lowmark")
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()  # whoever read our output has seen enough
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
        LogLevel | None, typer.Option(help="How much to say on stderr.", show_default="warning")
    ] = None,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Lowmark: a replicated, versioned table log for Python and Spark."""
    help_if_bare(ctx)
    arguments = {"logging": {"level": log_level}} if log_level else {}
    with wrong_use():
        ctx.obj = load_settings(settings, arguments=arguments)
    configure_logging(ctx.obj.logging)
