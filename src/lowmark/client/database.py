"""A database: tables by name."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self

from lowmark.backend.errors import TableUnknown, made
from lowmark.backend.ledgers import Ledgers
from lowmark.backend.port import Backend
from lowmark.catalog import (
    DEFAULT_SCHEMA,
    DURATION_TAKES,
    Catalog,
    Command,
    CreateTable,
    DropTable,
    DropZone,
    Executed,
    RenameZone,
    SetDefaultZone,
    TableId,
    Zone,
    find_zone,
    parse_duration,
)
from lowmark.catalog import Table as TableDescriptor
from lowmark.client.checking import whole
from lowmark.client.edges import edge
from lowmark.client.past import catalog_then
from lowmark.client.session import Finishing, Session
from lowmark.client.table import Table
from lowmark.compaction.compactor import Compactor
from lowmark.compaction.context import LEASE_MS, LEASE_MS_LEAST, RunOptions
from lowmark.convert.columns import ColumnsLike, columns_of
from lowmark.convert.times import parse_time
from lowmark.errors import Rejected, Unavailable
from lowmark.faces import deferred
from lowmark.runtime.store import without_credentials
from lowmark.table import HISTORY_KEY, Advanced, WatermarkStanding, read_history, write_history

if TYPE_CHECKING:
    from lowmark.client.catalog import DatabaseCatalog, catalog_of
    from lowmark.client.cluster import Cluster
    from lowmark.client.relocation import relocate
    from lowmark.client.tokens import Tokens
    from lowmark.client.zones import alteration, creation
    from lowmark.compaction.automatic import Automatic, Told
    from lowmark.compaction.runner import Engine, Runners, read_way
    from lowmark.ledger import ReadWay, RunRecord
else:
    (catalog_of,) = deferred("lowmark.client.catalog", "catalog_of")
    (Cluster,) = deferred("lowmark.client.cluster", "Cluster")
    (Tokens,) = deferred("lowmark.client.tokens", "Tokens")
    (relocate,) = deferred("lowmark.client.relocation", "relocate")
    alteration, creation = deferred("lowmark.client.zones", "alteration", "creation")
    (Automatic,) = deferred("lowmark.compaction.automatic", "Automatic")
    Runners, read_way = deferred("lowmark.compaction.runner", "Runners", "read_way")


@edge(but=("close",))
class Database:
    """Tables by name. Safe to use from any thread; not after a fork."""

    def __init__(
        self,
        backend: Backend,
        *,
        spark: object = None,
        engine: Engine | None = None,
        read_only: bool = False,
    ) -> None:
        self._session = Session(backend)
        self._lock = threading.Lock()
        self._tables: dict[TableId, Table] = {}
        ledgers = Ledgers(backend.store)
        self._compactor = Compactor(self._session, ledgers)
        self._session.finishing.add(self._compactor)
        if not read_only:
            self._sweep_dropped()
        self.auto: Automatic | None = None
        if spark is not None or engine is not None:
            self.auto = self.worker(spark=spark, engine=engine or "auto")
            self.auto.start()

    def finish_last(self, one: Finishing, *, behind: bool = False) -> None:
        """Have something closed with this database, behind all that is under way here."""
        self._session.finish_last(one, behind=behind)

    @property
    def backend(self) -> Backend:
        """What answers it: for a server of this database."""
        return self._session.backend

    @property
    def _backend(self) -> Backend:
        return self._session.backend

    def _sweep_dropped(self) -> None:
        with contextlib.suppress(Unavailable):  # of a node that is not there: its readers count
            self._compactor.sweep_dropped()

    @property
    def path(self) -> str:
        """The directory."""
        return self._backend.info.name

    @property
    def catalog(self) -> DatabaseCatalog:
        """The latest version of the catalog, and how its history is cut."""
        self._backend.check()
        return catalog_of(self._backend.catalog(fresh=True), self._session)

    @property
    def cluster(self) -> Cluster:
        """Its nodes, and the moves of partitions among them: for operators."""
        return Cluster(self._session)

    @property
    def tokens(self) -> Tokens:
        """The tokens by which clients are let in, where a server asks for them."""
        return Tokens(self._session)

    # -- tables ---------------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        columns: ColumnsLike,
        *,
        key: str | Sequence[str] | None = None,
        partitions: int | None = None,
        zone: str | None = None,
        options: Mapping[str, str | int] | None = None,
        if_not_exists: bool = False,
    ) -> Table:
        """Create a table and give it.

        `columns` are types by name: as text (`{"id": "string", "amount": "decimal(12,2)"}`, or the
        words of SQL and Spark), as Python's types (`{"id": int, "name": str}`), or as Arrow's. An
        Arrow schema, a list of pairs or of `NewColumn` will do, too. Text followed by `not null`
        makes a column required; key columns always are. Key, zone and number of partitions never
        change; without `zone` it is the default zone, without `partitions` the zone's number.
        """
        keys = (key,) if isinstance(key, str) else tuple(key or ())
        schema, plain = _path(name)
        command = CreateTable(
            name=plain,
            schema=schema,
            columns=columns_of(columns, keys),
            key=keys,
            zone=zone,
            partitions=partitions,
            options=dict(options or {}),
            if_not_exists=if_not_exists,
        )
        after = self.execute([command]).catalog
        with made(f"table {name} was created"):  # or was there
            found = after.table_named(schema, plain)
            return self.table(name) if found is None else self._table(found)

    def table(self, name: str, *, as_of: int | str | datetime | None = None) -> Table:
        """A table by name; one that was dropped or renamed since by a time at which it was there.

        A table of an earlier time can be read as of then, until the low watermark passes its drop.
        One that was dropped has the columns that it had at that time.
        """
        schema, plain = _path(name)
        self._backend.check()
        then = False
        if as_of is None or (isinstance(as_of, str) and as_of.strip() == "now"):
            # Of now is the newest version: by a time it may be cut before it is looked up.
            found = self._backend.catalog(fresh=True).table_named(schema, plain)
        else:
            then, time = True, parse_time(as_of, now=self._now())
            found = catalog_then(self._backend, time).table_named(schema, plain)
        if found is None:
            raise TableUnknown(name, known=_names(self._backend.catalog()), then=then)
        if as_of is None or self._backend.catalog().table(found.id) is not None:
            return self._table(found)
        return Table(self._session, found, self._compactor, then=found)

    def _now(self) -> int:
        """By the database's clock."""
        return self._backend.now().time

    def _table(self, descriptor: TableDescriptor) -> Table:
        with self._lock:
            table = self._tables.get(descriptor.id)
            if table is None:
                # What was dropped has an index, and batches, that no caller needs any more.
                there = self._backend.catalog().tables
                self._tables = {key: one for key, one in self._tables.items() if key in there}
                table = Table(self._session, descriptor, self._compactor)
                self._tables[descriptor.id] = table
            return table

    def table_of(self, number: TableId) -> Table:
        """A table by its id: for a server."""
        catalog = self._backend.catalog()
        found = catalog.table(number)
        if found is None:
            raise TableUnknown(f"with the id {number}", known=_names(catalog))
        return self._table(found)

    def tables(self) -> list[str]:
        """The names of all tables; those outside of the default schema with their schema's."""
        catalog = self.catalog
        return _names(catalog)

    def drop_table(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a table. Its rows go when the low watermark passes the drop."""
        schema, plain = _path(name)
        self.execute([DropTable(name=plain, schema=schema, if_exists=if_exists)])

    def execute(self, commands: Sequence[Command]) -> Executed:
        """Change the catalog: all commands or none, in one version."""
        return self._backend.execute(commands)

    # -- zones ----------------------------------------------------------------------------------

    def zones(self) -> list[str]:
        """The names of all zones."""
        return sorted(zone.name for zone in self.catalog.all_zones())

    def zone(self, name: str) -> Zone:
        """A zone by name, with its settings."""
        return find_zone(self.catalog, name)

    @property
    def default_zone(self) -> Zone | None:
        """Where tables go that name no zone."""
        return self.catalog.default_zone

    def create_zone(
        self,
        name: str,
        *,
        replicas: int | None = None,
        partitions: int | None = None,
        node_filter: str | None = None,
        scale_up: str | timedelta | None = None,
        scale_down: str | timedelta | None = None,
        if_not_exists: bool = False,
    ) -> Zone:
        """Create a zone and give it. What you leave out has its default.

        `replicas` (3) is how many nodes hold each partition. `partitions` (8) is only what a new
        table gets that does not say how many. `node_filter` says which nodes: `"rack = r1"`.
        `scale_up` ("5s") is how long the cluster waits before it gives partitions to a node that
        has joined. `scale_down` ("10 min") is how long a node may be down before the cluster gives
        its partitions to others; "never" leaves them there.
        """
        command = creation(
            name,
            replicas=replicas,
            partitions=partitions,
            node_filter=node_filter,
            scale_up=scale_up,
            scale_down=scale_down,
            if_not_exists=if_not_exists,
        )
        return find_zone(self.execute([command]).catalog, name)

    def alter_zone(
        self,
        name: str,
        *,
        replicas: int | None = None,
        partitions: int | None = None,
        node_filter: str | None = None,
        scale_up: str | timedelta | None = None,
        scale_down: str | timedelta | None = None,
    ) -> Zone:
        """Change a zone and give it. What you leave out stays as it is.

        The arguments are as `create_zone` has them; `node_filter=""` is all nodes. `partitions`
        counts for new tables only: tables that are there keep theirs.
        """
        command = alteration(
            name,
            replicas=replicas,
            partitions=partitions,
            node_filter=node_filter,
            scale_up=scale_up,
            scale_down=scale_down,
        )
        return find_zone(self.execute([command]).catalog, name)

    def rename_zone(self, name: str, to: str) -> Zone:
        """Give a zone another name; its tables stay in it."""
        return find_zone(self.execute([RenameZone(name=name, to=to)]).catalog, to)

    def set_default_zone(self, name: str) -> None:
        """Let new tables that name no zone go here."""
        self.execute([SetDefaultZone(name=name)])

    def drop_zone(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a zone that has no tables and is not the default."""
        self.execute([DropZone(name=name, if_exists=if_exists)])

    # -- runs -----------------------------------------------------------------------------------

    def runs(self) -> list[RunRecord]:
        """The runs of compaction that are known, of all tables; the newest first."""
        self._backend.check()
        return self._compactor.runs()

    def worker(
        self,
        *,
        spark: object = None,
        master: str | None = None,
        spark_config: Mapping[str, str] | None = None,
        engine: Engine = "auto",
        read: ReadWay | None = None,
        read_rate: int | None = None,
        write_rate: int | None = None,
        lease_ms: int = LEASE_MS,
        tell: Callable[[Told], None] = lambda _: None,
    ) -> Automatic:
        """A worker that compacts tables with the option `compaction=auto` when they are due, and
        runs that wait for a worker (`Table.compact(detach=True)`). `start()` has it look every few
        seconds, on a thread; `look()` has it look once. It ends with the database.

        Any number of processes may have workers. When one dies, another goes on with its run as
        soon as it has seen no sign of it for `lease_ms`. The other arguments are as
        `Table.compact` has them; `tell` is called when a run begins and ends.
        """
        runners = Runners(
            self._compactor.spark,
            session=spark,
            master=master,
            config=spark_config,
            engine=engine,
        )
        options = RunOptions(
            read=read_way(read),
            read_rate=None if read_rate is None else whole(read_rate, "read_rate"),
            write_rate=None if write_rate is None else whole(write_rate, "write_rate"),
            lease_ms=whole(lease_ms, "lease_ms", least=LEASE_MS_LEAST),
        )
        worker = Automatic(self._session, self._compactor, runners, options=options, tell=tell)
        self._session.finishing.add(worker)
        return worker

    # -- the low watermark ----------------------------------------------------------------------

    def watermark(self) -> WatermarkStanding:
        """Where the low watermark is, where it would be without holders, and its holders."""
        return self._backend.watermark()

    def advance_watermark(self, to: int | str | datetime | None = None) -> Advanced:
        """Move it to where it should be by now, or to a time, as far as its holders allow."""
        time = None if to is None else parse_time(to, now=self._now())
        return self._backend.advance_watermark(time)

    @property
    def history(self) -> timedelta:
        """How long the past stays exact: the low watermark follows the clock that far behind. A
        table may keep its own past for longer, by its option `history`.
        """
        self._backend.check()
        return timedelta(milliseconds=history_ms(self._backend))

    def set_history(self, history: str | timedelta) -> None:
        """Alter how long the past stays exact, for all tables: `"1 day"`, `"90 minutes"`.

        A longer one counts from now on: the low watermark waits until it is that far behind. With a
        shorter one, it moves on at its next move, within seconds, and what it passes can't be read
        as of any more.
        """
        millis = parse_duration(history)
        if millis is None:
            raise Rejected(f"{history!r} is not a length of time", hint=f"Give {DURATION_TAKES}.")
        self._backend.write([write_history(millis)])

    # -- where ledgers are ------------------------------------------------------------------------

    @property
    def ledger_location(self) -> str:
        """Where ledgers are: a folder, or the URL of an object store, without credentials."""
        self._backend.check()
        return without_credentials(self._backend.info.ledger_location)

    def set_ledger_location(self, location: str, *, claim: bool = False) -> None:
        """Alter how the place of ledgers is reached: the endpoint, say. Credentials that an earlier
        release has taken into the database go with that.

        The place itself (`s3://bucket/prefix`) is settled when a database is made. Where it is
        reached by another way, the ledgers of this database must be there. Each process that has
        the database open goes on as before until it opens it again.

        `claim`: take the place though it lacks the mark of this database (the file `database`),
        because what was there is lost for good. Refused if it has another database's. Ledgers that
        are not there are `LedgerLost` from then on, and can be rebuilt as far as their rows are
        left.
        """
        relocate(self._backend, location, anew=claim)

    # -- closing --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close it in good order; whatever is open of it ends with a named error."""
        self._session.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._backend.closed

    def __enter__(self) -> Self:
        self._backend.check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Table:
        return self.table(name)

    def __repr__(self) -> str:
        return f"<lowmark.Database {self.path}{' (closed)' if self.closed else ''}>"


def _names(catalog: Catalog) -> list[str]:
    """Of all tables, as `Database.table` takes them."""
    prefix = f"{DEFAULT_SCHEMA}."
    return sorted(catalog.name_of(table).removeprefix(prefix) for table in catalog.all_tables())


def _path(name: str) -> tuple[str, str]:
    schema, dot, plain = name.rpartition(".")
    return (schema, plain) if dot else (DEFAULT_SCHEMA, name)


def history_ms(backend: Backend) -> int:
    """How long history stays exact."""
    altered = backend.get(HISTORY_KEY)
    founded_ms = backend.info.watermark_availability_ms
    return founded_ms if altered is None else read_history(altered.value)
