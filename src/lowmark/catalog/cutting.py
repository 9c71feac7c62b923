"""Cuts the update log at a version: the parts of a large snapshot, then the write that counts.

Until that write nothing has changed for any reader. So a node that crashes, or loses to another
cut, on the way there leaves nothing behind but parts that no node reads.
"""

from __future__ import annotations

from collections.abc import Callable

from lowmark.catalog.catalog import Catalog
from lowmark.catalog.errors import CatalogBusy, CutRefused
from lowmark.catalog.update_log import (
    DONE,
    HELD,
    SNAPSHOT_KEY,
    Pieces,
    in_pieces,
    number_in,
    save_part,
    save_snapshot,
)
from lowmark.errors import LowmarkError
from lowmark.group import Future, OutcomeUnknown
from lowmark.metastore import Answer, Condition, Metastore

CUTS_MAX = 10
"""Attempts of one author to cut at one version."""


class Cutting:
    """One cut, in a bounded number of attempts."""

    def __init__(
        self,
        metastore: Metastore,
        version: int,
        *,
        find: Callable[[], Catalog],
        condition: Condition | None,
    ) -> None:
        self.done: Future[bool] = Future()
        """Whether this cut it; False if it was cut there, or further on, already."""
        self._metastore = metastore
        self._version = version
        self._find = find
        self._condition = condition
        self._pieces: Pieces | None = None
        self._attempts = 0
        self._unknown = False
        """Whether an earlier attempt may have done it, which does no harm."""

    def attempt(self) -> None:
        """Look where the log begins, then write."""
        self._attempts += 1
        self._metastore.get(SNAPSHOT_KEY).map(
            lambda entry: number_in(entry.value if entry is not None else None)
        ).then(self._read)

    def _read(self, future: Future[int]) -> None:
        try:
            earliest = future.result()
            if self._version <= max(earliest, 1):
                self.done.resolve(self._unknown and self._version == earliest)
                return
            if self._pieces is None:
                self._pieces = in_pieces(self._find())
            self._save(self._pieces, 0, earliest=earliest)
        except LowmarkError as error:
            self.done.reject(error)

    def _save(self, pieces: Pieces, number: int, *, earliest: int) -> None:
        """The parts from one on, one by one, so that none has to wait long; then the snapshot."""

        def saved(future: Future[Answer]) -> None:
            if future.error is None and future.result().answer == DONE:
                self._save(pieces, number + 1, earliest=earliest)
            else:
                self._not_done(future)

        def cut(future: Future[Answer]) -> None:
            if future.error is None and future.result().answer == DONE:
                self.done.resolve(True)
            else:
                self._unknown = self._unknown or isinstance(future.error, OutcomeUnknown)
                self._not_done(future)

        if number < len(pieces.parts):
            self._metastore.invoke(save_part(pieces, number, earliest=earliest)).then(saved)
        else:
            statement = save_snapshot(pieces, earliest=earliest, condition=self._condition)
            self._metastore.invoke(statement).then(cut)

    def _not_done(self, future: Future[Answer]) -> None:
        error = future.error
        if error is not None and not isinstance(error, OutcomeUnknown):
            self.done.reject(error)
        elif error is None and future.result().answer == HELD:
            self.done.reject(CutRefused(self._version))
        elif self._attempts == CUTS_MAX:
            self.done.reject(error or CatalogBusy(self._attempts))
        else:  # the answer was lost, or another node has cut meanwhile
            self.attempt()
