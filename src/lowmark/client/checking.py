"""What is wrong with arguments, and with values that have the right type.

Arrow's own data is trusted nowhere: a file, or another program, may say that bytes are text or that
a number has five digits. One such value would be stored, and no reader could read past it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import date, timedelta
from operator import index

import pyarrow as pa
import pyarrow.compute as pc

from lowmark.catalog import Table, TableSchema
from lowmark.convert.coercion import Coercion
from lowmark.convert.errors import ColumnRefused, ValueRefused
from lowmark.convert.rows import Columns, is_frame, pieces
from lowmark.errors import Rejected
from lowmark.formatting import counted

NUMBER_MAX = 1 << 62
_FIRST_DAY, _LAST_DAY = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))
_DAY = timedelta(days=1) // timedelta(microseconds=1)
_FIRST_MICROS, _LAST_MICROS = _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1


def whole(number: object, what: str, *, least: int = 0) -> int:
    """A whole number, of whatever kind; else a refusal that says what it was for."""
    try:
        if isinstance(number, bool):
            raise TypeError
        value = index(number)  # type: ignore[arg-type]
    except TypeError:
        raise Rejected(f"{what} can't be {number!r}", hint="Give a whole number.") from None
    if not least <= value < NUMBER_MAX:
        raise Rejected(f"{what} can't be {value}", hint=f"Use a whole number from {least} on.")
    return value


def check_detached(**given: object) -> None:
    """Refuse what a run that is left to a worker can't be told: it is made as the worker says."""
    named = [name for name, value in given.items() if value]
    if named:
        raise Rejected(
            f"a run that is left to a worker takes no {' and no '.join(named)}",
            detail="It is made where the worker is, as the worker was started.",
            hint="Leave that out, or leave detach out.",
        )


def check_offsets(offsets: object, what: str, *, partitions: int) -> dict[int, int]:
    """Offsets by partition, all of them of the table."""
    if not isinstance(offsets, Mapping):
        raise Rejected(
            f"{what} can't be {offsets!r}", hint="Give offsets by partition: {0: 17, 1: 4, ...}."
        )
    checked = {}
    for number, offset in offsets.items():
        if isinstance(number, bool) or number not in range(partitions):
            raise Rejected(
                f"{what} names a partition {number!r}",
                hint=f"The table has partitions 0 to {partitions - 1}.",
            )
        checked[index(number)] = whole(offset, f"{what} in partition {number}")
    return checked


def column_names(columns: object) -> list[str] | None:
    """One column, or several in their order; None stands for all."""
    if columns is None:
        return None
    if isinstance(columns, str):
        return [columns]
    given = list(columns) if isinstance(columns, Iterable) else [columns]
    names = [name for name in given if isinstance(name, str)]
    if len(names) < len(given) or isinstance(columns, bytes):
        raise Rejected(
            f"columns can't be {columns!r:.100}",
            hint='Give a name, or a list of names: columns=["id", "status"].',
        )
    return names


def many(keys: object, what: str) -> Iterable[object]:
    """Several keys; one alone is refused, since text is several characters, too."""
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        return list(keys.to_pylist())
    if isinstance(keys, str | bytes | Mapping) or not isinstance(keys, Iterable):
        raise Rejected(f"{what} takes several, not {keys!r:.100}", hint="Give a list.")
    return keys


def check_values(batch: pa.RecordBatch, before: int = 0) -> None:
    """Refuse a value that is not what its type says; `before` rows came before these."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not _is_sound(column):
            low, high = 0, len(column)
            while high - low > 1:  # the first half that is not sound has the first such value
                half = (low + high) // 2
                first_is_sound = _is_sound(column.slice(low, half - low))
                low, high = (half, high) if first_is_sound else (low, half)
            raise ValueRefused(
                f"is not a valid {field.type}",
                row=before + low,
                column=field.name,
                value=_shown(column.slice(low, 1)),
                hint="Check its source: the bytes do not fit the type.",
            )


def _is_sound(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return _is_in_calendar(column)


def _is_in_calendar(column: pa.Array) -> bool:
    """Whether all dates and times are of years 1 to 9999, as every reader can show them."""
    kind = column.type
    if pa.types.is_date32(kind):
        return _within(column.view(pa.int32()), _FIRST_DAY, _LAST_DAY)
    if pa.types.is_timestamp(kind):
        return _within(column.view(pa.int64()), _FIRST_MICROS, _LAST_MICROS)
    if pa.types.is_struct(kind):
        return all(_is_in_calendar(part) for part in column.flatten())
    if pa.types.is_list(kind):
        return _is_in_calendar(column.flatten())
    if pa.types.is_map(kind):
        return _is_in_calendar(column.keys) and _is_in_calendar(column.items)
    return True


def _within(numbers: pa.Array, least: int, most: int) -> bool:
    found = pc.min_max(numbers)
    low, high = found["min"].as_py(), found["max"].as_py()
    return low is None or (low >= least and high <= most)


def _shown(value: pa.Array) -> str:
    """One value of an unsound column, if its bytes can be touched at all.

    Arrow does not check what it casts or shows: an offset beyond its buffer ends the process. What
    is shallowly sound, alone, is within its buffers; that says nothing of what is nested in it.
    """
    try:
        value.validate()
        if pa.types.is_nested(value.type):
            return "a value"
        if pa.types.is_string(value.type):
            found = value.view(pa.binary())[0].as_py() or b""
            return f"bytes {found[:32].hex()}"
        return str(value.cast(pa.string())[0])
    except (pa.ArrowException, ValueError, OverflowError):
        return "a value"


# Keys as callers give them: one value, a tuple, or a dict by column; coerced as in an append.


def check_key(
    table: Table, *, hint: str = "Read it with `read`; rows without a key go by retention only."
) -> None:
    """Refuse a table without a key."""
    if not table.key:
        raise Rejected(f"table {table.name} has no key", hint=hint)


def key_values(table: Table, key: object) -> tuple[object, ...]:
    """A key as a caller gives it: one value, a tuple, or a dict by column."""
    names = [column.name for column in table.key_columns]
    if isinstance(key, Mapping):
        if set(key) != set(names):
            raise Rejected(
                f"the key of table {table.name} is ({', '.join(names)}), not ({', '.join(key)})"
            )
        return tuple(key[name] for name in names)
    if len(names) == 1 and not isinstance(key, tuple):
        return (key,)
    if not isinstance(key, tuple | list) or len(key) != len(names):
        raise Rejected(
            f"the key of table {table.name} has {counted(len(names), 'column')}",
            hint=f"Give a tuple of ({', '.join(names)}).",
        )
    return tuple(key)


def key_schema(table: Table) -> TableSchema:
    """The columns of the key alone, as they are now, in the table's order."""
    columns = tuple(column for column in table.columns if column.id in table.key)
    return TableSchema(number=table.latest.number, columns=columns)


def key_coercion(table: Table) -> Coercion:
    """For rows that have nothing but their key."""
    return Coercion(key_schema(table), keyless_ok=False, key=frozenset(table.key))


def key_batches(table: Table, keys: object, what: str) -> Iterator[pa.RecordBatch]:
    """Several keys, each alone or in a frame, whose other columns do not count."""
    coercion = key_coercion(table)
    names = [column.name for column in table.key_columns]
    if not is_frame(keys):
        keys = many(keys, what)
        rows = [dict(zip(names, key_values(table, key), strict=True)) for key in keys]
        yield from coercion.batches(rows)
        return
    first_row = 0
    for piece in pieces(keys):
        assert not isinstance(piece, list)  # those are dicts, and no frame has any
        if isinstance(piece, pa.RecordBatch):
            piece = Columns(dict(zip(piece.schema.names, piece.columns, strict=True)), len(piece))
        missing = [name for name in names if name not in piece.given]
        if missing:
            raise ColumnRefused(
                f"the frame has no column {missing[0]}, which is in the key of table {table.name}",
                column=missing[0],
                hint=f"The key is ({', '.join(names)}); the frame needs all of these columns.",
            )
        given = {name: piece.given[name] for name in names}
        if piece.rows:
            yield coercion.columns(given, piece.rows, first_row=first_row)
        first_row += piece.rows


def coerced_key(table: Table, values: tuple[object, ...]) -> tuple[object, ...]:
    """A key that was given as it could be appended: text for a date, say."""
    names = [column.name for column in table.key_columns]
    row = dict(zip(names, values, strict=True))
    (batch,) = key_coercion(table).batches([row])
    return tuple(batch.column(name)[0].as_py() for name in names)
