"""`lowmark bench`: the benchmarks of a checkout, or one line on how to get them.

They stand in `benchmarks/`, beside `src/`, and are no part of an installed package. So the package
must not import them by a statement, which would fail where they are missing: this is the one place
that looks for them, and it does so by path.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

import lowmark
from lowmark.cli.session import WrongUse


class _Missing(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> NoReturn:
        raise WrongUse(
            "the benchmarks are not in the installed package: clone Lowmark's repository, run"
            " `pip install -e '.[bench,spark]'` there, then `lowmark bench` again"
        )


def _find() -> typer.Typer:
    above = Path(lowmark.__file__).parents[1]
    if above.name != "src" or not (above.parent / "benchmarks" / "command.py").is_file():
        return _missing()
    for root in (above.parent, above.parent / "tests"):  # its clusters are those of the tests
        if str(root) not in sys.path:
            sys.path.append(str(root))  # last: nothing in a checkout hides another package
    found: typer.Typer = importlib.import_module("benchmarks.command").app
    return found


def _missing() -> typer.Typer:
    app = typer.Typer(cls=_Missing)

    @app.callback()
    def bench() -> None:
        """Measure Lowmark beside what this machine and other programs can do; needs a checkout."""

    return app


app = _find()
