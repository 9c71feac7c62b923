"""Bytes: golden ones, those of newer releases, and damaged ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.goldens import (
    CATALOG,
    ENTRIES,
    encoded,
    example,
    golden_name,
    golden_names,
    is_released,
    read,
)
from catalog.making import execute, fresh, orders, table_of, update_of
from lowmark.catalog import (
    AddColumns,
    AlterColumn,
    AlterZone,
    Catalog,
    Column,
    CreateIndex,
    DropIndex,
    NewColumn,
    NewTable,
    RenameColumn,
    RenameIndex,
    RenameTable,
    SetTableOptions,
    Snapshot,
    Table,
    TableSchema,
    Zone,
)
from lowmark.catalog.catalog import CatalogVersion
from lowmark.catalog.commands import evaluate
from lowmark.catalog.descriptors import Index, Schema, Unknown
from lowmark.catalog.entries import Entry, IdsTaken, NewZone
from lowmark.catalog.errors import CatalogTooNew, CatalogUnreadable
from lowmark.catalog.history import PARTS_MAX, PartedSnapshot, Update, apply_update
from lowmark.catalog.serialization import (
    PROTOCOL,
    UINT,
    Cursor,
    Field,
    Registry,
    Serializer,
    varint,
    zigzag,
)
from lowmark.catalog.serializers import (
    REGISTRY,
    decode,
    decode_snapshot,
    decode_update,
    encode_snapshot,
    encode_update,
)
from lowmark.errors import Corrupt, InvariantBroken
from lowmark.runtime import HybridTime

SERIALIZERS = list(REGISTRY)
CARRIERS = (Zone, Schema, Table, TableSchema, Column, Index, Catalog)


# -- golden bytes -------------------------------------------------------------------------------


@pytest.mark.parametrize("serializer", SERIALIZERS, ids=golden_name)
def test_golden_bytes_are_read_and_written_as_ever(serializer: Serializer) -> None:
    golden = read(golden_name(serializer))
    shown = example(serializer.kind, serializer.version)
    assert decode(golden) == shown
    hint = (
        "it is in a release: make one more version instead"
        if is_released(serializer)
        else "if that is what you want, run: python tests/catalog/goldens.py"
    )
    assert encoded(shown) == golden, hint


def test_every_serializer_has_golden_bytes_and_all_golden_bytes_have_a_serializer() -> None:
    assert golden_names() == {golden_name(serializer) for serializer in SERIALIZERS}


def test_every_entry_and_every_descriptor_has_a_serializer_and_an_example() -> None:
    kinds = {serializer.kind for serializer in SERIALIZERS}
    assert kinds == {*get_args(Entry), *CARRIERS, Update, PartedSnapshot}
    assert set(ENTRIES) == set(get_args(Entry))
    assert {s.kind for s in SERIALIZERS if s.carries} == set(CARRIERS)


@pytest.mark.parametrize("serializer", SERIALIZERS, ids=golden_name)
def test_a_serializer_has_a_tag_for_every_field_of_its_type(serializer: Serializer) -> None:
    tagged = {field.name for field in serializer.fields}
    there = {
        field.name
        for field in fields(serializer.kind)
        if field.name != "unknown" and not field.name.startswith("_")
    }
    newest = [other for other in SERIALIZERS if other.kind is serializer.kind][-1]
    assert tagged == there if serializer is newest else tagged < there


@pytest.mark.parametrize("serializer", SERIALIZERS, ids=golden_name)
def test_a_later_format_version_only_adds_fields(serializer: Serializer) -> None:
    later = [other for other in SERIALIZERS if other.kind is serializer.kind]
    for other in later[serializer.version :]:
        assert other.fields[: len(serializer.fields)] == serializer.fields
        assert not any(field.required for field in other.fields[len(serializer.fields) :])


# -- numbers ------------------------------------------------------------------------------------


@given(st.integers(0, 2**64 - 1))
def test_a_number_comes_back(number: int) -> None:
    cursor = Cursor(varint(number))
    assert cursor.varint() == number
    cursor.end()


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_signed_number_comes_back(number: int) -> None:
    assert Cursor(varint(zigzag(number))).signed() == number


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\x80\x00", b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01"]
)
def test_a_number_that_nobody_writes_is_unreadable(data: bytes) -> None:
    with pytest.raises(CatalogUnreadable):
        Cursor(data).varint()


# -- the registry -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Thing:
    a: int


@dataclass(frozen=True)
class Other:
    a: int


def registry(*found: tuple[int, type[Any], int], since: str = "1.0.0", tag: int = 1) -> Registry:
    made = Registry()
    for type_id, kind, version in found:
        made.serializer(type_id, kind, version=version, since=since, fields=[Field(tag, "a", UINT)])
    return made


@pytest.mark.parametrize(
    ("made", "expected", "why"),
    [
        (registry((1, Thing, 1), (1, Thing, 3)), [Thing], "gap"),
        (registry((1, Thing, 2)), [Thing], "gap"),
        (registry((1, Thing, 1), (1, Thing, 1)), [Thing], "twice"),
        (registry((1, Thing, 1)), [Thing, Other], "Other has no serializer"),
        (registry((1, Thing, 1), (1, Other, 2)), [], "several classes"),
        (registry((1, Thing, 1), (2, Thing, 1)), [], "two types"),
        (registry((1, Thing, 0)), [], "version"),
        (registry((0, Thing, 1)), [], "out of range"),
        (registry((1 << 16, Thing, 1)), [], "out of range"),
        (registry((1, Thing, 1), since=""), [], "since"),
        (registry((1, Thing, 1), tag=0), [], "tags"),
    ],
)
def test_a_registry_that_is_not_whole_stops_the_start(
    made: Registry, expected: Iterable[type[Any]], why: str
) -> None:
    with pytest.raises(InvariantBroken, match=why):
        made.check(expected)


def test_an_older_format_version_is_read_by_its_own_reader() -> None:
    # given a type whose second version has one more field
    old = Registry()
    old.serializer(1, Thing, version=1, since="1.0.0", fields=[Field(1, "a", UINT)])
    old.check([Thing])
    data = old.encode(Thing(5))
    new = Registry()
    new.serializer(
        1,
        Thing,
        version=1,
        since="1.0.0",
        fields=[Field(1, "a", UINT)],
        build=lambda values: Thing(values["a"] * 10),
    )
    new.serializer(1, Thing, version=2, since="2.0.0", fields=[Field(2, "a", UINT)])
    new.check([Thing])
    # then bytes of the first are read by the first, and written by the second
    assert new.decode(Cursor(data), Thing) == Thing(50)
    assert new.decode(Cursor(new.encode(Thing(5))), Thing) == Thing(5)
    # and an older release refuses the second, since a thing carries nothing
    with pytest.raises(CatalogTooNew):
        old.decode(Cursor(new.encode(Thing(5))), Thing)


# -- newer releases -----------------------------------------------------------------------------

NEW = Unknown(version=9, fields=((100, b"from tomorrow"), (300, b"")))


def with_news(catalog: Catalog) -> Catalog:
    """As if a newer release had written every descriptor."""
    for zone in catalog.all_zones():
        catalog = catalog.with_zone(replace(zone, unknown=NEW))
    for schema in catalog.all_schemas():
        catalog = catalog.with_schema(replace(schema, unknown=NEW))
    for table in catalog.all_tables():
        schemas = tuple(
            replace(
                schema,
                columns=tuple(replace(column, unknown=NEW) for column in schema.columns),
                unknown=NEW,
            )
            for schema in table.schemas
        )
        catalog = catalog.with_table(replace(table, schemas=schemas, unknown=NEW))
    for index in catalog.all_indexes():
        catalog = catalog.with_index(replace(index, unknown=NEW))
    return replace(catalog, unknown=NEW)


def test_what_a_newer_release_wrote_goes_through_an_older_one_verbatim() -> None:
    # given a catalog with fields of a newer release, and an option
    city = CreateIndex(name="by_city", table="orders", columns=("city",))
    catalog = with_news(execute(fresh(), orders(), city))
    newer = replace(table_of(catalog), options=(("tomorrow", "yes"),))
    catalog = catalog.with_table(newer)
    # when it becomes a snapshot, is read, and changed in all kinds of ways
    catalog = decode_snapshot(encode_snapshot(Snapshot(catalog))).catalog
    for command in (
        AlterZone(name="default", replicas=5),
        AddColumns(table="orders", columns=(NewColumn.of("n", "int8"),)),
        AlterColumn(table="orders", column="small", default=5),
        RenameColumn(table="orders", column="city", to="town"),
        RenameTable(name="orders", to="bills"),
        SetTableOptions(table="bills", options={"compression": "lz4"}),
        RenameIndex(name="by_city", to="by_town"),
        DropIndex(name="by_town"),
    ):
        catalog = execute(catalog, command)
    catalog = decode_snapshot(encode_snapshot(Snapshot(catalog))).catalog
    # then it is all still there
    table = table_of(catalog, "bills")
    index = catalog.all_indexes()[0]
    assert all(zone.unknown == NEW for zone in catalog.all_zones())
    assert all(schema.unknown == NEW for schema in catalog.all_schemas())
    assert catalog.unknown == table.unknown == index.unknown == NEW
    for schema in table.schemas:
        assert schema.unknown == NEW
        assert all(column.unknown == NEW for column in schema.columns if column.name != "n")
    assert ("tomorrow", "yes") in table.options
    assert catalog.zones[table.zone_id].replicas == 5


def test_what_a_newer_release_creates_reaches_an_older_one_whole() -> None:
    catalog = fresh()
    update = update_of(catalog, orders())
    [taken, created] = update.entries
    assert isinstance(created, NewTable)
    newer = NewTable(replace(created.table, unknown=NEW))
    update = decode_update(encode_update(replace(update, entries=(taken, newer))))
    catalog = apply_update(catalog, update, time=HybridTime(catalog.time + 1))
    assert table_of(catalog).unknown == NEW


def test_the_next_protocol_is_refused_by_name() -> None:
    for thing in (example(Update), example(Catalog), example(PartedSnapshot)):
        data = (PROTOCOL + 1).to_bytes(2, "little") + encoded(thing)[2:]
        with pytest.raises(CatalogTooNew, match=rf"protocol version {PROTOCOL + 1}.*up to"):
            decode(data)


def _object(type_id: int, version: int, body: bytes) -> bytes:
    return type_id.to_bytes(2, "little") + varint(version) + varint(len(body)) + body


def _update_with(entry: bytes) -> bytes:
    data = encode_update(example(Update))  # type: ignore[arg-type]
    body = data[2 + 2 + 1 + 1 :] + varint(5) + varint(len(entry)) + entry
    return data[:2] + _object(1, 1, body)


@pytest.mark.parametrize(
    "entry",
    [
        _object(32, 2, b"\x01\x01\x05"),  # an entry in a newer format
        _object(32, 1, b"\x01\x01\x05\x02\x00"),  # an entry with one more field
        _object(99, 1, b""),  # an entry of a new kind
        _object(34, 1, b"\x01\x01\x63" + b"\x02\x00"),  # a change of a new kind
    ],
)
def test_an_entry_that_is_understood_in_part_is_refused_whole(entry: bytes) -> None:
    with pytest.raises(CatalogTooNew):
        decode(_update_with(entry))
    assert decode_update(_update_with(_object(32, 1, b"\x01\x01\x05"))).entries == (IdsTaken(5),)


# -- zones that wait ---------------------------------------------------------------------------


def _zone_with(version: int, more: bytes) -> bytes:
    """An update that creates a zone, with fields behind those of the first format version."""
    fields = b"\x01\x01\x03\x02\x01z\x03\x01\x03\x04\x01\x08"
    zone = _object(16, version, fields + more)
    return _update_with(_object(33, 1, varint(1) + varint(len(zone)) + zone))


def _zone_in(data: bytes) -> Zone:
    [entry] = decode_update(data).entries
    assert isinstance(entry, NewZone)
    return entry.zone


def test_a_zone_with_the_times_of_the_first_release_has_its_bytes() -> None:
    # given a zone as the first release wrote it
    data = _zone_with(1, b"")
    zone = _zone_in(data)
    # then it waits as long as a zone that says nothing
    assert (zone.scale_up_ms, zone.scale_down_ms) == (5_000, 600_000)
    # and is written as it was, also after its times were others for a while
    changed = replace(zone, scale_up_ms=0, scale_down_ms=None)
    for again in (zone, replace(changed, scale_up_ms=5_000, scale_down_ms=600_000)):
        update = replace(decode_update(data), entries=(NewZone(again),))
        assert encode_update(update) == data


@pytest.mark.parametrize(
    ("up", "down", "more"),
    [
        (0, 600_000, b"\x07\x01\x00"),
        (300, 600_000, b"\x07\x02\xac\x02"),
        (5_000, None, b"\x08\x01\x00"),
        (5_000, 0, b"\x08\x01\x01"),
        (1, 126, b"\x07\x01\x01\x08\x01\x7f"),
    ],
)
def test_times_of_a_zone_are_fields_of_the_second_format_version(
    up: int, down: int | None, more: bytes
) -> None:
    data = _zone_with(2, more)
    zone = _zone_in(data)
    assert (zone.scale_up_ms, zone.scale_down_ms) == (up, down)
    assert zone.unknown == Unknown()
    assert encode_update(decode_update(data)) == data


def test_the_first_release_carries_the_times_of_a_zone_along() -> None:
    # given a registry that knows zones as the first release did
    old = Registry()
    first = next(one for one in SERIALIZERS if one.kind is Zone)
    old.serializer(16, Zone, version=1, since="0.1.0", fields=first.fields, build=first.build)
    old.check([Zone])
    waiting = replace(CATALOG.all_zones()[0], scale_up_ms=7, scale_down_ms=None)
    # when it changes a zone with times of its own
    seen = old.decode(Cursor(REGISTRY.encode(waiting)), Zone)
    assert (seen.scale_up_ms, seen.unknown.version) == (5_000, 2)
    written = old.encode(replace(seen, replicas=5))
    # then this release finds them as they were
    assert REGISTRY.decode(Cursor(written), Zone) == replace(waiting, replicas=5)


@pytest.mark.parametrize(
    "data",
    [
        _zone_with(1, b"\x07\x01\x00"),  # a field before its version
        _zone_with(2, b"\x07" + varint(10) + b"\xff" * 9 + b"\x01"),  # more than a hundred years
        _zone_with(2, b"\x08" + varint(10) + b"\xff" * 9 + b"\x01"),
    ],
)
def test_times_of_a_zone_that_no_release_writes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CatalogUnreadable):
        decode(data)


# -- damage -------------------------------------------------------------------------------------

VALUES = [encoded(example(s.kind, s.version)) for s in SERIALIZERS]


@pytest.mark.parametrize("data", VALUES, ids=[golden_name(s) for s in SERIALIZERS])
def test_bytes_that_are_cut_short_or_too_many_are_corrupt_by_name(data: bytes) -> None:
    for wrong in [*(data[:size] for size in range(len(data))), data + b"\0"]:
        with pytest.raises(Corrupt):
            decode(wrong)


@pytest.mark.slow
@settings(max_examples=1_000)
@given(st.sampled_from(VALUES), st.data())
def test_damaged_bytes_give_a_named_error_or_a_value_that_can_be_used(
    data: bytes, draw: st.DataObject
) -> None:
    # given bytes with some of them changed, cut out or put in
    wrong = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, max(len(wrong) - 1, 0)))
        match draw.draw(st.sampled_from(["flip", "cut", "insert"])):
            case "flip" if wrong:
                wrong[at] ^= draw.draw(st.integers(1, 255))
            case "cut":
                del wrong[at : at + draw.draw(st.integers(1, 8))]
            case _:
                wrong[at:at] = draw.draw(st.binary(max_size=8))
    # when they are read, and applied if they still look like something
    try:
        found = decode(bytes(wrong))
        if isinstance(found, PartedSnapshot):
            assert 1 <= found.parts <= PARTS_MAX
            return
        if isinstance(found, Snapshot):
            after = found.catalog
        else:
            before = replace(CATALOG, version=CatalogVersion(found.version - 1))
            after = apply_update(before, found, time=HybridTime(CATALOG.time + 1))
        # then nothing but a named error comes of it
        again = encode_snapshot(Snapshot(after))
        assert decode_snapshot(again).catalog == after
    except (Corrupt, CatalogTooNew):
        return


@given(st.binary(max_size=60))
def test_any_bytes_give_a_named_error(data: bytes) -> None:
    for start in (b"", b"\1\0\1\0\1", b"\1\0\2\0\1", b"\1\0\3\0\1"):
        with pytest.raises((Corrupt, CatalogTooNew)):
            decode(start + data)


@pytest.mark.parametrize(
    "entry",
    [
        _object(32, 1, b"\x01\x01\x05\x01\x01\x05"),  # a tag twice
        _object(34, 1, b"\x02\x00\x01\x01\x01"),  # tags that go down
        _object(32, 1, b"\x00\x01\x05"),  # no tag
        _object(32, 1, b""),  # a field is missing
        _object(32, 0, b"\x01\x01\x05"),  # no format version
        _object(32, 1, b"\x01\x02\x05\x05"),  # a number and something behind it
        _object(31, 1, b"\x01\x01\x05"),  # a type between those there are
        _object(16, 1, b""),  # a zone where an entry should be
    ],
)
def test_bytes_in_a_form_that_nobody_writes_are_corrupt(entry: bytes) -> None:
    with pytest.raises(CatalogUnreadable):
        decode(_update_with(entry))


def test_an_update_is_no_snapshot() -> None:
    with pytest.raises(CatalogUnreadable):
        decode_snapshot(encoded(example(Update)))
    with pytest.raises(CatalogUnreadable, match="PartedSnapshot stands"):
        decode_snapshot(encoded(example(PartedSnapshot)))
    with pytest.raises(CatalogUnreadable):
        decode_update(encoded(example(Catalog)))


def test_entries_that_do_not_fit_are_not_what_was_written() -> None:
    # given what was evaluated against one catalog
    before = fresh(orders())
    entries = evaluate(before, [RenameTable(name="orders", to="bills")]).entries
    update = replace(update_of(before), entries=entries)
    # when it is applied to another
    other = replace(fresh(), version=before.version)
    with pytest.raises(CatalogUnreadable, match="table 3"):
        apply_update(other, update, time=HybridTime(other.time + 1))
