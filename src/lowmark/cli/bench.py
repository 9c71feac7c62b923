"""`lowmark bench`: measure this machine, side by side with the bare disk."""

from __future__ import annotations

import typer

from lowmark.cli.session import help_if_bare

__all__ = ["app"]

app = typer.Typer(invoke_without_command=True)


@app.callback()
def bench(ctx: typer.Context) -> None:
    """Measure Lowmark on this machine, side by side with what the machine can do."""
    help_if_bare(ctx)
