"""Columns as a command line has them: `id string not null, price decimal(10,2) default 0`.

A column is its name, its type, `not null` if it must have a value, and `default` with a value. A
name that has blanks or commas in it stands in backticks, a default in single quotes; both are
doubled inside their own kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lowmark.catalog import CatalogRefused, NewColumn, Value, parse_type, parse_value
from lowmark.cli.session import WrongUse
from lowmark.convert.columns import columns_of, of_column
from lowmark.errors import Rejected
from lowmark.table import SYSTEM_COLUMNS

_HINT = 'Write it as "id string not null, price decimal(10,2) default 0".'
_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s`,]+))\s*(.*)", re.DOTALL)
_DEFAULT = re.compile(r"\s+default\s+(.*)", re.DOTALL | re.IGNORECASE)
_NOT_NULL = re.compile(r"\s+not\s+null\s*$", re.IGNORECASE)
_QUOTED = re.compile(r"'((?:[^']|'')*)'")
_OPENING, _CLOSING = "<(", ">)"


def parse_columns(text: str) -> list[NewColumn]:
    """All columns of a list."""
    return [_parse_column(part) for part in _split(text)]


def _split(text: str) -> Iterator[str]:
    """Cut at commas that stand neither in quotes nor inside of a type."""
    depth, quote, begin = 0, "", 0
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "`'":
            quote = sign
        elif sign in _OPENING:
            depth += 1
        elif sign in _CLOSING:
            depth -= 1
        elif sign == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    if quote:
        raise WrongUse(f"a quote is not closed in {text!r}", hint=_HINT)
    yield text[begin:]


def _parse_column(text: str) -> NewColumn:
    found = _NAME.fullmatch(text)
    if found is None or not found[3].strip():
        raise WrongUse(f"{text.strip()!r} is not a column with its type", hint=_HINT)
    name = found[2] if found[1] is None else found[1].replace("``", "`")
    return _column(name, found[3])


def _column(name: str, words: str) -> NewColumn:
    """A column from its name and all that stands behind it."""
    given: str | None = None
    found = _DEFAULT.search(_without_backticks(words))
    if found is not None:
        words, given = words[: found.start()], words[found.start(1) :].strip()
    required = _NOT_NULL.search(words) is not None
    if given is not None and not _QUOTED.fullmatch(given) and _NOT_NULL.search(given):
        required, given = True, _NOT_NULL.sub("", given)
    try:
        kind = parse_type(_NOT_NULL.sub("", words).strip())
    except CatalogRefused as error:
        raise of_column(error, name) from error
    default: Value | None = None
    if given is not None:
        quoted = _QUOTED.fullmatch(given)
        plain = given if quoted is None else quoted[1].replace("''", "'")
        default = parse_value(kind, plain, column=name)
    return NewColumn(name=name, type=kind, required=required, default=default)


def _without_backticks(words: str) -> str:
    """The same with other signs inside of backticks, where a field may be called ` default `."""
    return re.sub(r"`(?:[^`]|``)*`", lambda found: "`" * len(found[0]), words)


# -- files --------------------------------------------------------------------------------------


def read_columns(path: Path) -> list[NewColumn]:
    """The columns that a file has: of Parquet or Arrow, or JSON of names and types."""
    if not path.is_file():
        raise WrongUse(f"there is no file {path}")
    try:
        if path.suffix == ".json":
            return _from_json(path)
        schema = _arrow_schema(path)
    except (OSError, pa.ArrowException) as error:
        lines = str(error).splitlines() or [""]
        raise Rejected(
            f"the schema of {path} can't be read",
            detail=f"{lines[0]}.",
            hint="Give a .parquet or .arrow file, or .json: an object of names and types.",
        ) from error
    fields = [field for field in schema if field.name not in SYSTEM_COLUMNS]
    return list(columns_of(fields, ()))


def _arrow_schema(path: Path) -> pa.Schema:
    with path.open("rb") as opened:
        head = opened.read(6)
    if head.startswith(b"PAR1"):
        return pq.read_schema(path)
    with pa.OSFile(str(path)) as file:
        if head == b"ARROW1":
            return pa.ipc.open_file(file).schema
        return pa.ipc.open_stream(file).schema


def _from_json(path: Path) -> list[NewColumn]:
    try:
        # An object becomes a tuple of pairs: a name that is there twice is seen.
        found = json.loads(path.read_text(), object_pairs_hook=tuple)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{path} is not JSON: {error}") from error
    pairs = found if isinstance(found, tuple) else ()
    if not pairs or not all(isinstance(words, str) for _, words in pairs):
        raise Rejected(
            f"{path} is not an object of names and types",
            hint='Write it as {"id": "string not null", "price": "decimal(10,2)"}.',
        )
    return [_column(name, f" {words}") for name, words in pairs]
