"""What a caller may ask of a database who may not do everything: the holder of a pass.

A pass is for one table, and for one thing to do there. Each call of the port is in the list of a
right or is refused; one with a table must name that of the pass. What an answer tells of other
tables is left out of it. `lowmark.node.callers` has refused by then what no task needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lowmark.backend.protocol import Request
from lowmark.backend.values import PartitionStatus
from lowmark.catalog import Catalog, TableId
from lowmark.catalog.catalog import rebuilt
from lowmark.ledger.manifest import table_folder
from lowmark.ledger.records import CLAIM_PREFIX, POINTER_PREFIX, RUN_PREFIX, table_of
from lowmark.metastore import Entry
from lowmark.node.callers import beyond, current_caller
from lowmark.table import Drop, Finish, WatermarkStanding
from lowmark.table.commands import STAGE
from lowmark.tokens import Caller, Right, Scope

_EVERY: Final = frozenset({"calls", "leave", "release", "renew"})
"""Of the session of a client, whose number it has drawn."""
_LOOKS: Final = frozenset(
    {"catalog", "catalog_at", "dropped_at", "files_in_use", "now", "range", "status", "watermark"}
)
CALLS: Final[Mapping[Right, frozenset[str]]] = {
    Right.READ: _EVERY
    | _LOOKS
    | {
        "batches",
        "endpoint_here",
        "history_lost",
        "hold",
        "hold_history",
        "look_up",
        "now_here",
        "view",
        "view_since",
        "views",
        "wait",
    },
    Right.STAGE: _EVERY | _LOOKS | {"append", "epoch_of", "propose", "view", "view_since"},
    Right.RUN: _EVERY | {"batches", "hold"},
}
"""By right. Whatever is not here is refused, also what later releases add to the port."""
_WITHOUT_TABLE: Final = _EVERY | {
    "append",
    "catalog",
    "catalog_at",
    "files_in_use",
    "history_lost",
    "hold_history",
    "range",
    "wait",
    "watermark",
}
"""These name none; each batch of a stream of appends is looked at by itself."""
_RANGES: Final = frozenset({POINTER_PREFIX, RUN_PREFIX, CLAIM_PREFIX})
"""What a client looks at in the metastore when it opens a database; it gets what is its table's."""


def check_call(request: Request) -> None:
    """Refuse a call that goes beyond what its caller may do."""
    caller = current_caller()
    scope = caller.scope
    if scope is None:
        return
    name = request.call
    if name not in CALLS[scope.right]:
        raise beyond(caller, f"the call {name[:100]}")
    if name not in _WITHOUT_TABLE:
        _check_table(caller, scope, request)
    if name == "range" and tuple(request.arguments) not in {(one,) for one in _RANGES}:
        raise beyond(caller, "other keys of the metastore")
    if name == "propose":
        _check_proposed(caller, request)


def check_plain() -> None:
    """Refuse a ticket of a plain client: it names its table, and a pass is for our own."""
    caller = current_caller()
    if caller.scope is not None:
        raise beyond(caller, "a ticket that is JSON")


def _check_table(caller: Caller, scope: Scope, request: Request) -> None:
    table = request.arguments[0] if request.arguments else None
    if request.call == "now" and table is None:
        return  # the time is no secret
    if type(table) is not int or table != scope.table or "table" in request.named:
        raise beyond(caller, f"the call {request.call} of another table")


def _check_proposed(caller: Caller, request: Request) -> None:
    """What a writer that stages proposes: a question, and that what it has staged goes."""
    commands = request.arguments[1] if len(request.arguments) > 1 else request.named.get("commands")
    for one in commands.values() if isinstance(commands, Mapping) else [None]:
        asks = isinstance(one, Drop) and not one.families
        drops = isinstance(one, Finish) and not one.commit
        if not asks and not drops:
            raise beyond(caller, f"the command {type(one).__name__}")


def check_batch(caller: Caller, table: int, kind: int) -> None:
    """Refuse a batch of a stream of appends: only rows that are staged may come with a pass."""
    scope = caller.scope
    if scope is not None and table != scope.table:
        raise beyond(caller, "rows for another table")
    if scope is not None and kind != STAGE:
        raise beyond(caller, "rows that are not staged")


def shown_to_caller(value: Any) -> Any:
    """An answer as its caller may see it."""
    scope = current_caller().scope
    if scope is None:
        return value
    if isinstance(value, Catalog):
        return only_table(value, TableId(scope.table))
    if isinstance(value, tuple) and value and all(isinstance(one, Entry) for one in value):
        return _of_table(value, scope.table)
    if isinstance(value, dict):
        return {key: _without_writers(one) for key, one in value.items()}
    if isinstance(value, WatermarkStanding):
        return replace(value, holds=())  # what other readers read
    if isinstance(value, frozenset):  # paths of manifests
        folder = f"{table_folder(scope.table)}/"
        return frozenset(one for one in value if one.startswith(folder))
    return value


def _without_writers(value: Any) -> Any:
    """The status of a partition without the numbers of the writers that stage there. A writer is
    the one that knows its number: by it, its rows could be dropped, or others put among them.
    """
    if isinstance(value, PartitionStatus) and value.staging is not None:
        return replace(value, staging=replace(value.staging, by_transaction={}))
    return value


def only_table(catalog: Catalog, table: TableId) -> Catalog:
    """A version of the catalog with one table, and with what belongs to it, alone."""
    found = catalog.table(table)
    head = Catalog(
        version=catalog.version,
        time=catalog.time,
        activates_at=catalog.activates_at,
        next_id=catalog.next_id,
        unknown=catalog.unknown,
    )
    return rebuilt(
        head,
        zones=[] if found is None else [catalog.zones[found.zone_id]],
        schemas=[] if found is None else [catalog.schemas[found.schema_id]],
        tables=[] if found is None else [found],
        indexes=catalog.indexes_of_table(table),
        default_zone_id=None,
    )


def _of_table(entries: Sequence[Entry], table: int) -> tuple[Entry, ...]:
    return tuple(one for one in entries if table_of(one.key) == table)
