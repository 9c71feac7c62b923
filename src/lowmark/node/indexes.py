"""Commands of the catalog, with a look at the rows of tables that are to get an index.

No release builds indexes yet. An index of a table with rows would be registered and stay so, and
no version of the catalog from then on could ever be cut. The catalog does not know rows; so it
refuses an index of any table that was there before (`IndexNotBuildable`), unless it is told that
the table is empty. Steps, and what is true after each:

    1. the catalog is asked, and names the table by which it refuses; nothing has changed
    2. every partition of that table says that it never had a row, as a majority of it knows; else
       the refusal is the answer
    3. the catalog is asked again, and told that the table is empty: the index is available in the
       version that creates it

A row that is appended between 2 and 3 is not noticed: the index counts as available without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from lowmark.catalog import Catalogs, Command, Executed, IndexNotBuildable, TableId
from lowmark.errors import LowmarkError, Unavailable
from lowmark.fault import decode_fault, encode_fault
from lowmark.group import Future, Groups, Reply, together
from lowmark.runtime import Buffer
from lowmark.table import PartitionNotHere, Tables
from lowmark.table.state import State

SERVICE = "partition.empty"
ANSWER_MS = 5_000


class _Ask(msgspec.Struct, frozen=True, array_like=True):
    table: int
    number: int


class _Said(msgspec.Struct, frozen=True, array_like=True):
    empty: bool = False
    error: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode_ask = msgspec.msgpack.Decoder(_Ask).decode
_decode_said = msgspec.msgpack.Decoder(_Said).decode


class Indexes:
    """Carries commands of the catalog out. All calls are made on the loop."""

    def __init__(
        self,
        groups: Groups,
        catalogs: Catalogs,
        tables: Tables,
        *,
        routes: Callable[[int, int], tuple[int, ...]],
    ) -> None:
        self._calls = groups.calls
        self._node = groups.node
        self._catalogs = catalogs
        self._tables = tables
        self._routes = routes
        self._calls.serve(SERVICE, self._asked)

    def execute(self, commands: Sequence[Command]) -> Future[Executed]:
        """Carry commands out, all or none (`Catalogs.execute`)."""
        return self._execute(commands, frozenset())

    def _execute(self, commands: Sequence[Command], empty: frozenset[TableId]) -> Future[Executed]:
        whole: Future[Executed] = Future()

        def done(future: Future[Executed]) -> None:
            error = future.error
            if not isinstance(error, IndexNotBuildable) or error.table_id in empty:
                whole.follow(future)
                return
            table = TableId(error.table_id)
            self._is_empty(table).then(partial(looked, error, table))

        def looked(refusal: IndexNotBuildable, table: TableId, future: Future[bool]) -> None:
            if future.error is not None:
                whole.reject(future.error)
            elif future.result():
                self._execute(commands, empty | {table}).then(whole.follow)
            else:
                whole.reject(refusal)

        self._catalogs.execute(commands, empty=empty).then(done)
        return whole

    # -- whether a table has rows -----------------------------------------------------------------

    def _is_empty(self, table: TableId) -> Future[bool]:
        """Whether no partition of a table ever had a row."""
        described = self._catalogs.latest.table(table)
        numbers = range(0 if described is None else described.partitions)

        def known(answers: list[Future[bool]]) -> bool:
            has_rows = any(one.error is None and not one.result() for one in answers)
            return not has_rows and all(one.result() for one in answers)

        return together([self._at_any(table, number) for number in numbers]).map(known)

    def _at_any(self, table: TableId, number: int) -> Future[bool]:
        """Of one partition, by any node that has a sound copy."""
        whole: Future[bool] = Future()
        nodes = list(self._routes(table, number)) or [self._node]
        nodes.sort(key=lambda node: node != self._node)

        def ask(at: int) -> None:
            self._at(nodes[at], table, number).then(partial(answered, at))

        def answered(at: int, future: Future[bool]) -> None:
            error = future.error
            if error is None:
                whole.follow(future)
            elif at + 1 < len(nodes):
                ask(at + 1)
            else:
                name = f"partition {number} of table {table}"
                whole.reject(
                    Unavailable(
                        f"it is not known whether {name} has rows: {error.message}",
                        detail="An index is created only of a table without rows.",
                        hint="Ask again when a majority of the partition's nodes is up.",
                    )
                )

        ask(0)
        return whole

    def _at(self, node: int, table: TableId, number: int) -> Future[bool]:
        if node == self._node:
            return self._here(table, number)
        question = _encode(_Ask(table, number))
        return self._calls.ask(node, SERVICE, question, timeout_ms=ANSWER_MS).map(_answer)

    def _here(self, table: int, number: int) -> Future[bool]:
        copy = self._tables.here(table, number)
        if copy is None:
            return Future.failed(PartitionNotHere(table, number))
        return copy.group.read(_never_had_rows).map(bool)

    def _asked(self, address: str, sender: int, question: Buffer, answer: Reply) -> None:
        del address, sender

        def said(future: Future[bool]) -> None:
            if future.error is not None:
                answer(_encode(_Said(error=encode_fault(future.error))))
            else:
                answer(_encode(_Said(future.result())))

        try:
            asked = _decode_ask(question)
        except msgspec.MsgspecError as error:
            said(Future.failed(Unavailable(f"a bad question: {error}")))
            return
        self._here(asked.table, asked.number).then(said)


def _never_had_rows(state: State) -> bool:
    return state.backlog.end == 0 and not state.staged


def _answer(data: bytes) -> bool:
    try:
        said = _decode_said(data)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"an answer can't be read: {error}") from error
    if said.error:
        raise decode_fault(said.error) or LowmarkError("the node gave no reason")
    return said.empty
