"""The page on the catalog's bytes has every type and tag, and its example is real."""

from __future__ import annotations

import re

import pytest

from docs.example_catalog import UPDATE
from docs.pages import FORMATS, blocks, hex_lines, tables
from lowmark.catalog.descriptors import IndexStatus
from lowmark.catalog.entries import IndexChange, TableChange, ZoneChange
from lowmark.catalog.serialization import PROTOCOL, Field, Serializer
from lowmark.catalog.serializers import REGISTRY, decode_update, encode_update

PAGE = "catalog.md"
NEWEST = list({serializer.kind: serializer for serializer in REGISTRY}.values())
TAGS = ("tag", "field", "content", "left out if", "meaning")


def left_out(field: Field) -> str:
    if field.required:
        return ""
    words = {"()": "empty", "''": "empty", "None": "none", "False": "false"}
    shown = repr(field.default)
    return shown if type(field.default) is int else words[shown]


def test_the_page_lists_every_type_with_its_version_and_its_release() -> None:
    [table] = [t for t in tables(PAGE) if t.columns[:3] == ("type", "name", "format version")]
    assert [row[:4] for row in table.rows] == [
        (str(s.type_id), s.kind.__name__, str(s.version), s.since) for s in NEWEST
    ]


@pytest.mark.parametrize("serializer", NEWEST, ids=lambda serializer: serializer.kind.__name__)
def test_a_type_has_the_tags_that_the_page_says(serializer: Serializer) -> None:
    [table] = [
        t for t in tables(PAGE) if t.columns == TAGS and t.heading == serializer.kind.__name__
    ]
    assert [row[:4] for row in table.rows] == [
        (str(field.tag), f"`{field.name}`", field.codec.name, left_out(field))
        for field in serializer.fields
    ]


def test_every_table_of_tags_belongs_to_a_type() -> None:
    on_page = {table.heading for table in tables(PAGE) if table.columns == TAGS}
    assert on_page == {serializer.kind.__name__ for serializer in NEWEST}


def test_every_content_that_a_field_may_have_is_explained() -> None:
    [table] = [t for t in tables(PAGE) if t.columns[0] == "content"]
    used = {field.codec.name for serializer in REGISTRY for field in serializer.fields}
    assert {row[0] for row in table.rows} == used


@pytest.mark.parametrize(
    ("heading", "name", "kind"),
    [
        ("Index", "status", IndexStatus),
        ("ChangedZone", "change", ZoneChange),
        ("ChangedTable", "change", TableChange),
        ("ChangedIndex", "change", IndexChange),
    ],
)
def test_numbers_that_stand_for_something_are_explained(
    heading: str, name: str, kind: type[IndexStatus]
) -> None:
    [said] = [
        row[4]
        for table in tables(PAGE)
        if table.columns == TAGS and table.heading == heading
        for row in table.rows
        if row[1] == f"`{name}`"
    ]
    numbers = [int(number) for number in re.findall(r"\d+", said)]
    assert numbers == [member.value for member in kind]


def test_the_protocol_version_is_the_one_on_the_page() -> None:
    assert f"**The protocol version**, now {PROTOCOL}," in (FORMATS / PAGE).read_text()


def test_the_shown_update_is_read_and_written_again_byte_for_byte() -> None:
    [block] = [b for b in blocks(PAGE) if b.language == "hex"]
    data = b"".join(data for _, data, _ in hex_lines(block.text))
    assert decode_update(data) == UPDATE
    assert encode_update(UPDATE) == data
