"""The catalog in words."""

from __future__ import annotations

import json

from catalog.making import execute, fresh, orders, table_of, update_of
from lowmark.catalog import (
    AddColumns,
    AlterColumn,
    AlterZone,
    Command,
    CreateIndex,
    CreateSchema,
    CreateZone,
    DropColumns,
    DropIndex,
    DropSchema,
    DropTable,
    DropZone,
    NewColumn,
    Plain,
    RenameColumn,
    RenameIndex,
    RenameTable,
    RenameZone,
    SetDefaultZone,
    SetTableOptions,
    describe,
    diff,
    to_builtins,
)
from lowmark.catalog.catalog import EMPTY, CatalogVersion
from lowmark.catalog.commands import INITIAL_COMMANDS, evaluate
from lowmark.catalog.descriptors import IndexId
from lowmark.catalog.history import TOKEN_BYTES, Update, apply_update
from lowmark.catalog.index_commands import StartBuildingIndex
from lowmark.catalog.table_commands import TrimTableSchemas
from lowmark.runtime import HybridTime


def test_every_entry_has_a_line() -> None:
    catalog = fresh(orders(), CreateZone(name="used"))
    commands: list[Command] = [
        CreateSchema(name="sales"),
        orders("bills", schema="sales", key=(), partitions=1),
        CreateZone(name="z", replicas=1, node_filter="rack = r1"),
        AlterZone(name="z", replicas=5, node_filter=""),
        AlterZone(name="z", scale_up_ms=60_000, scale_down_ms="never"),
        AlterZone(name="z", scale_down_ms=0),
        CreateZone(name="slow", scale_up_ms=90_000, scale_down_ms="never"),
        RenameZone(name="z", to="y"),
        SetDefaultZone(name="y"),
        SetDefaultZone(name="default"),
        DropZone(name="y"),
        CreateIndex(name="by_city", table="orders", columns=("city", "id"), unique=True),
        StartBuildingIndex(index_id=IndexId(9)),
        RenameIndex(name="by_city", to="by_town"),
        DropIndex(name="by_town"),
        AddColumns(table="orders", columns=(NewColumn.of("n", "int8", required=True, default=5),)),
        AlterColumn(table="orders", column="n", type=Plain.INT16),
        RenameColumn(table="orders", column="n", to="m"),
        DropColumns(table="orders", columns=("m", "small")),
        SetTableOptions(table="orders", options={"compaction": "auto", "min_lag_ms": 1}),
        SetTableOptions(table="orders", options={"compaction": None}),
        TrimTableSchemas(table_id=table_of(catalog).id, keep_from=4),
        RenameTable(name="orders", to="deals"),
        DropTable(name="deals"),
        DropSchema(name="sales", cascade=True),
    ]
    assert describe(catalog, evaluate(catalog, commands).entries) == [
        "created schema sales",
        "created table sales.bills (4 columns, no key, 1 partition)",
        "created zone z (1 replica, 8 partitions, nodes with rack = r1)",
        "altered zone z: replicas 1 → 5, node_filter rack = r1 → none",
        "altered zone z: scale_up 5 seconds → 1 minute, scale_down 10 minutes → never",
        "altered zone z: scale_down never → 0 ms",
        "created zone slow (3 replicas, 8 partitions, scale up 90 seconds, scale down never)",
        "renamed zone z to y",
        "made zone y the default",
        "made zone default the default",
        "dropped zone y",
        "created index public.by_city (unique on orders: city, id)",
        "index public.by_city is building now",
        "renamed index public.by_city to by_town",
        "removed index public.by_town",
        "added to table public.orders: n int8 not null default 5",
        (
            "altered column n of table public.orders:"
            " n int8 not null default 5 → n int16 not null default 5"
        ),
        "renamed column n of table public.orders to m",
        "dropped from table public.orders: small, m",
        "set options of table public.orders: compaction none → auto, min_lag_ms none → 1",
        "set options of table public.orders: compaction auto → none",
        "trimmed schema versions 1 to 3 of table public.orders",
        "renamed table public.orders to deals",
        "dropped table public.deals",
        "dropped table sales.bills",
        "dropped schema sales",
    ]


def test_the_first_version_in_words() -> None:
    lines = describe(EMPTY, update_of(EMPTY, *INITIAL_COMMANDS).entries)
    assert lines == [
        "created schema public",
        "created zone default (3 replicas, 8 partitions)",
        "made zone default the default",
    ]


def test_two_versions_are_compared_whatever_happened_in_between() -> None:
    old = fresh(orders(), orders("gone"), CreateZone(name="z"))
    city = CreateIndex(name="i", table="deals", columns=("town",))
    new = old
    for command in (
        RenameTable(name="orders", to="deals"),
        RenameColumn(table="deals", column="city", to="town"),
        DropColumns(table="deals", columns=("small",)),
        AddColumns(table="deals", columns=(NewColumn.of("n", "int8"),)),
        SetTableOptions(table="deals", options={"compression": "lz4"}),
        city,
        DropTable(name="gone"),
        AlterZone(name="z", replicas=5, scale_down_ms="never"),
        SetDefaultZone(name="z"),
        CreateSchema(name="s"),
    ):
        new = execute(new, command)
    assert [difference.text for difference in diff(old, new)] == [
        "zone z: replicas 3 → 5, scale_down 10 minutes → never",
        "created schema s",
        (
            "table public.deals: name orders → deals,"
            " columns city (name city → town), -small, +n int8,"
            " options none → compression=lz4, schema_version 1 → 4"
        ),
        "dropped table public.gone",
        "created index public.i (on deals: town)",
        "default zone: default → z",
    ]
    assert [(found.object_kind, found.change) for found in diff(old, new)][2:4] == [
        ("table", "changed"),
        ("table", "dropped"),
    ]
    assert diff(new, new) == []


def test_a_catalog_becomes_plain_values_for_json() -> None:
    catalog = execute(fresh(), orders(), CreateIndex(name="i", table="orders", columns=("city",)))
    plain = json.loads(json.dumps(to_builtins(catalog)))
    assert plain["default_zone"] == "default"
    [zone] = plain["zones"]
    assert (zone["scale_up_ms"], zone["scale_down_ms"]) == (5_000, 600_000)
    [table] = plain["tables"]
    assert (table["schema"], table["name"], table["zone"]) == ("public", "orders", "default")
    assert table["columns"][2] == {
        "id": 3,
        "name": "amount",
        "type": "decimal(10,2)",
        "required": False,
        "default": None,
    }
    [index] = plain["indexes"]
    assert (index["columns"], index["status"]) == (["city"], "available")


def test_the_default_zone_is_told_in_both_directions() -> None:
    first = apply_update(EMPTY, initial(), time=HybridTime(5))
    there = [one.text for one in diff(EMPTY, first) if one.object_kind == "default zone"]
    back = [one.text for one in diff(first, EMPTY) if one.object_kind == "default zone"]
    assert there == ["default zone: none → default"]
    assert back == ["default zone: default → none"]


def initial() -> Update:
    entries = evaluate(EMPTY, INITIAL_COMMANDS).entries
    token = bytes(TOKEN_BYTES)
    version = CatalogVersion(1)
    return Update(version=version, delay_ms=0, author=1, token=token, entries=entries)
