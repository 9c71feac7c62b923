"""Messages of a client's stream, with a bound for what they hold in memory.

Arrow Flight unpacks a message before any code of ours can look at it: its reader is made below
Python, with options that can't be set, it gives neither a message's metadata nor its packed bytes,
and neither a middleware nor gRPC's limits know how large a message becomes. So a few kilobytes of
a client can take as much memory as it wants, for a moment. What is done here is all that there is:
nothing further is made of a message that is too large, it is let go of before the error is told,
and its memory goes back to the system. What is packed inside of a message (batches as they stand in
the log) is looked at before it is unpacked (`Checker`), and so are files.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa

from lowmark.backend.embedded import Embedded
from lowmark.backend.errors import RequestRefused
from lowmark.runtime import RealLoop
from lowmark.table.unpacking import UNPACKED_BYTES_MAX

_LARGE_BYTES: Final = 32 << 20
"""After a message that large, memory is given back at the end of the stream."""
_GIVE_BACK_MS: Final = 1_000


def chunks_of(
    reader: Any, backend: Embedded
) -> Iterator[tuple[pa.RecordBatch | None, pa.Buffer | None]]:
    """The rows and the note of each message, until the client has sent all."""
    largest = 0
    try:
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            except pa.ArrowInvalid as error:
                raise RequestRefused(f"a message can't be read: {error}") from error
            rows, note = chunk.data, chunk.app_metadata
            del chunk
            size = 0 if rows is None else rows.get_total_buffer_size()
            largest = max(largest, size)
            if size > UNPACKED_BYTES_MAX:
                del rows
                raise RequestRefused(
                    f"a batch of {size:,} bytes is too large",
                    detail=f"At most {UNPACKED_BYTES_MAX:,} bytes are taken at once, unpacked."
                    " Nothing of the batch was stored.",
                    hint="Send fewer rows in a batch: write_table(rows, max_chunksize=10_000).",
                )
            yield rows, note
            del rows
    finally:
        if largest > _LARGE_BYTES:
            backend.tell(partial(_give_back, backend.node.loop))


def _give_back(loop: RealLoop) -> None:
    """On the loop, in a moment: until then an error may hold what it was raised over. Arrow's
    allocator gives back what another thread has used only where the process's main thread asks for
    it, and a node that is served has its loop there; else it does by and by, as that thread uses
    memory.
    """
    loop.call_later(_GIVE_BACK_MS, pa.default_memory_pool().release_unused)
