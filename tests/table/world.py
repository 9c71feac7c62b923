"""A cluster whose nodes have tables, with all that looks after them, in virtual time."""

from __future__ import annotations

from catalog.world import CatalogNode, CatalogWorld
from lowmark.catalog import Catalogs, CreateTable, NewColumn, TableId, parse_type
from lowmark.metastore import ClusterSettings
from lowmark.placement import Placement, RebalanceConfig
from lowmark.runtime import COUNTER_BITS, Runtime, millis_of
from lowmark.table import Appended, LowWatermark, Partition, Tables, encode_batch
from lowmark.upkeep import Upkeep
from lowmark.upkeep.upkeep import Look
from metastore.world import Node

__all__ = ["TableNode", "TableWorld", "log_table", "ms"]

NEVER_MS = 1 << 40
SETTINGS = ClusterSettings(
    id="",
    schema_sync_delay_ms=50,
    clock_max_skew_ms=20,
    watermark_availability_ms=1_000,
    watermark_interval_ms=NEVER_MS,
)
"""Nothing is looked after unless a test says so."""


def ms(millis: int) -> int:
    """As a hybrid time."""
    return millis << COUNTER_BITS


def log_table(name: str, *, partitions: int = 1, **more: object) -> CreateTable:
    """A table without a key."""
    columns = (NewColumn(name="note", type=parse_type("string")),)
    return CreateTable(name=name, columns=columns, partitions=partitions, **more)  # type: ignore[arg-type]


class TableNode(CatalogNode):
    """A node with tables, started in the order in which a real one starts them."""

    tables_: Tables | None = None
    watermark_: LowWatermark | None = None
    placement_: Placement | None = None
    upkeep_: Upkeep | None = None
    rebalance = RebalanceConfig(retry_delay_ms=200)
    attributes: dict[str, str] | None = None

    def start(self, *, join: str = "") -> None:
        Node.start(self, join=join)
        self.here.ready.then(lambda ready: None if ready.error else self._start_rooms())

    def _start_rooms(self) -> None:
        cluster, runtime, groups, log = self.here, self.runtime, self.groups, self.log
        assert runtime is not None
        assert groups is not None
        assert log is not None
        settings = cluster.settings
        self.catalogs = catalogs = Catalogs(
            runtime,
            cluster.metastore,
            delay_ms=settings.schema_sync_delay_ms,
            max_skew_ms=settings.clock_max_skew_ms,
        )
        self.tables_ = Tables(groups, log, routes=self._routes)
        self.watermark_ = LowWatermark(
            runtime,
            cluster.metastore,
            node=self.number,
            availability_ms=settings.watermark_availability_ms,
            max_skew_ms=settings.clock_max_skew_ms,
        )
        self.placement_ = Placement(
            runtime, cluster, catalogs, self.tables_, groups, config=self.rebalance
        )
        self.upkeep_ = Upkeep(
            runtime,
            groups,
            cluster,
            catalogs,
            self.tables_,
            self.placement_,
            self.watermark_,
            interval_ms=settings.watermark_interval_ms,
        )
        self.placement_.start()
        catalogs.start()
        self.upkeep_.start()

    def _routes(self, table: int, number: int) -> tuple[int, ...]:
        return self.placement.routes(table, number)

    @property
    def tables(self) -> Tables:
        assert self.tables_ is not None
        return self.tables_

    @property
    def watermark(self) -> LowWatermark:
        assert self.watermark_ is not None
        return self.watermark_

    @property
    def placement(self) -> Placement:
        assert self.placement_ is not None
        return self.placement_

    @property
    def upkeep(self) -> Upkeep:
        assert self.upkeep_ is not None
        return self.upkeep_

    @property
    def run(self) -> Runtime:
        assert self.runtime is not None
        return self.runtime

    def stop(self) -> None:
        self.placement.close()
        self.upkeep.close()
        super().stop()

    def _down(self) -> None:
        super()._down()
        self.tables_ = self.watermark_ = self.placement_ = self.upkeep_ = None


class TableWorld(CatalogWorld):
    """As `CatalogWorld`; every node has tables, placement and upkeep."""

    def __init__(
        self,
        seed: int = 1,
        *,
        nodes: int = 3,
        settings: ClusterSettings = SETTINGS,
        **more: object,
    ) -> None:
        super().__init__(seed, nodes=nodes, settings=settings, **more)
        self.run_until(self._has_voters, timeout_ms=600_000)

    def _has_voters(self) -> bool:
        """Whether one node can go, and the others still have a majority."""
        leader = self.leader()
        if leader is None:
            return False
        members = leader.metastore.group.members()
        return len(members.voters) == min(len(self.nodes), 3) and not members.joint

    def new_node(self, number: int) -> TableNode:
        return TableNode(self, number)

    def __getitem__(self, number: int) -> TableNode:
        node = self.nodes[number]
        assert isinstance(node, TableNode)
        return node

    @property
    def up(self) -> list[TableNode]:
        """Those that are up and have their rooms."""
        return [self[number] for number in self.nodes if self[number].tables_ is not None]

    def now_ms(self, number: int = 1) -> int:
        return millis_of(self[number].run.clock.now())

    # -- tables ---------------------------------------------------------------------------------

    def create(self, number: int, command: CreateTable) -> TableId:
        """Have a table, made by a node."""
        catalog = self.execute(number, command).catalog
        table = catalog.table_named("public", command.name)
        assert table is not None
        return table.id

    def leading(self, table: TableId, number: int = 0) -> Partition:
        """The copy of a partition that leads."""

        def find() -> Partition | None:
            for node in self.up:
                for one in node.tables.of(table):
                    if one.number == number and one.group.ready:
                        return one
            return None

        self.run_until(lambda: find() is not None)
        found = find()
        assert found is not None
        return found

    def append(self, table: TableId, rows: int = 1, *, size: int = 100) -> Appended:
        """Have rows of so many bytes in partition 0."""
        batch = encode_batch(bytes(size), rows=rows, schema=1)
        return self.wait(self.leading(table).append(batch))

    # -- upkeep ---------------------------------------------------------------------------------

    def look(self) -> dict[int, Look]:
        """Have every node look after what it has, the coordinator first."""
        coordinator = self.wait_leader().number
        order = sorted((n.number for n in self.up), key=lambda n: (n != coordinator, n))
        looks = {number: self.wait(self[number].upkeep.tick()) for number in order}
        for one in looks.values():
            assert not one.errors, one.errors
        return looks

    def everywhere(self, revision: int | None = None) -> None:
        """Until all nodes know what the leader knows now."""
        goal = self.wait_leader().metastore.state.latest if revision is None else revision
        self.run_until(lambda: all(node.metastore.state.latest >= goal for node in self.up))
