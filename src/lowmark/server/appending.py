"""A stream of numbered batches from one client, and the answers to it.

Batches are checked and handed over in the order in which they come; the answers come back in the
order in which they are there. One thread reads, another one writes. A stream has so much under way;
then it is not read on, and its client waits. Answers that the client does not take count as under
way, too, and what writes them is watched. What all streams have together is limited, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import Closed, RequestRefused
from lowmark.backend.protocol import (
    Acknowledged,
    acknowledged,
    commands_of,
    decode_places,
    encode_acks,
)
from lowmark.backend.values import Answer, Numbered
from lowmark.catalog import TableId
from lowmark.errors import LowmarkError
from lowmark.group import COMMAND_BYTES
from lowmark.ids import group_name
from lowmark.node import NodeClosing
from lowmark.node.callers import current_caller
from lowmark.node.slots import Slots
from lowmark.server.allowing import check_batch
from lowmark.server.checking import Checker
from lowmark.server.receiving import chunks_of

logger = logging.getLogger(__name__)

STREAM_BYTES: Final = 64 << 20
STREAM_MESSAGES: Final = 16_384
_FULL_S: Final = 1.0
"""So long a batch waits for others to be stored, before it is refused."""
_DRAIN_S: Final = 10.0
_NONE: Final[Mapping[str, int]] = {}
_STREAM_ERRORS = (flight.FlightError, pa.ArrowException, OSError)


class AppendStream:
    """One client's stream."""

    def __init__(
        self,
        backend: Embedded,
        checker: Checker,
        all_bytes: Slots,
        *,
        heard: Callable[[], None],
        watched: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._backend = backend
        self._checker = checker
        self._all_bytes = all_bytes
        self._heard = heard
        self._watched = watched
        """Around what waits for the client to take answers."""
        self._caller = current_caller()
        self._lock = threading.Condition()
        self._acks: list[Acknowledged] = []
        self._messages = 0
        """Under way: received, and not answered."""
        self._bytes = 0
        self._unsent = 0
        """Answers that are not on their way to the client yet."""
        self._ended = False
        """Whether no more answers are written."""

    def run(self, reader: Any, writer: Any) -> None:
        """Until the client has sent all, or is gone."""
        answering = threading.Thread(
            target=self._answer, args=(writer,), name="lowmark-answering", daemon=True
        )
        answering.start()
        try:
            for rows, note in chunks_of(reader, self._backend):
                self._heard()
                self._take(rows, note)
                del rows
                self._wait_for_room()
                if self._ended:
                    break
            self._drain()
        except Closed as error:
            raise NodeClosing from error  # it is this server's end, and not its client's
        finally:
            with self._lock:
                self._ended = True
                self._lock.notify_all()
            answering.join()

    def _take(self, rows: pa.RecordBatch | None, note: pa.Buffer | None) -> None:
        if rows is None or note is None:
            raise RequestRefused("a message of a stream of appends has no batch")
        commands = commands_of(rows)
        places = decode_places(note.to_pybytes(), len(commands))
        with self._lock:
            self._messages += len(commands)
            self._bytes += sum(map(len, commands))
        catalog, well = self._backend.catalog(), list[Numbered]()
        taken = 0
        received = [
            (TableId(table), partition, sent)
            for (_, table, partition), sent in zip(places, commands, strict=True)
        ]
        try:
            wrong = self._checker.check(catalog, received)
            for (number, _, _), (table, partition, sent), why in zip(
                places, received, wrong, strict=True
            ):
                size = len(sent)
                try:
                    if why is not None:
                        raise why
                    check_batch(self._caller, table, sent[COMMAND_BYTES])
                    self._all_bytes.take(size, wait_s=_FULL_S)
                except LowmarkError as error:
                    self._done(number, size, error)
                    continue
                taken += size
                # A copy: the log keeps it until it is in a segment, and writes into the room
                # before it.
                room = memoryview(pa.allocate_buffer(size)).cast("B")
                room[:] = sent
                stored = partial(self._stored, number, size, group_name(table, partition))
                well.append(Numbered(table, partition, room, stored))
            self._hand_over(well)
        except BaseException:
            self._all_bytes.give(taken)  # no batch of the message was handed over
            raise

    def _hand_over(self, well: list[Numbered]) -> None:
        try:
            if well:
                self._backend.put(well)  # all of a message in one turn: they are synced together
        except LowmarkError as error:
            for one in well:
                one.done(error)

    def _stored(self, number: int, size: int, group: str, answer: Answer) -> None:
        self._all_bytes.give(size)
        self._done(number, size, answer, self._backend.lineages.known((group,)))

    def _done(
        self, number: int, size: int, answer: Answer, lineages: Mapping[str, int] = _NONE
    ) -> None:
        """On the loop, mostly: it must not wait."""
        if isinstance(answer, Closed):
            answer = NodeClosing()  # sent again, elsewhere: batches have numbers
        ack = acknowledged(number, answer, lineages)
        with self._lock:
            self._messages -= 1
            self._bytes -= size
            self._unsent += 1
            self._acks.append(ack)
            self._lock.notify_all()

    def _wait_for_room(self) -> None:
        with self._lock:
            while not self._ended and (
                self._bytes > STREAM_BYTES or self._messages + self._unsent > STREAM_MESSAGES
            ):
                self._lock.wait(_FULL_S)

    def _drain(self) -> None:
        """All was sent: wait for the answers that are due."""
        ends_at = time.monotonic() + _DRAIN_S
        with self._lock:
            while not self._ended and (self._messages or self._acks):
                if time.monotonic() > ends_at:
                    return
                self._lock.wait(_FULL_S)

    def _answer(self, writer: Any) -> None:
        """Write answers, as many as are there at a time."""
        try:
            while True:
                with self._lock:
                    while not self._acks and not self._ended:
                        self._lock.wait(_FULL_S)
                    acks, self._acks = self._acks, []
                    if not acks:
                        return
                with self._watched():
                    writer.write_metadata(pa.py_buffer(encode_acks(acks)))
                with self._lock:
                    self._unsent -= len(acks)
                    self._lock.notify_all()
        except _STREAM_ERRORS:
            pass  # the client is gone, or was cut off
        finally:
            with self._lock:
                self._ended = True
                self._lock.notify_all()
