"""What accepted commands do."""

from __future__ import annotations

import pytest

from catalog.making import DELAY_MS, STEP, execute, fresh, orders, table_of, update_of
from lowmark.catalog import (
    AddColumns,
    AlterColumn,
    AlterTable,
    AlterZone,
    Catalog,
    ColumnId,
    Command,
    CreateIndex,
    CreateSchema,
    CreateTable,
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
    parse_type,
)
from lowmark.catalog.catalog import EMPTY
from lowmark.catalog.commands import INITIAL_COMMANDS, check_buildable, evaluate
from lowmark.catalog.descriptors import Index, IndexStatus
from lowmark.catalog.durations import DURATION_MS_MAX
from lowmark.catalog.errors import CatalogUnreadable, IndexNotBuildable
from lowmark.catalog.history import apply_update
from lowmark.catalog.index_commands import MakeIndexAvailable, RemoveIndex, StartBuildingIndex
from lowmark.catalog.options import OptionValue
from lowmark.catalog.table_commands import TrimTableSchemas
from lowmark.runtime import HybridTime

CITY = CreateIndex(name="by_city", table="orders", columns=("city",))


def index_of(catalog: Catalog, name: str = "by_city") -> Index:
    index = catalog.index_named("public", name)
    assert index is not None
    return index


# -- versions -----------------------------------------------------------------------------------


def test_the_first_version_has_a_schema_and_a_default_zone() -> None:
    assert (EMPTY.version, EMPTY.activates_at, len(EMPTY.zones)) == (0, 1, 0)
    catalog = fresh()
    assert catalog.version == 1
    assert [schema.name for schema in catalog.all_schemas()] == ["public"]
    [zone] = catalog.all_zones()
    assert (zone.name, zone.replicas, zone.partitions, zone.node_filter) == ("default", 3, 8, "")
    assert catalog.default_zone == zone
    assert catalog.activates_at == catalog.time == zone.updated_at


def test_a_batch_is_one_version_and_each_command_sees_those_before_it() -> None:
    catalog = fresh()
    commands: list[Command] = [
        CreateSchema(name="sales"),
        orders(schema="sales"),
        RenameTable(name="orders", to="bills", schema="sales"),
        AddColumns(table="bills", columns=(NewColumn.of("note", "string"),), schema="sales"),
    ]
    after = execute(catalog, *commands)
    assert after.version == 2
    assert table_of(after, "bills", "sales").latest.number == 2
    assert after.table_named("sales", "orders") is None


def test_a_version_is_in_force_its_delay_after_its_write() -> None:
    catalog = fresh()
    after = execute(catalog, orders())
    assert after.time == catalog.time + STEP
    assert after.activates_at == after.time + (DELAY_MS << 16)
    assert table_of(after).updated_at == after.time


def test_versions_come_into_force_in_order_whatever_their_delays() -> None:
    # given a version with a long delay
    catalog = fresh()
    slow = update_of(catalog, CreateSchema(name="a"), delay_ms=10_000)
    catalog = apply_update(catalog, slow, time=HybridTime(catalog.time + 1))
    # when one without a delay follows at once
    quick = update_of(catalog, CreateSchema(name="b"), delay_ms=0)
    after = apply_update(catalog, quick, time=HybridTime(catalog.time + 1))
    # then it waits for its predecessor
    assert after.activates_at == catalog.activates_at + 1


def test_an_update_that_does_not_follow_is_not_what_was_written() -> None:
    catalog = fresh()
    update = update_of(catalog, orders())
    with pytest.raises(CatalogUnreadable):
        apply_update(EMPTY, update, time=HybridTime(5))
    after = apply_update(catalog, update, time=HybridTime(catalog.time + 1))
    with pytest.raises(CatalogUnreadable):
        apply_update(after, update, time=HybridTime(catalog.time + 2))


def test_older_catalogs_stay_as_they_were() -> None:
    catalog = fresh(orders())
    before = table_of(catalog)
    execute(catalog, DropTable(name="orders"))
    execute(catalog, AddColumns(table="orders", columns=(NewColumn.of("n", "int8"),)))
    assert table_of(catalog) == before


NOTHING_TO_DO: list[Command] = [
    CreateSchema(name="public", if_not_exists=True),
    DropSchema(name="no", if_exists=True),
    CreateZone(name="default", if_not_exists=True),
    AlterZone(name="default"),
    AlterZone(name="default", replicas=3, partitions=8, node_filter=" "),
    AlterZone(name="default", scale_up_ms=5_000, scale_down_ms=600_000),
    AlterZone(name="no", replicas=1, if_exists=True),
    AlterTable(name="orders", partitions=8),
    AlterTable(name="no", partitions=9, if_exists=True),
    RenameZone(name="no", to="z", if_exists=True),
    RenameZone(name="default", to="default"),
    SetDefaultZone(name="default"),
    DropZone(name="no", if_exists=True),
    orders(if_not_exists=True),
    DropTable(name="no", if_exists=True),
    DropTable(name="no", schema="no", if_exists=True),
    RenameTable(name="no", to="n", if_exists=True),
    RenameTable(name="orders", to="orders"),
    SetTableOptions(table="orders", options={}),
    SetTableOptions(table="orders", options={"compaction": None}),
    SetTableOptions(table="no", options={"compaction": "off"}, if_exists=True),
    TrimTableSchemas(table_id=table_of(fresh(orders())).id, keep_from=1),
    AddColumns(table="orders", columns=(NewColumn.of("city", "int8"),), if_not_exists=True),
    AddColumns(table="no", columns=(NewColumn.of("c", "int8"),), if_table_exists=True),
    DropColumns(table="orders", columns=("no",), if_exists=True),
    DropColumns(table="no", columns=("no",), if_table_exists=True),
    RenameColumn(table="orders", column="city", to="city"),
    RenameColumn(table="no", column="city", to="town", if_table_exists=True),
    AlterColumn(table="orders", column="small"),
    AlterColumn(table="orders", column="small", type=Plain.INT16, required=False, default=None),
    AlterColumn(table="no", column="small", required=False, if_table_exists=True),
    CreateIndex(name="by_city", table="orders", columns=("id",), if_not_exists=True),
    DropIndex(name="no", if_exists=True),
    RenameIndex(name="no", to="n", if_exists=True),
    RenameIndex(name="by_city", to="by_city"),
]


@pytest.mark.parametrize("command", NOTHING_TO_DO, ids=lambda command: type(command).__name__)
def test_a_command_with_nothing_to_do_makes_no_version(command: Command) -> None:
    catalog = fresh(orders(), CITY)
    assert evaluate(catalog, [command]).entries == ()
    assert evaluate(catalog, [command]).applied == (False,)
    assert execute(catalog, command) is catalog


def test_a_batch_says_which_of_its_commands_had_something_to_do() -> None:
    create, again = orders(), orders(if_not_exists=True)
    assert evaluate(fresh(), [create, again]).applied == (True, False)
    assert evaluate(fresh(), []).applied == ()


# -- tables -------------------------------------------------------------------------------------


def test_a_table_takes_partitions_and_zone_from_the_default_zone_and_keeps_them() -> None:
    # given a zone that is the default for a while
    catalog = fresh(
        CreateZone(name="wide", partitions=32, replicas=5),
        SetDefaultZone(name="wide"),
        orders("one"),
        AlterZone(name="wide", partitions=64),
        orders("two", partitions=3),
        SetDefaultZone(name="default"),
        orders("three"),
        orders("four", zone="wide"),
    )
    # then each table has what was right when it was made
    made = {table.name: table.partitions for table in catalog.all_tables()}
    assert made == {"one": 32, "two": 3, "three": 8, "four": 64}
    wide = catalog.zone_named("wide")
    assert wide is not None
    assert [table.name for table in catalog.tables_of_zone(wide.id)] == ["one", "two", "four"]


def test_a_table_may_have_no_key_or_several_key_columns() -> None:
    catalog = fresh(
        orders("none", key=()),
        CreateTable(
            name="both",
            columns=tuple(NewColumn.of(name, "string", required=True) for name in ("a", "b")),
            key=("b", "a"),
        ),
    )
    assert table_of(catalog, "none").key == ()
    assert [column.name for column in table_of(catalog, "both").key_columns] == ["b", "a"]


def test_whatever_is_listed_is_listed_by_id() -> None:
    # given so many that a map would not keep them in order by itself
    catalog = execute(fresh(), *(orders(f"t{at}") for at in range(300)))
    indexes = [CreateIndex(name=f"i{at}", table="t0", columns=("city",)) for at in range(64)]
    catalog = execute(catalog, *indexes)
    zone, schema = catalog.all_zones()[0], catalog.all_schemas()[0]
    # then every list is sorted
    for listed in (
        catalog.all_tables(),
        catalog.tables_of_zone(zone.id),
        catalog.tables_of_schema(schema.id),
    ):
        assert [table.name for table in listed] == [f"t{at}" for at in range(300)]
    for found in (catalog.all_indexes(), catalog.indexes_of_table(table_of(catalog, "t0").id)):
        assert [index.name for index in found] == [f"i{at}" for at in range(64)]


def test_ids_are_never_used_again() -> None:
    catalog = fresh(orders())
    first = table_of(catalog).id
    catalog = execute(catalog, DropTable(name="orders"))
    assert catalog.table(first) is None
    catalog = execute(catalog, orders())
    assert table_of(catalog).id > first


def test_names_go_free_with_what_had_them() -> None:
    catalog = fresh(orders(), CITY, RenameTable(name="orders", to="bills"))
    catalog = execute(catalog, RenameIndex(name="by_city", to="orders"))
    assert index_of(catalog, "orders").table_id == table_of(catalog, "bills").id
    catalog = execute(catalog, DropTable(name="bills"))
    assert table_of(execute(catalog, orders())).name == "orders"


def test_one_name_can_be_in_two_schemas() -> None:
    catalog = fresh(CreateSchema(name="sales"), orders(), orders(schema="sales"))
    assert table_of(catalog).id != table_of(catalog, schema="sales").id


def test_dropping_a_schema_with_cascade_takes_all_that_is_in_it() -> None:
    catalog = fresh(CreateSchema(name="sales"), orders("a", schema="sales"), orders("b"))
    catalog = execute(catalog, CreateIndex(name="i", table="a", columns=("city",), schema="sales"))
    after = execute(catalog, DropSchema(name="sales", cascade=True))
    assert [table.name for table in after.all_tables()] == ["b"]
    assert not after.indexes
    assert after.schema_named("sales") is None
    # and the zone knows that it is gone
    assert after.default_zone is not None
    assert after.tables_in_zone(after.default_zone.id) == 1


def test_options_are_set_one_by_one_and_taken_back() -> None:
    catalog = fresh(orders(options={"compression": "zstd"}))
    catalog = execute(
        catalog, SetTableOptions(table="orders", options={"min_lag_ms": "07", "compaction": "off"})
    )
    table = table_of(catalog)
    assert table.options == (("compaction", "off"), ("compression", "zstd"), ("min_lag_ms", "7"))
    assert (table.settings.compaction, table.settings.min_lag_ms) == ("off", 7)
    assert table.settings.retention_ms is None
    assert table.latest.number == 1
    catalog = execute(catalog, SetTableOptions(table="orders", options={"compression": None}))
    assert table_of(catalog).settings.compression == "none"


def test_retention_is_for_tables_without_a_key_or_without_compaction() -> None:
    catalog = fresh(orders("log", key=(), options={"retention_ms": 1}), orders())
    both: dict[str, OptionValue | None] = {"retention_bytes": 10, "compaction": "off"}
    catalog = execute(catalog, SetTableOptions(table="orders", options=both))
    assert table_of(catalog).settings.retention_bytes == 10
    assert table_of(catalog, "log").settings.retention_ms == 1


# -- columns ------------------------------------------------------------------------------------


def test_each_change_of_columns_makes_one_schema_version_and_older_ones_stay() -> None:
    catalog = fresh(orders())
    first = table_of(catalog).latest
    two = (NewColumn.of("a", "int8"), NewColumn.of("b", "bool", required=True, default=True))
    for command in (
        AddColumns(table="orders", columns=two),
        DropColumns(table="orders", columns=("a", "small")),
        RenameColumn(table="orders", column="id", to="order_id"),
        AlterColumn(table="orders", column="amount", type=parse_type("decimal(12,2)")),
    ):
        catalog = execute(catalog, command)
    catalog = execute(catalog, RenameTable(name="orders", to="bills"))
    table = table_of(catalog, "bills")
    assert [schema.number for schema in table.schemas] == [1, 2, 3, 4, 5]
    assert table.schema_version(1) == first
    assert table.schema_version(0) is table.schema_version(6) is None
    assert [column.name for column in table.columns] == ["order_id", "city", "amount", "b"]
    assert [column.id for column in table.columns] == [1, 2, 3, 6]
    assert [column.name for column in table.key_columns] == ["order_id"]


def test_a_column_that_is_created_again_is_another_one() -> None:
    catalog = fresh(
        orders(),
        DropColumns(table="orders", columns=("city",)),
        AddColumns(table="orders", columns=(NewColumn.of("city", "int8"),)),
    )
    old = table_of(catalog).schemas[0].column_named("city")
    new = table_of(catalog).latest.column_named("city")
    assert old is not None and new is not None and old.id != new.id  # noqa: PT018
    # also when it had the highest id
    catalog = execute(catalog, DropColumns(table="orders", columns=("city",)))
    catalog = execute(catalog, AddColumns(table="orders", columns=(NewColumn.of("x", "int8"),)))
    assert table_of(catalog).columns[-1].id == new.id + 1


def test_only_the_missing_columns_are_added_if_not_exists() -> None:
    columns = (NewColumn.of("city", "int8"), NewColumn.of("zip", "string"))
    catalog = fresh(orders(), AddColumns(table="orders", columns=columns, if_not_exists=True))
    table = table_of(catalog)
    assert [column.name for column in table.columns] == ["id", "city", "amount", "small", "zip"]
    assert table.columns[1].type is Plain.STRING


def test_older_rows_go_on_showing_the_default_that_a_column_came_with() -> None:
    column = NewColumn.of("n", "int8", required=True, default=5)
    catalog = fresh(
        orders(),
        AddColumns(table="orders", columns=(column,)),
        AlterColumn(table="orders", column="n", default=7),
        AlterColumn(table="orders", column="n", default=None),
    )
    table = table_of(catalog)
    assert table.columns[-1].default is None
    assert table.filling(table.columns[-1].id) == 5
    assert table.filling(ColumnId(1)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int8", "int16"),
        ("int8", "int64"),
        ("int32", "int64"),
        ("float32", "float64"),
        ("decimal(5,2)", "decimal(6,2)"),
    ],
)
def test_a_column_widens_and_keeps_its_default(old: str, new: str) -> None:
    column = NewColumn.of("n", old, required=True, default=1)
    catalog = fresh(
        CreateTable(name="t", columns=(column,)),
        AlterColumn(table="t", column="n", type=parse_type(new)),
    )
    [after] = table_of(catalog, "t").columns
    assert (after.type, after.default, after.required) == (parse_type(new), 1, True)


def test_a_column_may_become_null_but_never_required() -> None:
    column = NewColumn.of("n", "int8", required=True)
    catalog = fresh(
        CreateTable(name="t", columns=(column,)),
        AlterColumn(table="t", column="n", required=False),
    )
    assert not table_of(catalog, "t").columns[0].required


def test_trimming_forgets_the_schema_versions_that_no_row_refers_to() -> None:
    catalog = fresh(orders())
    for name in ("a", "b", "c"):
        column = NewColumn.of(name, "int8")
        catalog = execute(catalog, AddColumns(table="orders", columns=(column,)))
    before = table_of(catalog)
    after = table_of(execute(catalog, TrimTableSchemas(table_id=before.id, keep_from=3)))
    assert [schema.number for schema in after.schemas] == [3, 4]
    assert after.schema_version(3) == before.schema_version(3)
    assert after.schema_version(2) is None
    assert after.next_column_id == before.next_column_id


# -- indexes ------------------------------------------------------------------------------------


def test_an_index_goes_through_its_life_step_by_step() -> None:
    catalog = fresh(orders(), CITY)
    index_id = index_of(catalog).id
    seen = [index_of(catalog).status]
    for command in (
        StartBuildingIndex(index_id=index_id),
        MakeIndexAvailable(index_id=index_id),
        DropIndex(name="by_city"),
    ):
        catalog = execute(catalog, command)
        seen.append(catalog.indexes[index_id].status)
    assert seen == list(IndexStatus)
    assert not execute(catalog, RemoveIndex(index_id=index_id)).indexes


@pytest.mark.parametrize("started", [False, True])
def test_an_index_that_nobody_reads_yet_is_removed_at_once(started: bool) -> None:
    catalog = fresh(orders(), CITY)
    if started:
        catalog = execute(catalog, StartBuildingIndex(index_id=index_of(catalog).id))
    assert not execute(catalog, DropIndex(name="by_city")).indexes


def test_an_index_that_is_made_with_its_table_has_nothing_to_build() -> None:
    catalog = execute(fresh(), orders(), CITY)
    assert index_of(catalog).status is IndexStatus.AVAILABLE
    # but not one that comes with something else, later
    later = CreateIndex(name="later", table="orders", columns=("small",))
    catalog = execute(catalog, CreateSchema(name="x"), later)
    assert index_of(catalog, "later").status is IndexStatus.REGISTERED


def test_a_new_index_of_a_user_is_refused_and_what_is_there_is_not() -> None:
    with pytest.raises(IndexNotBuildable, match="by_city") as refused:
        check_buildable([orders(), CITY])
    assert refused.value.object_name == "by_city"
    assert "unique" in refused.value.detail
    check_buildable([orders(), RenameIndex(name="by_city", to="x"), DropIndex(name="by_city")])


def test_a_stopping_index_has_let_go_of_its_name_and_its_columns() -> None:
    # given an index that stops
    catalog = execute(fresh(), orders(), CITY)
    old = index_of(catalog).id
    catalog = execute(catalog, DropIndex(name="by_city"))
    assert catalog.indexes[old].status is IndexStatus.STOPPING
    # then its name can be used, and its column dropped
    catalog = execute(catalog, CreateIndex(name="by_city", table="orders", columns=("small",)))
    assert index_of(catalog).id != old
    catalog = execute(catalog, DropColumns(table="orders", columns=("city",)))
    # and it can still be removed
    catalog = execute(catalog, RemoveIndex(index_id=old))
    assert [index.name for index in catalog.indexes_of_table(table_of(catalog).id)] == ["by_city"]


def test_indexes_go_with_their_table_whatever_their_status() -> None:
    catalog = execute(fresh(), orders(), CITY)
    catalog = execute(catalog, DropIndex(name="by_city"))
    catalog = execute(catalog, CITY)
    after = execute(catalog, DropTable(name="orders"))
    assert (len(catalog.indexes), len(after.indexes)) == (2, 0)
    assert after.index_named("public", "by_city") is None


# -- zones --------------------------------------------------------------------------------------


def test_a_zone_is_altered_renamed_and_dropped() -> None:
    catalog = fresh(
        CreateZone(name="a", node_filter="rack  =  'r1'"),
        AlterZone(name="a", replicas=5),
        AlterZone(name="a", node_filter="disk in (ssd,nvme)"),
        RenameZone(name="a", to="b"),
    )
    zone = catalog.zone_named("b")
    assert zone is not None
    assert (zone.replicas, zone.partitions, zone.node_filter) == (5, 8, "disk in (ssd, nvme)")
    assert zone.matches({"disk": "ssd"})
    assert not zone.matches({})
    assert catalog.zone_named("a") is None
    assert execute(catalog, DropZone(name="b")).zone_named("b") is None


def test_how_long_a_zone_waits_is_set_left_alone_and_put_to_never() -> None:
    def times(catalog: Catalog) -> tuple[int, int | None]:
        zone = catalog.zone_named("a")
        assert zone is not None
        return zone.scale_up_ms, zone.scale_down_ms

    catalog = fresh(CreateZone(name="a"))
    assert times(catalog) == (5_000, 600_000)
    catalog = execute(catalog, AlterZone(name="a", scale_up_ms=0, scale_down_ms="never"))
    assert times(catalog) == (0, None)
    catalog = execute(catalog, AlterZone(name="a", replicas=5))
    assert times(catalog) == (0, None)
    catalog = execute(catalog, AlterZone(name="a", scale_down_ms=0))
    assert times(catalog) == (0, 0)
    made = CreateZone(name="a", scale_up_ms=DURATION_MS_MAX, scale_down_ms="never")
    assert times(fresh(made)) == (DURATION_MS_MAX, None)


def test_the_default_zone_stays_the_default_by_whatever_name() -> None:
    catalog = fresh(RenameZone(name="default", to="main"), CreateZone(name="default"))
    assert catalog.default_zone is not None
    assert catalog.default_zone.name == "main"
    after = execute(catalog, SetDefaultZone(name="default"), DropZone(name="main"))
    assert after.default_zone == catalog.zone_named("default")


@pytest.mark.parametrize(
    ("replicas", "warned"), [(1, "lost disk"), (2, "no loss"), (3, ""), (4, "3"), (5, "")]
)
def test_a_zone_warns_of_numbers_that_do_not_do_what_people_think(
    replicas: int, warned: str
) -> None:
    zone = fresh(CreateZone(name="z", replicas=replicas)).zone_named("z")
    assert zone is not None
    assert bool(zone.warnings) == bool(warned)
    assert all(warned in warning for warning in zone.warnings)


def test_the_first_commands_are_ordinary_ones() -> None:
    assert evaluate(EMPTY, INITIAL_COMMANDS).applied == (True, True, True)
