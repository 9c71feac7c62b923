"""Rows on their way to a server: one stream for all appenders of a client, many batches under way.

The numbers are given here, by the same `Producing` that a node in this process uses: what it takes
for a partition is a way to one, which sends the batch and has the answer come back. When a stream
breaks, every batch without an answer has an unknown outcome; `Producing` sends it again under its
number, on the next stream, until its time is over. So a server that was killed and started again
stores each batch once.

One lock stands for the loop: whatever `Producing` does is done while it is held. Nothing waits for
the network there: a thread writes what is to be sent (and calls what is due), another one per
stream reads the answers.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import flight

from lowmark.backend.connection import Connection, is_left_behind
from lowmark.backend.errors import Ended
from lowmark.backend.port import passed
from lowmark.backend.protocol import (
    COMMANDS,
    commands_batch,
    decode_acks,
    encode_places,
)
from lowmark.backend.values import Answer
from lowmark.catalog import Table, TableId
from lowmark.errors import LowmarkError, Unavailable
from lowmark.group import COMMAND_BYTES, Future, NotLeader, OutcomeUnknown
from lowmark.runtime import Buffer
from lowmark.table import Appended, Outgoing, Producing, Renewal
from lowmark.tokens import Unauthenticated

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_SILENT_S = 2.0
"""When no answer came for so long, the server is asked whether it is there at all."""
_UNSERVED_S = 3.0
_UNSERVED_MAX_S = 12.0
"""When nothing was stored or refused for so long, another server is tried, if there is one; after
each round of all servers they have twice the time.
"""
_ROOM = bytes(COMMAND_BYTES)
_MESSAGE_BYTES = 4 << 20
_MESSAGE_BATCHES = 256


class RemoteSent:
    """See `Sent`. It is settled once, by whichever thread has the last answer."""

    __slots__ = ("__weakref__", "_answers", "_ended", "_latch", "_parts", "bytes")

    def __init__(
        self, parts: Sequence[tuple[int, Outgoing]], ended: Callable[[], LowmarkError | None]
    ) -> None:
        self._parts = len(parts)
        self._ended = ended
        self.bytes = sum(len(batch.message) for _, batch in parts)
        self._answers: list[Answer] | None = None
        self._latch = threading.Lock()
        self._latch.acquire()

    def settle(self, answers: list[Answer]) -> None:
        """The answers are there."""
        self._answers = answers
        self._latch.release()

    @property
    def done(self) -> bool:
        """See `Sent`."""
        return self._answers is not None

    def answers(self, timeout_s: float | None = None) -> list[Answer] | None:
        """See `Sent`."""
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        while self._answers is None:
            left = _LOOK_S if ends_at is None else min(_LOOK_S, ends_at - time.monotonic())
            if left <= 0:
                return None
            if self._latch.acquire(timeout=left):
                self._latch.release()  # for the next thread that waits
            elif (ended := self._ended()) is not None and not self.done:
                return [ended] * self._parts
        return self._answers


class _Way:
    """The way to one partition; see `table.producing.Destination`. Errors name it as the group."""

    def __init__(self, appends: RemoteAppends, table: TableId, number: int) -> None:
        self._appends = appends
        self.table = table
        self.number = number
        self.name = f"table.{table}.{number}"

    @property
    def group(self) -> _Way:
        return self

    @property
    def replicated(self) -> bool:
        return self._appends.has_others

    def propose(self, command: Buffer, *, in_place: bool = False) -> Future[object]:
        return self._appends.submit(self, command if in_place else _ROOM + bytes(command))


class RemoteAppender:
    """See `Appender`."""

    def __init__(
        self,
        appends: RemoteAppends,
        check: Callable[[], None],
        table: TableId,
        *,
        described: Callable[[bool], Table | None],
        producer: bytes,
        epoch: int,
        timeout_ms: int,
    ) -> None:
        self._appends = appends
        self._check = check
        self._table = table
        self._ways: dict[int, _Way] = {}
        self._described = described
        """The table as it is known here; with True, as it is now."""
        self._renewal = Renewal(lambda: described(False))
        self._producing = Producing(
            appends, producer=producer, epoch=epoch, timeout_ms=timeout_ms, renew=self._renew
        )

    def send(self, parts: Sequence[tuple[int, Outgoing]]) -> RemoteSent:
        """See `Appender`."""
        self._check()
        for _, batch in parts:
            self._renewal.knows(batch.schema)
        sent = RemoteSent(parts, self._appends.ended)
        if not parts:
            sent.settle([])
            return sent
        with self._appends.lock:
            self._appends.begin()
            self._send(parts, sent)
        self._appends.flush()
        self._appends.keep_up()
        return sent

    def _renew(self, batch: Outgoing) -> Future[Outgoing]:
        """Holding the lock; the server is asked on a thread of its own."""
        future: Future[Outgoing] = Future()

        def ask() -> None:
            renewed: Outgoing | None = None
            error: LowmarkError = Unavailable("rows could not be encoded anew")
            try:
                renewed = self._renewal.renewed(batch, self._described(True))
            except LowmarkError as refused:
                error = refused
            finally:
                with self._appends.lock:
                    if renewed is None:
                        future.reject(error)
                    else:
                        future.resolve(renewed)

        try:
            _start(threading.Thread(target=ask, name="lowmark-renewing", daemon=True))
        except Unavailable as error:
            future.reject(error)
        return future

    def _send(self, parts: Sequence[tuple[int, Outgoing]], sent: RemoteSent) -> None:
        """Holding the lock."""
        answers: list[Answer | None] = [None] * len(parts)
        left = len(parts)

        def answered(at: int, future: Future[Appended]) -> None:
            nonlocal left
            left -= 1
            answers[at] = future.error if future.error is not None else future.result()
            if not left:
                sent.settle([answer for answer in answers if answer is not None])

        for at, (number, batch) in enumerate(parts):
            way = self._ways.get(number)
            if way is None:
                way = self._ways[number] = _Way(self._appends, self._table, number)
            future = self._producing.send(way, batch)
            future.then(lambda done, at=at: answered(at, done))  # type: ignore[misc]


_Item: TypeAlias = tuple[int, _Way, Buffer]
"""A number, where it goes, and the batch with room in front of it."""


def _messages(items: list[_Item]) -> Iterator[list[_Item]]:
    """As they go into messages, in order: a message has at least one, and not too many bytes."""
    some: list[_Item] = []
    size = 0
    for item in items:
        if some and (size + len(item[2]) > _MESSAGE_BYTES or len(some) >= _MESSAGE_BATCHES):
            yield some
            some, size = [], 0
        some.append(item)
        size += len(item[2])
    if some:
        yield some


class RemoteAppends:
    """All appends of a client. It is the loop of its producers: see `table.producing.Timed`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.lock = threading.Lock()
        self._work = threading.Condition(self.lock)
        self._numbers = count()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._outbox: deque[_Item] = deque()
        self._writing = threading.Lock()
        """Taken before the other lock: one thread writes to the stream at a time, in order."""
        self._under_way: dict[int, tuple[_Way, Future[object]]] = {}
        """Everything that has no answer; the outbox has those that were not written yet."""
        self._stream: Any = None
        self._refused = False
        """Whether the last stream ended because the server did not take the client's token."""
        """What is written to; None: there is no stream."""
        self._there: Any = None
        """The way that the last stream went."""
        self._unserved_since: float | None = None
        """Since when something waits, and nothing was stored or refused; None: nothing waits."""
        self._unserved_s = _UNSERVED_S
        self._moves = 0
        """How many servers were left since something was last stored or refused."""
        self._pump: threading.Thread | None = None
        self._heard_at = 0.0
        """When an answer came, or the first of those that wait was sent."""
        self._asking: threading.Thread | None = None
        self._elsewhere = False
        """Whether another server is to be tried."""
        self._anew = False
        """Whether the stream says less of resets than is known by now: another one is to begin."""
        self.latest_time = 0
        """Of the rows that were stored."""
        self._closed = False

    @property
    def loop(self) -> RemoteAppends:
        """Itself."""
        return self

    def keep_up(self) -> None:
        """See `Connection`."""
        self._connection.keep_up()

    @property
    def has_others(self) -> bool:
        """Whether the server has others beside it."""
        return self._connection.has_others

    def elapsed_us(self) -> int:
        """See `Timers`."""
        return time.monotonic_ns() // 1_000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> None:
        """See `Timers`; holding the lock."""
        due = time.monotonic() + delay_ms / 1_000
        heapq.heappush(self._timers, (due, next(self._numbers), callback))
        self._work.notify()

    def ended(self) -> LowmarkError | None:
        """Why there will be no answer any more, if so."""
        pump = self._pump
        if self._closed:
            return Ended(self._connection.address)
        if pump is not None and not pump.is_alive():
            dead = RuntimeError("the thread that sends rows has ended")
            return Ended(self._connection.address, dead)
        return None

    def begin(self) -> None:
        """Have a thread send; holding the lock. Raises before anything has a number."""
        if self._closed or (self._pump is not None and self._pump.is_alive()):
            return
        pump = threading.Thread(target=self._run, name="lowmark-appends", daemon=True)
        _start(pump)
        self._pump = pump

    def submit(self, way: _Way, room: Buffer) -> Future[object]:
        """Have a batch sent; holding the lock."""
        future: Future[object] = Future()
        number = next(self._numbers)
        if not self._under_way:
            self._heard_at = time.monotonic()
        if self._unserved_since is None:
            self._unserved_since = time.monotonic()
        self._under_way[number] = (way, future)
        self._outbox.append((number, way, room))
        return future

    def flush(self) -> None:
        """There is something to send: on this thread, if there is a stream and no other writes."""
        if self._stream is not None and self._writing.acquire(blocking=False):
            try:
                self._write_some()
            finally:
                self._writing.release()
        if self._outbox:
            with self.lock:
                self._work.notify()

    def begin_again(self) -> None:
        """Have all that has no answer sent again, with what is known of resets by now."""
        with self.lock:
            self._anew = self._stream is not None
            self._work.notify()

    def close(self) -> None:
        """End all; what has no answer never gets one."""
        with self.lock:
            self._closed = True
            self._work.notify_all()
        if self._pump is not None:
            self._pump.join(_LOOK_S)

    # -- what is sent, on the pump's thread -------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self.lock:
                self._call_due()
                if not self._outbox and not self._closed and not self._anew:
                    self._work.wait(self._until_due())
                    self._call_due()
                if self._closed:
                    break
                self._look_after()
                left, self._elsewhere = self._elsewhere, False
            if left:
                self._connection.leave()
            if left or self._anew:
                why = "the server stores nothing" if left else "a partition was reset"
                self._broken(self._stream, Unavailable(why))
            with self._writing:
                self._write_some()
        stream = self._stream
        if stream is not None:
            with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
                stream.done_writing()
            _end(stream)

    def _look_after(self) -> None:
        """Holding the lock: a server that is suspended, or cut off, breaks no stream by itself."""
        since = self._unserved_since
        if since is not None and time.monotonic() - since > self._unserved_s:
            self._unserved_since = time.monotonic()
            self._moves += 1
            others = self._connection.others
            self._elsewhere = others > 0
            if self._moves % (others + 1) == 0:
                self._unserved_s = min(2 * self._unserved_s, _UNSERVED_MAX_S)
        silent = self._under_way and time.monotonic() - self._heard_at > _SILENT_S
        busy = self._asking is not None and self._asking.is_alive()
        if silent and self._stream is not None and not busy:
            asking = threading.Thread(
                target=self._ask, args=(self._stream,), name="lowmark-asking", daemon=True
            )
            with contextlib.suppress(Unavailable):
                _start(asking)
                self._asking = asking

    def _ask(self, stream: Any) -> None:
        if not self._connection.answers():
            self._broken(stream, Unavailable("the server gives no answer"))
        else:
            self._heard_at = time.monotonic()

    def _call_due(self) -> None:
        """Holding the lock."""
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now and not self._closed:
            _, _, callback = heapq.heappop(self._timers)
            callback()

    def _until_due(self) -> float:
        until = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else _LOOK_S
        return min(until, _LOOK_S)

    def _write_some(self) -> None:
        """Write what is there, many batches a message; by one thread at a time."""
        with self.lock:
            some = list(self._outbox)
            self._outbox.clear()
            stream = self._stream
        if not some:
            return
        try:
            if stream is None:
                stream = self._open()
            for message in _messages(some):
                places = [(number, way.table, way.number) for number, way, _ in message]
                commands = commands_batch([room for _, _, room in message])
                stream.write_with_metadata(commands, pa.py_buffer(encode_places(places)))
        except (flight.FlightError, pa.ArrowException, OSError, LowmarkError) as error:
            self._broken(stream, error)

    def _open(self) -> Any:
        said = self._connection.lineages.known()
        writer, reader, there = self._connection.exchange()
        writer.begin(COMMANDS)
        name = "lowmark-answers"
        thread = threading.Thread(
            target=self._listen, args=(writer, reader), name=name, daemon=True
        )
        with self.lock:  # before it may hear that the stream has ended
            _start(thread)
            self._stream, self._there = writer, there
            self._anew = passed(said, self._connection.lineages.known())
        return writer

    # -- answers, on a thread of their stream -----------------------------------------------------

    def _listen(self, stream: Any, reader: Any) -> None:
        error: Exception = Unavailable("the server has ended the stream of appends")
        try:
            while True:
                chunk = reader.read_chunk()
                if chunk.app_metadata is not None:
                    answers, lineages = decode_acks(chunk.app_metadata.to_pybytes())
                    self._answered(stream, answers)
                    self._connection.hears(lineages)
        except StopIteration:
            pass
        except (flight.FlightError, pa.ArrowException, OSError, LowmarkError) as failed:
            error = failed
        self._broken(stream, error)

    def _answered(self, stream: Any, answers: list[tuple[int, Answer]]) -> None:
        with self.lock:
            if self._anew and stream is self._stream:
                return  # they may be of a node that was left behind: all is asked again
            if any(isinstance(one, LowmarkError) and is_left_behind(one) for _, one in answers):
                self._elsewhere = self.has_others
            self._heard_at = time.monotonic()
            self._refused = False
            if any(not _is_stuck(answer) for _, answer in answers):
                self._unserved_since = self._heard_at
                self._unserved_s, self._moves = _UNSERVED_S, 0
            for number, answer in answers:
                _, future = self._under_way.pop(number, (None, None))
                if future is None:
                    continue
                if isinstance(answer, LowmarkError):
                    future.reject(answer)
                else:
                    self.latest_time = max(self.latest_time, answer.time)
                    future.resolve(answer)
            if not self._under_way and self._unserved_since == self._heard_at:
                self._unserved_since = None
            if self._outbox:
                self._work.notify()

    def _broken(self, stream: Any, error: Exception) -> None:
        """A stream has ended: what has no answer is to be sent again."""
        there = None if stream is None else self._there
        named, _ = self._connection.in_our_words("append", error, there)
        with self.lock:
            if self._closed or (stream is not None and stream is not self._stream):
                return
            self._stream, self._anew = None, False
            # Of the first stream that ends so, batches may be stored; of the next one, refused as
            # it begins, none are: to send them again would not end.
            refused, self._refused = self._refused, isinstance(named, Unauthenticated)
            final = refused and self._refused
            lost, self._under_way = self._under_way, {}
            waiting = {number for number, _, _ in self._outbox}
            self._outbox.clear()
            for number, (way, future) in lost.items():
                if number in waiting or stream is None or final:
                    future.reject(named)  # it was never sent
                else:
                    future.reject(OutcomeUnknown(way.name, why=named.message))
            self._work.notify()
        if stream is not None:
            with contextlib.suppress(Unavailable):  # then it ends when it is collected
                _start(threading.Thread(target=_end, args=(stream,), daemon=True))


def _is_stuck(answer: Answer) -> bool:
    """Whether the server could neither store nor refuse it: it may be cut off from the others."""
    return isinstance(answer, Unavailable | NotLeader)


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        raise Unavailable(f"this process can start no more threads ({error})") from error


def _end(stream: Any) -> None:
    """Give the stream back; that may wait for the network."""
    with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
        stream.close()
