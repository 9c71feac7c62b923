"""Quick calls over open streams: a message there costs a third of what an action does.

A call takes a stream that is free, or opens one; so there are as many as there are calls at a time,
and few of them stay. A message on an open stream has no time limit of its own: a thread looks after
the calls that are under way and cancels the stream of one that takes too long.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

STREAMS_KEPT: Final = 4
_LOOK_S: Final = 0.25
_STREAM_ERRORS = (flight.FlightError, pa.ArrowException, OSError)


class CallStreams:
    """The streams of one client. May be used on any thread."""

    def __init__(self, open_stream: Callable[[], tuple[Any, Any]]) -> None:
        self._open = open_stream
        self._free: list[tuple[Any, Any]] = []
        self._under_way: dict[int, tuple[float, Any]] = {}
        """When each call is over by its caller's time, and what ends it."""
        self._watching: threading.Thread | None = None
        self._age = 0
        """How often those that were free were ended: what was opened before is not kept."""
        self._closed = False

    def ask(self, body: bytes, timeout_s: float) -> bytes:
        """The answer to a request; raises Flight's errors."""
        if self._watching is None or not self._watching.is_alive():
            self._watch()
        age = self._age
        try:
            writer, reader = self._free.pop()
        except IndexError:
            writer, reader = self._open()
        me = threading.get_ident()
        self._under_way[me] = (time.monotonic() + timeout_s, reader)
        try:
            writer.write_metadata(pa.py_buffer(body))
            chunk = reader.read_chunk()
        except StopIteration:
            _end(writer, reader)
            raise flight.FlightUnavailableError("the stream of calls has ended") from None
        except BaseException as error:
            late = self._under_way.get(me) is None
            _end(writer, reader)
            if late and isinstance(error, _STREAM_ERRORS):
                raise flight.FlightTimedOutError("no answer came in time") from error
            raise
        finally:
            self._under_way.pop(me, None)
        if len(self._free) < STREAMS_KEPT and not self._closed and age == self._age:
            self._free.append((writer, reader))
        else:
            _end(writer, reader)
        answer: bytes = chunk.app_metadata.to_pybytes()
        return answer

    def close(self) -> None:
        """End those that are free, and keep none any more."""
        self._closed = True
        self.end_free()

    def end_free(self) -> None:
        """End those that are free, and keep none of those that are in use."""
        self._age += 1
        while self._free:
            with contextlib.suppress(IndexError):
                _end(*self._free.pop())

    def _watch(self) -> None:
        thread = threading.Thread(target=self._run, name="lowmark-calls", daemon=True)
        thread.start()
        self._watching = thread

    def _run(self) -> None:
        while not self._closed:
            time.sleep(_LOOK_S)
            now = time.monotonic()
            for me, (ends_at, reader) in list(self._under_way.items()):
                if now > ends_at and self._under_way.pop(me, None) is not None:
                    with contextlib.suppress(*_STREAM_ERRORS):
                        reader.cancel()


def _end(writer: Any, reader: Any) -> None:
    """Give a stream back; closing waits for the server, so it is cancelled first."""
    for end in (reader.cancel, writer.close):
        with contextlib.suppress(*_STREAM_ERRORS):
            end()
