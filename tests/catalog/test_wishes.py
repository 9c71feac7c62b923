"""Commands as JSON: what can be said, and what is refused."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from catalog.making import fresh, orders
from lowmark.catalog import (
    AddColumns,
    AlterColumn,
    AlterZone,
    CatalogRefused,
    CreateTable,
    CreateZone,
    DropColumns,
    DropSchema,
    NewColumn,
    PartitionsFixed,
    Plain,
    read_commands,
)
from lowmark.catalog.commands import COMMAND_NAMES, read_command


def test_a_table_is_written_down_with_types_and_defaults_as_text() -> None:
    # given a table as a person writes it
    wish = {
        "create_table": {
            "name": "orders",
            "key": ["id"],
            "columns": [
                {"name": "id", "type": "int64", "required": True},
                {"name": "price", "type": "decimal(10,2)", "default": "1.50"},
                {"name": "day", "type": "date", "default": "2024-02-29"},
            ],
            "options": {"compaction": "auto"},
        }
    }
    # when it is read
    command = read_command(wish)
    # then it is the command that a program would have made
    assert command == CreateTable(
        name="orders",
        key=("id",),
        columns=(
            NewColumn.of("id", "int64", required=True),
            NewColumn.of("price", "decimal(10,2)", default=Decimal("1.50")),
            NewColumn.of("day", "date", default=date(2024, 2, 29)),
        ),
        options={"compaction": "auto"},
    )


def test_a_list_stays_a_list_and_a_single_command_becomes_one() -> None:
    wishes = [
        {"add_columns": {"table": "t", "columns": [{"name": "a", "type": "int32"}]}},
        {"alter_column": {"table": "t", "column": "a", "type": "int64", "default": "7"}},
        {"drop_columns": {"table": "t", "columns": ["a"]}},
    ]
    assert read_commands(wishes) == (
        AddColumns(table="t", columns=(NewColumn.of("a", "int32"),)),
        AlterColumn(table="t", column="a", type=Plain.INT64, default=7),
        DropColumns(table="t", columns=("a",)),
    )
    single = {"drop_schema": {"name": "s", "cascade": True}}
    assert read_commands(single) == (DropSchema(name="s", cascade=True),)


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (3, "one key"),
        ({}, "one key"),
        ({"drop_table": {}, "drop_zone": {}}, "one key"),
        ({"destroy": {}}, "no command 'destroy'"),
        ({"remove_index": {"index_id": 1}}, "no command 'remove_index'"),
        ({"drop_table": "orders"}, "are an object"),
        ({"create_table": {"name": "t"}}, "needs columns"),
        ({"drop_table": {"name": 3}}, "Expected `str`"),
        ({"drop_table": {"name": "t", "gently": True}}, "no field 'gently'"),
        ({"create_table": {"name": "t", "columns": [{"name": "a"}]}}, "missing required field"),
        ({"create_table": {"name": "t", "columns": [], "options": 3}}, "are an object"),
        ({"alter_column": {"table": "t", "column": "a", "type": 8}}, "is text"),
        ({"create_zone": {"name": "z", "scale_down_ms": "soon"}}, "scale_down_ms of create_zone"),
        ({"create_zone": {"name": "z", "scale_down_ms": None}}, "scale_down_ms of create_zone"),
        ({"alter_column": {"table": "t", "column": "a", "type": "int9"}}, "no type int9"),
    ],
)
def test_what_is_no_command_is_refused_by_name(wish: object, said: str) -> None:
    with pytest.raises(CatalogRefused, match=said):
        read_command(wish)


def test_the_internal_steps_can_not_be_wished_for() -> None:
    assert {"start_building_index", "make_index_available", "trim_table_schemas"}.isdisjoint(
        COMMAND_NAMES
    )
    assert len(COMMAND_NAMES) == 19


def test_a_zone_s_times_are_milliseconds_or_never() -> None:
    wishes = [
        {"create_zone": {"name": "z", "scale_up_ms": 0, "scale_down_ms": "never"}},
        {"alter_zone": {"name": "z", "scale_down_ms": 1_000}},
        {"alter_zone": {"name": "z", "scale_down_ms": None}},
    ]
    assert read_commands(wishes) == (
        CreateZone(name="z", scale_up_ms=0, scale_down_ms="never"),
        AlterZone(name="z", scale_down_ms=1_000),
        AlterZone(name="z"),
    )


def test_another_number_of_partitions_can_be_wished_for_and_is_refused_by_name() -> None:
    command = read_command({"alter_table": {"name": "orders", "partitions": 16}})
    with pytest.raises(PartitionsFixed, match="orders can't get 16 partitions"):
        command.entries(fresh(orders()))
    with pytest.raises(PartitionsFixed, match="orders can't get 16 partitions"):
        read_command({"set_table_options": {"table": "orders", "options": {"partitions": 16}}})
