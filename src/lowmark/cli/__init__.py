"""The `lowmark` command: thin, prints, exits.

A command parses its arguments, calls the room that does the work, and shows what it returned.
Results go to stdout, as a table or with `--json` as JSON; everything else goes to stderr.

Exit codes: 0 done · 1 failed · 2 wrong use (a bad option, a path that isn't there, bad settings)
· 130 interrupted. An error that Lowmark raises on purpose is shown as what happened, why, and what
to do; a traceback means a bug.
"""

from lowmark.cli.app import main

__all__ = ["main"]
