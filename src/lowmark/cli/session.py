"""What every command shares: how one run of `lowmark` begins and how it ends."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from lowmark.cli.output import show_error
from lowmark.errors import LowmarkError, Rejected, Unavailable, invariant

if TYPE_CHECKING:
    from lowmark.node import Settings

FAILED = 1
WRONG_USE = 2


class WrongUse(Rejected):
    """The command line (or the settings) can't be acted on; nothing has been tried yet."""


@contextlib.contextmanager
def wrong_use(kind: type[Rejected] = Rejected) -> Iterator[None]:
    """Count what is refused inside as wrong use: for code that only looks at arguments."""
    try:
        yield
    except kind as error:
        raise WrongUse(error.message, detail=error.detail, hint=error.hint) from error


class CommandGroup(TyperGroup):
    """The outermost group: the one place where errors become words and exit codes."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        # Read from the words, not from a parsed option: an error may come before the parsing ends.
        as_json = "--json" in words
        try:
            if not as_json:
                return super().main(words, *rest, **options)
            outcome = super().main(words, *rest, **options | {"standalone_mode": False})
            sys.exit(outcome if isinstance(outcome, int) else 0)
        except LowmarkError as error:
            show_error(_for_commands(error), as_json=as_json)
            sys.exit(WRONG_USE if isinstance(error, WrongUse) else FAILED)
        except typer.TyperException as error:
            # Typer explains wrong use to people by itself; it comes here only under --json.
            hint = "Try `lowmark --help`."
            show_error(WrongUse(error.format_message(), hint=hint), as_json=as_json)
            sys.exit(error.exit_code)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Typer turns it into exit code 130, without a word.
            print("interrupted", file=sys.stderr)
            raise


def _for_commands(error: LowmarkError) -> LowmarkError:
    """The error with what to do on a command line, where its own hint is for Python."""
    if isinstance(error, Unavailable):
        from lowmark.errors import NodeUnreachable  # noqa: PLC0415 (it is loaded, if it was raised)

        if isinstance(error, NodeUnreachable):
            error.hint = (
                "Start one with `lowmark serve`, or name another one by --node or $LOWMARK_NODE;"
                " --data reads the directory of a node that does not run."
            )
    return error


def help_if_bare(ctx: typer.Context) -> None:
    """Print help and stop if a group was called without a command."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit


def settings_of(ctx: typer.Context) -> Settings:
    """Give a command the settings of this run."""
    from lowmark.node import Settings  # noqa: PLC0415 (not to show the version)

    settings = ctx.find_root().obj
    invariant(isinstance(settings, Settings), "settings are loaded before any command runs")
    assert isinstance(settings, Settings)  # for mypy, which does not know `invariant`
    return settings
