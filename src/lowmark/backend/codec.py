"""Everything that crosses the port, as bytes and back.

Msgpack, with a name before each value that is not plain: `[name, field, ...]`. Only what is listed
here can be decoded, so bytes from elsewhere make values and nothing else. The columns of a view are
raw numbers, little endian; a catalog, its commands and errors have encodings of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import cache
from types import UnionType
from typing import (
    Any,
    Final,
    Literal,
    NewType,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

import msgspec
import numpy as np
from pyroaring import BitMap64

from lowmark import catalog, holds, ledger, metastore, table
from lowmark.backend import values
from lowmark.catalog import Catalog, ColumnType, Snapshot, parse_type, type_text
from lowmark.catalog.serializers import decode_snapshot, encode_snapshot
from lowmark.errors import Corrupt, LowmarkError
from lowmark.fault import decode_fault, encode_fault
from lowmark.ledger.tail import Piece
from lowmark.metastore import commands as statements
from lowmark.table import Adopted, Columns, View

_BYTES: Final = (bytes, bytearray, memoryview)
_PLAIN: Final = (bool, int, float, str, type(None))
_RUBBISH: Final = (
    msgspec.MsgspecError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What comes of bytes that were not made here."""


def _listed(module: Any, *names: str) -> dict[str, type[Any]]:
    room = module.__name__.rpartition(".")[2]
    return {f"{room}.{name}": getattr(module, name) for name in names}


_KINDS: Final[Mapping[str, type[Any]]] = {
    **_listed(
        values,
        "DatabaseInfo",
        "Moment",
        "Hold",
        "ReadRange",
        "BatchRange",
        "PartitionStatus",
        "Staging",
        "Held",
        "Found",
    ),
    **_listed(
        table,
        "Abandon",
        "Adopt",
        "Adopted",
        "Advanced",
        "Appended",
        "Begin",
        "Begun",
        "Bind",
        "Bound",
        "Change",
        "CreateCursor",
        "Cursor",
        "DeleteCursor",
        "Drop",
        "Fence",
        "Finish",
        "Finished",
        "KeepSchemas",
        "Lease",
        "MoveCursor",
        "Outgoing",
        "ReleaseLease",
        "RenewCursor",
        "RenewLease",
        "SchemasKept",
        "TakeLease",
        "Tick",
        "Ticked",
        "Trim",
        "Trimmed",
        "WatermarkStanding",
    ),
    **_listed(holds, "Hold", "SafePoint", "Span"),
    **_listed(ledger, "Tail"),
    "ledger.Piece": Piece,
    **_listed(metastore, "Entry"),
    **_listed(
        statements,
        "AllOf",
        "AnyOf",
        "Compare",
        "Exists",
        "LeaseEnds",
        "LeaseIsOver",
        "Not",
        "Put",
        "Remove",
        "RemoveRange",
        "Revision",
        "ValueIs",
        "Version",
    ),
    **_listed(catalog, "Executed"),
    **_listed(catalog, "Keep", "NewColumn"),
    **{f"catalog.{kind.__name__}": kind for kind in get_args(catalog.Command)},
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def encode(value: object) -> bytes:
    """A value of the port as bytes."""
    return msgspec.msgpack.encode(_plain(value))


def decode(data: bytes) -> Any:
    """The value that these bytes are."""
    try:
        return _value(msgspec.msgpack.decode(data))
    except (LowmarkError, *_RUBBISH) as error:
        raise Corrupt(f"a message of {len(data)} bytes can't be read: {error}") from error


_LATER: Final[Mapping[str, Any]] = {
    "values.PartitionStatus": None,
    "values.BatchRange": 0,
    "ledger.Tail": 0,
    "table.Outgoing": 0,
}
"""Values whose last field came in a later release, and what it is where it says nothing: then it is
left out.
"""


def _plain(value: Any) -> Any:
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value)
    if isinstance(value, Enum):
        return [_NAMES[type(value)], value.value]
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, _BYTES):
        return bytes(value)
    if isinstance(value, LowmarkError):
        return ["error", encode_fault(value)]
    if isinstance(value, Mapping):
        return ["map", [[_plain(key), _plain(one)] for key, one in value.items()]]
    name = _NAMES.get(type(value))
    if name is None:
        raise TypeError(f"{type(value).__name__} does not cross the port")
    fields = [_plain(getattr(value, one)) for one in _fields(type(value))]
    if name in _LATER and fields[-1] == _LATER[name]:
        del fields[-1]  # as a release before knows it
    return [name, *fields]


def _fields(kind: type[Any]) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    fields: tuple[str, ...] = kind._fields
    return fields


def _value(plain: Any) -> Any:
    if isinstance(plain, (*_PLAIN, bytes)):
        return plain
    if not isinstance(plain, list):
        raise TypeError(f"a {type(plain).__name__} has no name")
    name, *rest = plain
    decoder = _DECODERS.get(name)
    if decoder is not None:
        return decoder(*rest)
    kind: Any = _KINDS[name]
    if issubclass(kind, Enum):
        return kind(rest[0])
    if name in _LATER and len(rest) == len(_fields(kind)) - 1:
        rest = [*rest, _LATER[name]]
    fields = dict(zip(_fields(kind), map(_value, rest), strict=True))
    hints = _hints(kind)
    for field, value in fields.items():
        if not fits(value, hints[field]):
            raise TypeError(f"{name} has a {type(value).__name__} as {field}")
    return kind(**fields)


@cache
def _hints(kind: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(kind)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, all the way down."""
    if isinstance(hint, NewType):
        return fits(value, hint.__supertype__)
    if hint is float:
        return type(value) in {int, float}
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in inner
    if origin in {Union, UnionType}:
        return any(fits(value, one) for one in inner)
    if origin in {Collection, Sequence}:  # of an argument
        return isinstance(value, tuple | frozenset) and all(fits(one, inner[0]) for one in value)
    if origin is tuple:  # of any length: there is no other among the fields
        return isinstance(value, tuple) and all(fits(one, inner[0]) for one in value)
    if origin is not None:
        return isinstance(value, origin) and all(
            fits(key, inner[0]) and fits(one, inner[1]) for key, one in value.items()
        )
    if hint is Any:
        return True
    if hint is int:
        return type(value) is int
    if hint is memoryview:
        return isinstance(value, bytes)
    return isinstance(value, hint)


def _many(name: str) -> Callable[[Any], Any]:
    return lambda value: [name, [_plain(one) for one in value]]


def _plain_view(view: View) -> list[Any]:
    columns = [
        np.ascontiguousarray(column[: view.count]).astype(column.dtype.newbyteorder("<")).tobytes()
        for column in view.columns
    ]
    rest = [view.count, view.start, view.end, view.closed, _plain(view.ledger), view.cut_time]
    return ["view", columns, *rest, *([view.lineage] if view.lineage else ())]


def _view(
    columns: list[bytes],
    count: int,
    start: int,
    end: int,
    closed: int,
    led: Any,
    cut_time: int,
    lineage: int = 0,
) -> View:
    kinds = (np.uint64, np.uint64, np.uint64, np.uint32, np.uint32, np.uint32, np.uint8)
    arrays = [np.frombuffer(data, kind) for data, kind in zip(columns, kinds, strict=True)]
    if any(len(array) != count for array in arrays):
        raise ValueError(f"a view of {count} batches has not {count} numbers in each column")
    ledger = _value(led)
    if not (
        all(type(one) is int for one in (count, start, end, closed, cut_time, lineage))
        and isinstance(ledger, Adopted | None)
    ):
        raise TypeError("a view is not made of numbers and a ledger")
    return View(Columns(*arrays), count, start, end, closed, ledger, cut_time, lineage)


def _values(some: Any) -> Iterator[Any]:
    if not isinstance(some, list):
        raise TypeError(f"a {type(some).__name__} is no list of values")
    return map(_value, some)


def _error(data: bytes) -> LowmarkError:
    error = decode_fault(data)
    if error is None:
        raise ValueError("an error in it is none")
    return error


_ENCODERS: Final[Mapping[type[Any], Callable[[Any], Any]]] = {
    list: _many("list"),
    tuple: _many("tuple"),
    set: _many("set"),
    frozenset: _many("set"),
    View: _plain_view,
    BitMap64: lambda pins: ["bitmap", pins.serialize()],
    Catalog: lambda one: ["catalog", encode_snapshot(Snapshot(one))],
    **{kind: lambda one: ["type", type_text(one)] for kind in get_args(ColumnType)},
    Decimal: lambda one: ["decimal", str(one)],
    UUID: lambda one: ["uuid", str(one)],
    datetime: lambda one: ["datetime", one.isoformat()],
    date: lambda one: ["date", one.isoformat()],
    time: lambda one: ["time", one.isoformat()],
}
_DECODERS: Final[Mapping[str, Callable[..., Any]]] = {
    "list": lambda some: list(_values(some)),
    "tuple": lambda some: tuple(_values(some)),
    "set": lambda some: frozenset(_values(some)),
    "map": lambda pairs: {_value(key): _value(one) for key, one in pairs},
    "view": _view,
    "bitmap": BitMap64.deserialize,
    "catalog": lambda data: decode_snapshot(data).catalog,
    "type": parse_type,
    "decimal": Decimal,
    "uuid": UUID,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "error": _error,
}
