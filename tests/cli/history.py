"""A table with a history that may be compacted, and commands on it in processes of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.shop import Shop
from eventually import eventually
from lowmark.cli.app import app

__all__ = [
    "KEYS",
    "ROWS",
    "SLOWLY",
    "begun",
    "copied",
    "files_of",
    "fill",
    "settle",
    "settled",
    "started",
    "without",
]

ROWS, KEYS = 4_000, 500
SLOWLY = "1KiB"
"""At this rate a run of the history takes minutes."""


def fill(shop: Shop, rows: int = ROWS, keys: int = KEYS, *, status: str = "new") -> None:
    """So many changes of so many keys."""
    lines = "".join(f"o-{n % keys},{status}-{n}\n" for n in range(rows))
    shop.run("append", "orders", "-", stdin=f"id,status\n{lines}")


def settle(shop: Shop) -> None:
    """Let the low watermark pass every row that is there."""
    shop.run("watermark", "advance", "--to", "now")


def settled(path: Path, *, partitions: int = 2, rows: int = ROWS, keys: int = KEYS) -> Shop:
    """A shop with a history, all of it at or below the low watermark."""
    shop = Shop(path).with_orders(partitions)
    fill(shop, rows, keys)
    settle(shop)
    return shop


def copied(shop: Shop, path: Path) -> Shop:
    """Another one like it."""
    shutil.copytree(shop.data, path)
    return Shop(path)


def files_of(shop: Shop) -> list[str]:
    """What is in the folder of ledgers."""
    folder = shop.data / "ledgers"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def without(package: str, *words: str) -> Result:
    """A command as in a Python that does not have a package."""
    loaded = [name for name in sys.modules if name.startswith(f"{package}.")]
    with pytest.MonkeyPatch.context() as patched:
        for name in [package, *loaded]:
            patched.setitem(sys.modules, name, None)
        # It imports its package at once, and may have done so in another test.
        patched.delitem(sys.modules, "lowmark.client.tide_picture", raising=False)
        return CliRunner().invoke(app, words)


@contextlib.contextmanager
def started(
    shop: Shop, *words: str, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own; it is gone in the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "lowmark", *words],
        env={**os.environ, "LOWMARK_DATA": str(shop.data), **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def begun(shop: Shop, process: subprocess.Popen[str], *, mark: str = "begun") -> str:
    """Wait until a process is in the middle of a run; gives the run's name."""
    found: list[Path] = []

    def there() -> bool:
        assert process.poll() is None, process.communicate()
        found[:] = (shop.data / "ledgers").glob(f"*/runs/*/{mark}")
        return bool(found)

    eventually(there)
    return found[0].parent.name
