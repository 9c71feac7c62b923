"""Everything that crosses the port comes out of its encoding as it went in."""

from __future__ import annotations

import dataclasses
import typing
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from types import UnionType
from typing import Any, Literal
from uuid import UUID

import msgspec
import numpy as np
import pytest
from pyroaring import BitMap64

from lowmark import errors
from lowmark.backend import codec, port
from lowmark.backend.codec import decode, encode
from lowmark.backend.protocol import PROTOCOL
from lowmark.catalog import Catalog, parse_type
from lowmark.catalog.catalog import CatalogVersion
from lowmark.errors import Corrupt, LowmarkError
from lowmark.group import Lineages
from lowmark.metastore.commands import Not
from lowmark.runtime import HybridTime
from lowmark.runtime.store import Store
from lowmark.table import Adopted, Columns, View

ADOPTED = Adopted(3, "table-7/0/ledger", 41, b"\x01" * 32, 5)
CATALOG = Catalog(version=CatalogVersion(0), time=HybridTime(0), activates_at=HybridTime(0))


def view_of(count: int) -> View:
    numbers = np.arange(1, count + 5, dtype=np.uint64)  # a column may be longer than the view
    small = numbers.astype(np.uint32)
    columns = Columns(
        numbers, numbers * 10, numbers * 100, small, small, small, small.astype(np.uint8)
    )
    return View(columns, count, 10, 10 * count + 7, 1 << 60, ADOPTED, 1 << 59)


def same(left: object, right: object) -> bool:
    """Equal; views by what they show."""
    if isinstance(left, View) and isinstance(right, View):
        pairs: Any = zip(left.columns, right.columns, strict=True)
        rest = [(one.count, one.start, one.end, one.closed, one.ledger) for one in (left, right)]
        return rest[0] == rest[1] and all(
            a.dtype == b.dtype and np.array_equal(a[: left.count], b[: left.count])
            for a, b in pairs
        )
    if dataclasses.is_dataclass(left) and type(left) is type(right):
        return all(
            same(getattr(left, field.name), getattr(right, field.name))
            for field in dataclasses.fields(left)
        )
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, LowmarkError) and isinstance(right, LowmarkError):
        return type(left) is type(right) and vars(left) == vars(right)
    return type(left) is type(right) and left == right


SAMPLES: dict[Any, Any] = {
    Any: "of any type that a column has",
    int: 1 << 61,
    str: "orders",
    bytes: b"\x00\xff",
    bool: True,
    float: 1.5,
    type(None): None,
    View: view_of(3),
    Catalog: CATALOG,
    BitMap64: BitMap64([1, 1 << 40]),
    Decimal: Decimal("1.20"),
    LowmarkError: errors.Rejected("it is red", detail="It was painted.", hint="Paint it."),
    memoryview: b"rows",
    bytearray: b"rows",
    UUID: UUID(int=7),
    date: date(2026, 11, 17),
    datetime: datetime(2026, 11, 17, 1, 2, tzinfo=UTC),
}


COMMANDS = {
    "default": Decimal("1.20"),
    "key": (),
    "node_filter": "rack = r1",
    "options": {"retention_ms": 60_000},
    "partitions": 4,
    "replicas": 1,
    "scale_down_ms": "never",
    "scale_up_ms": 0,
    "to": "other",
}
"""Commands of the catalog check what they are given."""


def samples(hint: Any) -> list[Any]:
    """Values of a type: of a union, one of each member."""
    if typing.get_origin(hint) in {typing.Union, UnionType}:
        return [sample(one) for one in typing.get_args(hint)]
    return [sample(hint)]


def sample(hint: Any) -> Any:
    """A value of a type, made of values of its fields' types."""
    if hint in SAMPLES:
        return SAMPLES[hint]
    if isinstance(hint, typing.NewType):
        return sample(hint.__supertype__)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return inner[0]
    if origin in {typing.Union, UnionType}:
        return sample(next(one for one in inner if one is not type(None)))
    if origin is tuple:
        return tuple(sample(one) for one in inner if one is not Ellipsis)
    if origin is not None:  # a mapping
        return {sample(inner[0]): sample(inner[1])}
    if isinstance(hint, type) and hint in codec._NAMES:
        return made(hint)
    if hint.__name__ in {"Plain", "DecimalOf", "ListOf", "StructOf", "MapOf"}:
        return parse_type("decimal(12,2)")
    raise AssertionError(f"there is no sample of {hint}")


def made(kind: Any, /, **fields: Any) -> Any:
    if issubclass(kind, Enum):
        return next(iter(kind))
    hints = typing.get_type_hints(kind)
    given = COMMANDS if codec._NAMES[kind].startswith("catalog.") else fields
    names = codec._fields(kind)
    return kind(**{name: given[name] if name in given else sample(hints[name]) for name in names})


@pytest.mark.parametrize("name", sorted(codec._KINDS))
def test_each_kind_of_value_comes_out_as_it_went_in(name: str) -> None:
    kind = codec._KINDS[name]
    given = made(kind)
    assert same(decode(encode(given)), given)
    # and so it is with each member of a union
    checked = name.startswith("catalog.")  # these look at their values
    for field in () if issubclass(kind, Enum) or checked else codec._fields(kind):
        for one in samples(typing.get_type_hints(kind)[field]):
            given = made(kind, **{field: one})
            assert same(decode(encode(given)), given)


@pytest.mark.parametrize(
    "given",
    [
        view_of(0),
        view_of(2),
        (1, [2, (3,)], {"größer": b"b"}, frozenset({4})),
        {1: view_of(1), 2: None},
        Decimal("-0.00"),
        UUID(int=7),
        date(2026, 11, 17),
        datetime(2026, 11, 17, 1, 2, 3, 4, tzinfo=UTC),
        parse_type("list<struct<a: int64, b: map<string, decimal(12,2)>>>"),
        parse_type("int64"),
        errors.TableUnknown("ordres", known=["orders"]),
        errors.Corrupt("it is torn"),
        errors.Ended("orders"),
        errors.Ended("orders", OSError("it is red")),
    ],
    ids=repr,
)
def test_values_within_values_come_out_too(given: object) -> None:
    assert same(decode(encode(given)), given)


def crossing(hint: Any, seen: set[type]) -> None:
    """The types that a type is made of, all the way down to what has an encoding of its own."""
    if isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    inner = () if typing.get_origin(hint) is Literal else typing.get_args(hint)
    for one in inner:
        crossing(one, seen)
    if inner or not isinstance(hint, type) or hint in seen:
        return
    seen.add(hint)
    if hint in codec._NAMES and not issubclass(hint, Enum):
        for one in typing.get_type_hints(hint).values():
            crossing(one, seen)


def test_every_type_that_crosses_the_port_can_be_encoded() -> None:
    # given the types of all calls and answers
    seen: set[type] = set()
    condition = typing.get_type_hints(Not)["condition"]
    for protocol in (port.Backend, port.LooksUp, port.Appender, port.Sent):
        for name, member in vars(protocol).items():
            call = member.fget if isinstance(member, property) else member
            if not name.startswith("_") and callable(call):
                named = {"bytes": bytes, "Condition": condition}  # one is hidden, one not resolved
                for hint in typing.get_type_hints(call, localns=named).values():
                    crossing(hint, seen)
    # then each has an encoding, but for what is made on the caller's side
    plain = {*codec._PLAIN, *codec._BYTES}
    encoded = {*codec._NAMES, *codec._ENCODERS}
    # Values of rows have types of their own.
    here = {port.Appender, port.Sent, Lineages, Store, Any}
    unlisted = {one for one in seen - plain - encoded - here if not issubclass(one, LowmarkError)}
    assert unlisted == set()
    # and nothing can be decoded that is not asked for
    assert {kind.__name__ for kind in set(codec._NAMES) - seen} <= {"Keep"}


def test_what_is_not_listed_is_not_encoded() -> None:
    with pytest.raises(TypeError, match="object does not cross the port"):
        encode(object())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(["os.system", "true"]),
        msgspec.msgpack.encode(["values.Hold"]),
        msgspec.msgpack.encode(["values.Hold", 1, 2]),
        msgspec.msgpack.encode(["view", [], 0, 0, 0, 0, None, 0]),
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode(["error", b"rubbish"]),
        msgspec.msgpack.encode(["error", 5]),
        b"\x91" * 100_000 + b"\x01",
        msgspec.msgpack.encode({"a": 1}),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x")),
        msgspec.msgpack.encode(datetime(2026, 11, 17, tzinfo=UTC)),
        msgspec.msgpack.encode(["list", "abc"]),
        msgspec.msgpack.encode(["list", [{"a": 1}]]),
        msgspec.msgpack.encode(["map", [[["list", []], 1]]]),
        msgspec.msgpack.encode([["list"], 1]),
        msgspec.msgpack.encode(["decimal", "x"]),
        msgspec.msgpack.encode(["uuid", 5]),
        msgspec.msgpack.encode(["type", 5]),
        msgspec.msgpack.encode(["type", "int65"]),
        msgspec.msgpack.encode(["date", 5]),
        msgspec.msgpack.encode(["bitmap", b"\x01\x02\x03"]),
        msgspec.msgpack.encode(["catalog", b"junk"]),
        msgspec.msgpack.encode(["values.Hold", "abc"]),
        msgspec.msgpack.encode(["values.Hold", True]),
        msgspec.msgpack.encode(["values.ReadRange", 0, None, "above"]),
        msgspec.msgpack.encode(["values.BatchRange", 0, ["tuple", ["a"]]]),
        msgspec.msgpack.encode(["catalog.CreateTable", *[None] * 8]),
        msgspec.msgpack.encode(["table.Change", 77]),
        msgspec.msgpack.encode(["view", [b""] * 7, 1_000, 0, 5, 0, None, 0]),
        msgspec.msgpack.encode(["view", [b""] * 7, 0, "b", None, 0, None, 0]),
        msgspec.msgpack.encode(["view", [b""] * 7, 0, 0, 0, 0, 5, 0]),
        msgspec.msgpack.encode(["view", [b""] * 7, 0, 0, 0, 0, None, "b"]),
    ],
)
def test_rubbish_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(Corrupt, match="can't be read"):
        decode(data)


def test_a_view_in_another_form_has_another_protocol() -> None:
    # A release that reads views of other parts takes a new one for damaged: so it is told before.
    parts = msgspec.msgpack.decode(encode(view_of(3)))
    assert (PROTOCOL, len(parts), len(parts[1])) == (3, 8, 7)
