"""`lowmark zone`: where partitions live, and how soon they move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import typer

from lowmark.catalog import (
    Catalog,
    Command,
    DropZone,
    RenameZone,
    SetDefaultZone,
    Zone,
    diff,
    find_zone,
    time_or_never,
)
from lowmark.cli.database import DatabaseOption, opened_database
from lowmark.cli.output import Cell, Json, show_facts, show_json, show_table
from lowmark.cli.session import WrongUse, help_if_bare, wrong_use
from lowmark.client.zones import alteration, creation
from lowmark.formatting import counted

app = typer.Typer(invoke_without_command=True)

ZoneArgument = Annotated[str, typer.Argument(metavar="ZONE", help="The zone's name.")]
_Replicas = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="How many nodes hold each partition.")
]
_Partitions = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Partitions of a new table, unless it says how many."),
]
_NodeFilter = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Which nodes: 'rack = r1'; '' is all nodes.")
]
_ScaleUp = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Wait before a node that joined gets partitions: 5s."),
]
_ScaleDown = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Wait before a lost node's go to others: 10min, never."),
]


@app.callback()
def zone(ctx: typer.Context) -> None:
    """Manage zones: the nodes of partitions, how many replicas they have, how soon they move.

    Every table is in a zone; one that names none is in the default zone.
    """
    help_if_bare(ctx)


# -- looking ------------------------------------------------------------------------------------


@app.command("list")
def list_(ctx: typer.Context, data: DatabaseOption = None, as_json: Json = False) -> None:
    """List zones, with their settings.

    With --json, a list: zone, default, replicas, partitions, node_filter, scale_up_ms,
    scale_down_ms (null is never), tables (how many).

    Example: lowmark zone list --data ./shop
    """
    with opened_database(ctx, data) as database:
        catalog = database.catalog
    rows = [
        _facts(catalog, one) | {"tables": catalog.tables_in_zone(one.id)}
        for one in sorted(catalog.all_zones(), key=lambda one: one.name)
    ]
    if as_json:
        show_json(rows)
    else:
        shown = [_for_people(row) for row in rows]
        show_table(shown, columns=list(shown[0]) if shown else ["zone"], as_json=False)
    _warn([warning for one in catalog.all_zones() for warning in one.warnings], as_json=as_json)


@app.command()
def show(
    ctx: typer.Context,
    name: ZoneArgument,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Show a zone: its settings, its tables, warnings.

    With --json, one object: zone, id, default, replicas, partitions, node_filter, scale_up_ms,
    scale_down_ms (null is never), tables (their names), warnings.

    Example: lowmark zone show default --data ./shop
    """
    with opened_database(ctx, data) as database:
        catalog = database.catalog
    one = find_zone(catalog, name)
    tables = [catalog.name_of(table) for table in catalog.tables_of_zone(one.id)]
    found = {
        **_facts(catalog, one),
        "id": one.id,
        "tables": tables,
        "warnings": list(one.warnings),
    }
    if as_json:
        show_json(found)
        return
    show_facts(
        _for_people(_facts(catalog, one)) | {"tables": ", ".join(tables) or None}, as_json=False
    )
    _warn(one.warnings, as_json=False)


def _facts(catalog: Catalog, one: Zone) -> dict[str, Cell]:
    """A zone for programs: times are milliseconds, never is null."""
    return {
        "zone": one.name,
        "default": one.id == catalog.default_zone_id,
        "replicas": one.replicas,
        "partitions": one.partitions,
        "node_filter": one.node_filter,
        "scale_up_ms": one.scale_up_ms,
        "scale_down_ms": one.scale_down_ms,
    }


def _for_people(facts: Mapping[str, Cell]) -> dict[str, Cell]:
    shown: dict[str, Cell] = {}
    for name, value in facts.items():
        match name:
            case "scale_up_ms" | "scale_down_ms":
                assert isinstance(value, int | None)
                shown[name.removesuffix("_ms")] = time_or_never(value)
            case "node_filter":
                shown[name] = value or "all nodes"
            case _:
                shown[name] = value
    return shown


def _warn(warnings: Sequence[str], *, as_json: bool) -> None:
    if not as_json:
        for warning in warnings:
            print(f"warning: {warning}")


# -- changing -----------------------------------------------------------------------------------


@app.command()
def create(
    ctx: typer.Context,
    name: ZoneArgument,
    replicas: _Replicas = None,
    partitions: _Partitions = None,
    node_filter: _NodeFilter = None,
    scale_up: _ScaleUp = None,
    scale_down: _ScaleDown = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do not fail if the zone exists.")
    ] = False,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Create a zone. What you leave out: 3 replicas, 8 partitions, all nodes, 5s, 10min.

    Times are a number and a unit: 500ms, 5s, 10min, 2h, 7 days; for --scale-down also never.

    With --json, one object: zone, version, changes, warnings.

    Example: lowmark zone create near --replicas 3 --node-filter "rack = r1"
    """
    with wrong_use():
        command = creation(
            name,
            replicas=replicas,
            partitions=partitions,
            node_filter=node_filter,
            scale_up=scale_up,
            scale_down=scale_down,
            if_not_exists=if_not_exists,
        )
    _change(ctx, data, command, zone=name, as_json=as_json)


@app.command()
def alter(
    ctx: typer.Context,
    name: ZoneArgument,
    replicas: _Replicas = None,
    partitions: _Partitions = None,
    node_filter: _NodeFilter = None,
    scale_up: _ScaleUp = None,
    scale_down: _ScaleDown = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Change settings of a zone; what you leave out stays as it is.

    --partitions counts for new tables only: the number of partitions of a table never changes.

    With --json, one object: zone, version, changes, warnings.

    Example: lowmark zone alter default --scale-down never --data ./shop
    """
    if all(one is None for one in (replicas, partitions, node_filter, scale_up, scale_down)):
        raise WrongUse("no change is given", hint="See `lowmark zone alter --help`.")
    with wrong_use():
        command = alteration(
            name,
            replicas=replicas,
            partitions=partitions,
            node_filter=node_filter,
            scale_up=scale_up,
            scale_down=scale_down,
        )
    _change(ctx, data, command, zone=name, as_json=as_json)


@app.command()
def rename(
    ctx: typer.Context,
    name: ZoneArgument,
    to: Annotated[str, typer.Argument(metavar="TO", help="Its new name.")],
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Give a zone another name; its tables stay in it.

    With --json, one object: zone, version, changes, warnings.

    Example: lowmark zone rename near rack_1 --data ./shop
    """
    with wrong_use():
        command = RenameZone(name=name, to=to)
    _change(ctx, data, command, zone=to, as_json=as_json)


@app.command()
def default(
    ctx: typer.Context,
    name: ZoneArgument,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Make a zone the default: new tables that name no zone go there.

    With --json, one object: zone, version, changes, warnings.

    Example: lowmark zone default near --data ./shop
    """
    with wrong_use():
        command = SetDefaultZone(name=name)
    _change(ctx, data, command, zone=name, as_json=as_json)


@app.command()
def baseline(
    ctx: typer.Context,
    name: ZoneArgument,
    nodes: Annotated[
        list[str] | None,
        typer.Argument(metavar="NODE", help="Name nodes, or write auto."),
    ] = None,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Show the nodes that a zone's partitions are placed on, or name them by hand.

    Nodes that you name stay, up or down, until you name others, they leave or are drained; no other
    node comes. With auto, nodes come and go by themselves again, by the zone's filter and its
    scale-up and scale-down times. Partitions begin to move at once.

    With --json, one object: zone, nodes, replicas, chosen (whether they were named by hand).

    Example: lowmark zone baseline default n1 n2 n3 --node 127.0.0.1:6570
    """
    if nodes and "auto" in nodes and len(nodes) > 1:
        raise WrongUse("auto and names of nodes are both given", hint="Give one of them.")
    with opened_database(ctx, data) as database:
        wanted = "auto" if nodes == ["auto"] else nodes or None
        found = database.cluster.baseline(name, wanted)
    if as_json:
        show_json(msgspec.to_builtins(found))
        return
    how = "named by hand" if found.chosen else "come and go by themselves"
    facts: dict[str, Cell] = {
        "zone": found.zone,
        "nodes": ", ".join(found.nodes) or None,
        "they": how,
        "replicas": found.replicas,
    }
    show_facts(facts, as_json=False)
    if len(found.nodes) < found.replicas:
        count = counted(len(found.nodes), "node")
        _warn([f"zone {found.zone} has {count} for {found.replicas} replicas"], as_json=False)


@app.command()
def drop(
    ctx: typer.Context,
    name: ZoneArgument,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Do not fail if there is no such zone.")
    ] = False,
    data: DatabaseOption = None,
    as_json: Json = False,
) -> None:
    """Drop a zone. It must have no tables, and not be the default.

    With --json, one object: zone, version, changes, warnings.

    Example: lowmark zone drop near --data ./shop
    """
    with wrong_use():
        command = DropZone(name=name, if_exists=if_exists)
    _change(ctx, data, command, zone=name, as_json=as_json)


def _change(
    ctx: typer.Context, data: str | None, command: Command, *, zone: str, as_json: bool
) -> None:
    """Carry a command out, and say what it changed. `zone` is what the zone is called then."""
    with opened_database(ctx, data) as database:
        before = database.catalog
        after = database.execute([command]).catalog
    changes = [each.text for each in diff(before, after)]
    now = after.zone_named(zone)
    warnings = now.warnings if now is not None else ()
    found: dict[str, Any] = {
        "zone": zone,
        "version": after.version,
        "changes": changes,
        "warnings": list(warnings),
    }
    if as_json:
        show_json(found)
        return
    if not changes:
        print(f"nothing to do: version {after.version} has it all")
    else:
        print(f"version {after.version} is in force")
        for change in changes:
            print(f"  {change}")
    _warn(warnings, as_json=False)
