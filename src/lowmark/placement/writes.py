"""Carries decisions on assignments out: read, decide, write if nothing has changed; else again.

The keys are read linearizably, so that a decision to write nothing is right, too: a node whose copy
of the metastore lags would else take a change for over that has just begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from lowmark.errors import Unavailable
from lowmark.group import Future
from lowmark.metastore import Answer, Metastore, Page
from lowmark.placement.assignments import KINDS, Keys, PartitionId, keys_from
from lowmark.placement.decisions import DONE, Decision, statement

Decide: TypeAlias = Callable[[Keys], Decision]
_ATTEMPTS_MAX = 16
"""A partition's keys have few writers: a node that loses more often than this waits."""


def read_keys(metastore: Metastore, partition: PartitionId) -> Future[Keys]:
    """The keys of a partition, as the metastore's leader knows them."""
    return metastore.get_all([partition.key(kind) for kind in KINDS]).map(
        lambda page: _keys_of(partition, page)
    )


def local_keys(metastore: Metastore, partition: PartitionId) -> Keys:
    """The keys of a partition, as this node knows them; they may be old."""
    found = [metastore.state.find(partition.key(kind)) for kind in KINDS]
    entries = metastore.entries(one for one in found if one is not None)
    return keys_from(partition, {entry.key: entry for entry in entries})


def carry_out(
    metastore: Metastore,
    partition: PartitionId,
    decide: Decide,
    *,
    known: Keys | None = None,
) -> Future[bool]:
    """Decide on what the keys hold, and write that in one step; gives the decision's answer.

    `known` saves the first read: for a caller that writes nothing if it decides so, or that is the
    coordinator, whose copy has all that was written.
    """
    whole: Future[bool] = Future()
    attempts = 0

    def attempt(keys: Keys) -> None:
        nonlocal attempts
        decision = decide(keys)
        if not decision.operations:
            whole.resolve(decision.answer)
            return
        attempts += 1

        def written(future: Future[Answer]) -> None:
            if future.error is not None:
                whole.reject(future.error)
            elif future.result().answer == DONE:
                whole.resolve(decision.answer)
            elif attempts >= _ATTEMPTS_MAX:
                name = f"partition {partition.number} of table {partition.table}"
                whole.reject(Unavailable(f"the assignments of {name} change too often"))
            else:
                read()

        metastore.invoke(statement(partition, keys, decision)).then(written)

    def read() -> None:
        read_keys(metastore, partition).then(got)

    def got(future: Future[Keys]) -> None:
        if future.error is not None:
            whole.reject(future.error)
        else:
            attempt(future.result())

    if known is not None:
        attempt(known)
    else:
        read()
    return whole


def _keys_of(partition: PartitionId, page: Page) -> Keys:
    found = keys_from(partition, {entry.key: entry for entry in page.entries})
    return msgspec.structs.replace(found, as_of=page.revision)
