"""Files that commands read rows from; - is stdin."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from lowmark.cli.session import WrongUse
from lowmark.errors import Unavailable

T = TypeVar("T")


@contextlib.contextmanager
def opened_input(file: str) -> Iterator[tuple[Path | BinaryIO, str]]:
    """What can be read from, and what errors call it."""
    if file == "-":
        yield sys.stdin.buffer, "stdin"
        return
    path = Path(file)
    # It is not opened to find out: what comes through a pipe can be read only once.
    if not path.exists():
        raise WrongUse(f"there is no file {file}")
    if path.is_dir():
        raise WrongUse(f"{file} is a directory", hint="Append its files one by one.")
    if not os.access(path, os.R_OK):
        raise WrongUse(f"{file} can't be read: permission denied")
    yield path, file


def readable(batches: Iterator[T], name: str) -> Iterator[T]:
    """The same; tells a disk that fails from an output that does."""
    while True:
        try:
            found = next(batches, None)
        except OSError as error:
            raise Unavailable(f"{name} can't be read: {error.strerror or error}") from error
        if found is None:
            return
        yield found
