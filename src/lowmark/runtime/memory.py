"""Memory to read into that is used again when nobody looks at what was read any more.

Memory that is new to a process is handed out page by page, and that takes longer than reading into
it. What a reader passes on and lets go is soon at hand again.
"""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pyarrow as pa

PIECE_BYTES = 4 << 20
_FREE_PIECES_MAX = 8


class Memory:
    """Pieces of one size. May be used on any thread."""

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        self._piece_bytes = piece_bytes
        self._lock = threading.Lock()
        self._free: list[bytearray] = []

    def allocate(self, length: int) -> memoryview:
        """This many bytes, with anything in them."""
        if not self._piece_bytes // 4 < length <= self._piece_bytes:
            return memoryview(pa.allocate_buffer(length)).cast("B")
        with self._lock:
            piece = self._free.pop() if self._free else bytearray(self._piece_bytes)
        # Every view of it keeps the array, and so the piece out of the list.
        array = np.frombuffer(piece, np.uint8)
        weakref.finalize(array, self._give_back, piece).atexit = False
        return memoryview(array)[:length]  # type: ignore[arg-type]

    def _give_back(self, piece: bytearray) -> None:
        with self._lock:
            if len(self._free) < _FREE_PIECES_MAX:
                self._free.append(piece)
