"""Where tables should be: what the catalog has, and the nodes that are assigned to partitions.

Each node answers for the copies that it has. A partition whose nodes are all down is in no answer,
and it is the one that a status is asked for. So the node that is asked looks up itself what there
should be, and shows that beside what the others say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lowmark.catalog import DEFAULT_SCHEMA, Catalog, Table
from lowmark.errors import Rejected
from lowmark.formatting import counted, near, verb
from lowmark.node.messages import STATES, GroupRow, WarningRow
from lowmark.table import group_name, parse_group_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A table of the catalog, and the nodes of its partitions."""

    id: int
    name: str
    zone: str
    replicas: int
    """What its zone asks for."""
    nodes: tuple[tuple[int, ...], ...]
    """Of each partition; none, if it has no assignment that is known."""

    def groups(self) -> Iterable[tuple[str, tuple[int, ...]]]:
        """The groups that have nodes, with these."""
        for number, nodes in enumerate(self.nodes):
            if nodes:
                yield group_name(self.id, number), nodes


def homes_of(catalog: Catalog, routes: Callable[[int, int], tuple[int, ...]]) -> list[Home]:
    """Of all tables of the catalog."""
    found = []
    for table in catalog.all_tables():
        zone = catalog.zones[table.zone_id]
        nodes = tuple(routes(table.id, number) for number in range(table.partitions))
        found.append(
            Home(
                id=table.id,
                name=name_of(catalog, table),
                zone=zone.name,
                replicas=zone.replicas,
                nodes=nodes,
            )
        )
    return found


def name_of(catalog: Catalog, table: Table) -> str:
    """As people write it: without the schema that tables have by default."""
    return catalog.name_of(table).removeprefix(f"{DEFAULT_SCHEMA}.")


def find_table(catalog: Catalog, name: str, partition: int | None = None) -> Table:
    """A table by its name, with or without its schema; refused if it has no such partition."""
    for table in catalog.all_tables():
        if name in (name_of(catalog, table), catalog.name_of(table)):
            if partition is not None and not 0 <= partition < table.partitions:
                raise Rejected(
                    f"table {name} has no partition {partition}",
                    hint=f"It has {counted(table.partitions, 'partition')}, from 0 on.",
                )
            return table
    known = sorted(name_of(catalog, table) for table in catalog.all_tables())
    raise Rejected(f"there is no table {name}", hint=near(name, known, of="There are"))


def worst_states(groups: Iterable[GroupRow]) -> dict[int, str]:
    """The worst state that a partition of a table is in, by table."""
    found: dict[int, str] = {}
    for group in groups:
        place = parse_group_name(group.group)
        if place is not None:
            other = found.get(place[0], group.state)
            found[place[0]] = max(group.state, other, key=STATES.index)
    return found


def replica_warnings(homes: Iterable[Home]) -> Iterable[WarningRow]:
    """The tables that have fewer replicas than their zone asks for."""
    for home in homes:
        fewest = min((len(nodes) for _, nodes in home.groups()), default=home.replicas)
        if fewest >= home.replicas:
            continue
        lost = (fewest + 1) // 2  # the fewest that are down and leave no majority
        down = f"{lost} of its {fewest} nodes" if fewest > 1 else "its only node"
        text = (
            f"table {home.name} has {fewest} of {counted(home.replicas, 'replica')}: zone"
            f" {home.zone} has too few nodes, or the others are still being copied. A partition"
            f" takes no rows while {down} {verb(lost, 'are')} down. The table gets the"
            f" rest by itself when the zone has {counted(home.replicas, 'node')}; `lowmark"
            " rebalance status` shows what is under way"
        )
        yield WarningRow(kind="replicas-missing", table=home.name, text=text)
