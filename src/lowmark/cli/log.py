"""`lowmark log`: look into a node's log, on disk."""

from __future__ import annotations

import typer

from lowmark.cli.session import help_if_bare

__all__ = ["app"]

app = typer.Typer(invoke_without_command=True)


@app.callback()
def log(ctx: typer.Context) -> None:
    """Look into the log of a node, and compact it."""
    help_if_bare(ctx)
