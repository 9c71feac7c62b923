"""A directory with tables, and the command run on it in this process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import lowmark
from lowmark.cli.app import app
from lowmark.client import Database

__all__ = ["ORDERS", "Shop", "shared"]

ORDERS = "id string, status string, amount decimal(12,2)"

_runner = CliRunner()


class Shop:
    """Runs commands on one directory."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def invoke(self, *words: str, stdin: bytes | str | None = None) -> Result:
        # Behind the first word, so that keys may stand at the end, behind --.
        group = 2 if words[0] in {"catalog", "cursor", "ledger", "table", "zone"} else 1
        if words[:2] == ("watermark", "advance") or (words[:1] == ("runs",) and len(words) > 1):
            group = 2
        placed = [*words[:group], "--data", str(self.data), *words[group:]]
        return _runner.invoke(app, placed, input=stdin)

    def run(self, *words: str, stdin: bytes | str | None = None) -> str:
        done = self.invoke(*words, stdin=stdin)
        assert done.exit_code == 0, (words, done.output, done.exception)
        return done.stdout

    def json(self, *words: str, stdin: bytes | str | None = None) -> Any:
        return json.loads(self.run(*words, "--json", stdin=stdin))

    def lines(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.run("read", *words, "--json").splitlines()]

    def refused(self, *words: str, code: int = 1, stdin: bytes | str | None = None) -> str:
        """What it says on stderr."""
        done = self.invoke(*words, stdin=stdin)
        assert done.exit_code == code, (words, done.output, done.exception)
        return done.stderr

    def with_orders(self, partitions: int = 1) -> Shop:
        count = str(partitions)
        words = ("--columns", ORDERS, "--key", "id", "--partitions", count)
        self.run("table", "create", "orders", *words)
        return self


class Shared:
    """A database that stays open while commands use it, as one that others use, too."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def close(self) -> None:
        """Not by a command."""


@contextlib.contextmanager
def shared(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """Commands find the database open in this process, and a test may use it meanwhile."""
    with lowmark.open(shop.data) as database, monkeypatch.context() as patched:
        patched.setattr("lowmark.access.open_database", lambda *_, **__: Shared(database))
        yield database
