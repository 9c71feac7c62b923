"""What commands on tables share: the directory they open, and how places and times are written."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from lowmark import access
from lowmark.backend.connection import addresses_of
from lowmark.catalog import Table as TableDescriptor
from lowmark.catalog import type_text
from lowmark.cli.node_option import (
    DATA_VARIABLE,
    NODE_KEY,
    NODE_VARIABLE,
    READ_ONLY_KEY,
    named_place,
    variable,
)
from lowmark.cli.session import WrongUse, settings_of, wrong_use
from lowmark.cli.strangers import warn_of_strangers
from lowmark.client import Database, Table
from lowmark.client.table_reading import Start
from lowmark.convert.text import from_text
from lowmark.convert.times import is_hybrid
from lowmark.convert.values import Misfit
from lowmark.errors import LowmarkError, Rejected
from lowmark.formatting import bytes_text, counted
from lowmark.node import NotADatabase, data_path
from lowmark.node.directory import log_disk
from lowmark.node.settings import from_text as setting_from_text

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="DIR", help=f"The directory of the database; else ${DATA_VARIABLE}."
    ),
]
TableArgument = Annotated[
    str,
    typer.Argument(
        metavar="TABLE", help="The table's name; outside of the default schema, s.name."
    ),
]

_OFFSETS = re.compile(r"[0-9]+:[0-9]+(?:\s*,\s*[0-9]+:[0-9]+)*")
NUMBER_MAX = (1 << 63) - 1
SIZE_MAX = 1 << 60
"""What no machine has, and no disk moves in a second."""
_HYBRID_DIGITS = 12
"""A number of this many digits is a row's `_time`, or milliseconds; a shorter one is no time."""


@contextlib.contextmanager
def opened_database(
    ctx: typer.Context, data: str | None, *, create: bool = False
) -> Iterator[Database]:
    """Open the directory, or connect to the server, that the command line, the environment or the
    profile names. Make a directory only if that is asked for.
    """
    given = ctx.meta.get(NODE_KEY)
    place = named_place(given, data)
    read_only = READ_ONLY_KEY in ctx.meta
    if place.node is not None:
        if read_only:
            named = "--node" if given is not None else f"${NODE_VARIABLE}"
            if given is None and variable(NODE_VARIABLE) is None:
                named = "the profile"
            raise WrongUse(
                f"--read-only is for a directory, and {named} names a server",
                hint="Leave --read-only out, or name the directory by --data.",
            )
        with wrong_use():
            addresses_of(place.node)
        database = access.connect(place.node)
    else:
        named = directory_of(place.data)
        if not create:
            hint = "`lowmark table create` makes a new database."
            with wrong_use():
                log_disk(str(Path(named)), missing_hint=hint, hint=hint)
        with wrong_use(NotADatabase):
            database = access.open_database(named, settings=settings_of(ctx), read_only=read_only)
    warn_of_strangers(database.backend.open_at)
    try:
        yield database
    except BaseException:
        # The caller gets what went wrong first.
        with contextlib.suppress(LowmarkError):
            database.close()
        raise
    database.close()


def directory_of(data: str | None) -> str:
    """The directory that the command line names, the environment, or the profile in use."""
    named = named_place(None, None).data if data is None else data
    if named is None or not named.strip():
        raise WrongUse(
            "no database is named",
            hint="Write --data ./shop for a directory, or --node 127.0.0.1:6570 for a server; or"
            f" set {DATA_VARIABLE} or {NODE_VARIABLE}; or name a profile that has one of them.",
        )
    with wrong_use():
        return data_path(named)


# -- places and times ---------------------------------------------------------------------------


def parse_moment(text: str) -> int | str:
    """A time as the client takes it: ISO 8601, `5 minutes ago`, `now`, or a row's `_time`."""
    words = text.strip()
    is_number = words.isascii() and words.isdigit() and len(words) >= _HYBRID_DIGITS
    return int(words) if is_number else words


def parse_place(text: str, *, option: str) -> Start:
    """Where to start or to end: earliest, latest, a time, an offset, or 0:17,1:4."""
    words = text.strip()
    if words in {"earliest", "latest"}:
        return words
    if _OFFSETS.fullmatch(words):
        pairs = [part.split(":") for part in words.split(",")]
        offsets = {int(number): int(offset) for number, offset in pairs}
        if len(offsets) < len(pairs):
            raise WrongUse(f"{option} names a partition twice: {text}")
        _check_offsets(offsets.values(), option)
        return offsets
    if words.isascii() and words.isdigit():
        _check_offsets([int(words)], option)
        return int(words)
    return words


def _check_offsets(offsets: Iterable[int], option: str) -> None:
    if max(offsets) > NUMBER_MAX:
        raise WrongUse(f"{option} names an offset that no row will ever have")


def check_place(place: Start, table: Table, *, option: str) -> Start:
    """Refuse a place that the table does not have."""
    if isinstance(place, int) and not is_hybrid(place) and table.partitions > 1:
        raise Rejected(
            f"{option} is one offset, but table {table.name} has {table.partitions} partitions",
            hint=f"Write an offset for each: 0:{place},1:{place},…",
        )
    if isinstance(place, Mapping):
        unknown = sorted(number for number in place if number >= table.partitions)
        if unknown:
            raise Rejected(
                f"table {table.name} has no partition {unknown[0]}",
                hint=f"It has 0 to {table.partitions - 1}.",
            )
    return place


def offsets_of(place: Start, table: Table, *, option: str) -> dict[int, int]:
    """The offsets that a place means now; only of partitions that it names."""
    check_place(place, table, option=option)
    if isinstance(place, Mapping):
        return dict(place)
    # A reader finds it out; one without rows to read holds nothing.
    with table.read(start=place, limit=0) as reader:
        return reader.position


# -- keys ---------------------------------------------------------------------------------------


def key_of(table: TableDescriptor, words: Sequence[str]) -> tuple[object, ...]:
    """A key from the words of a command line, each read as its column's type says."""
    columns = table.key_columns
    if not columns:
        raise Rejected(
            f"table {table.name} has no key", hint="Only rows with a key are found by it."
        )
    if len(words) != len(columns):
        names = ", ".join(column.name for column in columns)
        raise WrongUse(
            f"the key of table {table.name} is ({names}): that is"
            f" {counted(len(columns), 'value')}, not {len(words)}",
            hint="Give one argument for each column of the key.",
        )
    values: list[object] = []
    for column, word in zip(columns, words, strict=True):
        try:
            values.append(from_text(column.type, _text(word))[0].as_py())
        except (Misfit, UnicodeEncodeError) as error:
            why = error.why if isinstance(error, Misfit) else "is not text"
            raise Rejected(
                f"{word!r} can't be a value of key column {column.name}: it {why}",
                hint=f"Give a value of type {type_text(column.type)}.",
            ) from error
    return tuple(values)


def _text(word: str) -> pa.StringArray:
    # From buffers: `pa.array` would import pandas first, where there is one, to ask what a list is.
    data = word.encode()
    ends = len(data).to_bytes(4, sys.byteorder)
    return pa.StringArray.from_buffers(1, pa.py_buffer(bytes(4) + ends), pa.py_buffer(data))


# -- words --------------------------------------------------------------------------------------


def listed(text: str | None) -> list[str]:
    """Names that are given with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()] if text else []


def parse_size(text: str | None, *, option: str, least: int = 0) -> int | None:
    """A number of bytes as settings take it: 50MiB, or 52428800."""
    if text is None:
        return None
    try:
        size = int(setting_from_text(text.strip(), kind=int, is_size=True))
    except Rejected as error:
        raise WrongUse(f"{option}: {error.message}", hint="Write 50MiB, or a number.") from error
    if size < least:
        raise WrongUse(f"{option} can't be less than {bytes_text(least)}")
    if size > SIZE_MAX:
        raise WrongUse(f"{option} can't be more than {bytes_text(SIZE_MAX)}")
    return size
