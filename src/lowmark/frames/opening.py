"""The database of a source, opened where Spark calls it.

A process that Spark starts knows the addresses that the user has named. One of them is enough for
it to learn of the other nodes of the cluster, and what it sends to tasks has them all: so a task
finds a node though the one that was named is away by then. In the same way it has what was heard of
resets, so that no task is answered by nodes that a reset has left behind.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.datasource import InputPartition

from lowmark import access
from lowmark.backend.remote import RemoteBackend
from lowmark.backend.task_pass import KNOWN_S, to_show
from lowmark.client import Database
from lowmark.faces import deferred
from lowmark.frames.options import Options
from lowmark.tokens import PassEnded, Right

if TYPE_CHECKING:
    from lowmark.frames.showing import shown_by_tasks
else:  # a task makes no pass
    (shown_by_tasks,) = deferred("lowmark.frames.showing", "shown_by_tasks")

_PAUSE_S: Final = 0.1


@dataclass
class Part(InputPartition):
    """What one task reads."""

    nodes: str = field(default="", kw_only=True)
    """All nodes that were known when it was planned, with commas between."""
    resets: Mapping[str, int] | None = field(default=None, kw_only=True)
    """What was heard of resets by then."""
    shows: str = field(default="", kw_only=True, repr=False)
    """The pass that the task shows; empty: none, or a token of its environment."""


P = TypeVar("P", bound=Part)


def knowing(options: Options, database: Database) -> Options:
    """The same, with all nodes that are known now, and what was heard of resets."""
    backend = database.backend
    options = replace(options, resets=dict(options.resets or {}) | backend.lineages.known())
    if not options.node or not isinstance(backend, RemoteBackend):
        return options
    return replace(options, node=",".join(backend.addresses))


def planned(
    parts: Sequence[P], options: Options, database: Database, *, shows: str | None = None
) -> list[P]:
    """Parts, for tasks to open by `opened_for`. `shows`: the pass that they show, if the caller
    has one for them.
    """
    known = knowing(options, database)
    if shows is None:
        shows = shown_by_tasks(database, options.table, Right.READ) if parts else ""
    for part in parts:
        part.nodes, part.shows, part.resets = known.node, shows, known.resets
    return list(parts)


def opened_for(part: Part, options: Options) -> Database:
    """The database of a task."""
    known = replace(options, node=part.nodes or options.node, resets=part.resets)
    return opened(known, shows=part.shows)


def opened(options: Options, *, writes: bool = False, shows: str = "") -> Database:
    """The database, to be closed by the caller. `shows`: the pass of a task.

    Tasks and plans never own a directory: they may end at any moment. The process that follows a
    stream lasts as long as that, and `writes`: it may own one that no other process has open.
    """
    if options.node:
        database = _connected(options.node, shows)
    elif writes:
        database = access.open_database(options.path, create=False)
    else:
        database = access.open_database(options.path, read_only=True)
    database.backend.lineages.learn(options.resets or {})
    return database


def _connected(node: str, shows: str) -> Database:
    secret, ends_at = to_show(shows), time.monotonic() + KNOWN_S
    while True:
        try:
            return access.connect(node, token=None if secret is None else secret.reveal())
        except PassEnded:  # this node may not have heard of it yet
            if time.monotonic() > ends_at:
                raise
        time.sleep(_PAUSE_S)


def check_writable(options: Options) -> None:
    """Refuse a directory that no process has open: tasks would, one after the other."""
    if options.path:
        access.check_owned(options.path)
