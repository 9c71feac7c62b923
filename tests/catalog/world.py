"""A cluster whose nodes have a catalog, in one process and in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

from lowmark.catalog import Catalog, Catalogs, Command, CreateTable, Executed, NewColumn, parse_type
from lowmark.group import Future
from metastore.world import Node, World

__all__ = ["CatalogNode", "CatalogWorld", "table"]


def table(name: str, **more: object) -> CreateTable:
    """A small table."""
    columns = (
        NewColumn(name="id", type=parse_type("int64"), required=True),
        NewColumn(name="note", type=parse_type("string")),
    )
    return CreateTable(name=name, columns=columns, key=("id",), **more)  # type: ignore[arg-type]


class CatalogNode(Node):
    """A node with a catalog."""

    catalogs: Catalogs | None = None

    def start(self, *, join: str = "") -> None:
        super().start(join=join)
        cluster, runtime = self.here, self.runtime
        assert runtime is not None

        def ready(_: object) -> None:
            settings = cluster.settings
            self.catalogs = Catalogs(
                runtime,
                cluster.metastore,
                delay_ms=1 if self.alone else settings.schema_sync_delay_ms,
                max_skew_ms=0 if self.alone else settings.clock_max_skew_ms,
            )
            self.catalogs.start()

        cluster.ready.then(ready)

    @property
    def catalog(self) -> Catalogs:
        assert self.catalogs is not None, f"node {self.number} has no catalog yet"
        return self.catalogs

    def _down(self) -> None:
        super()._down()
        self.catalogs = None


class CatalogWorld(World):
    """As `World`; every node has a catalog."""

    def __init__(self, seed: int = 1, *, nodes: int = 3, **more: object) -> None:
        super().__init__(seed, nodes=nodes, **more)  # type: ignore[arg-type]
        self.run_until(lambda: all(self[n].catalog.latest.version >= 1 for n in self.nodes))

    def new_node(self, number: int) -> CatalogNode:
        return CatalogNode(self, number)

    def __getitem__(self, number: int) -> CatalogNode:
        node = self.nodes[number]
        assert isinstance(node, CatalogNode)
        return node

    def execute(self, number: int, commands: Command | Sequence[Command]) -> Executed:
        return self.wait(self[number].catalog.execute(commands))

    def now(self, number: int) -> Future[Catalog]:
        """What a node finds at its own time."""
        node = self[number]
        assert node.runtime is not None
        return node.catalog.at(node.runtime.clock.now())
