"""The `lowmark` command: thin, prints, exits.

A command parses its arguments, calls the package that does the work, and shows what it returned.
Results go to stdout, as a table or with `--json` as JSON; everything else goes to stderr.

Exit codes: 0 done · 1 failed · 2 wrong use (a bad option, a path that isn't there, bad settings)
· 130 interrupted. An error that Lowmark raises on purpose is shown as what happened, why, and what
to do; a traceback means a bug.

This module imports nothing heavy, and a command imports what it needs only when it is called: a
second of imports is a second in which Ctrl-C would end in a traceback out of a library.
"""

from lowmark.cli.starting import exit_if_interrupted

__all__ = ["main"]


def main() -> None:
    """Run the `lowmark` command."""
    exit_if_interrupted()
    from lowmark.cli.app import main as run  # noqa: PLC0415 (only now is Ctrl-C taken care of)

    try:
        run()
    finally:
        exit_if_interrupted()  # what the command had open is closed; the interpreter only ends
