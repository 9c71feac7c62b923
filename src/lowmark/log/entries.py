"""Entries and runs of entries.

A run is what one append brought: consecutive entries of one group and one term, held as three flat
buffers (lengths, checksums, payload), so that nothing between the caller and the disk touches
single entries. An entry's checksum is computed once, when it enters the log, over its data;
wherever the entry is stored with its index and term, they are folded in (data first, then index,
then term), so that an entry that strayed to another index is found, too.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from lowmark.runtime import Buffer

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

_INDEX_TERM = struct.Struct("<QQ")


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One entry as it is read back."""

    index: int
    term: int
    data: Buffer


@dataclass(frozen=True, slots=True)
class LargePlace:
    """Where a large entry's bytes lie: file number and the offset of its data."""

    number: int
    offset: int


class Run(msgspec.Struct, kw_only=True, eq=False, gc=False):
    """Consecutive entries of one term, as flat buffers. Immutable but for where it is stored.

    There may be a million of them in memory, so the garbage collector is told to leave them alone:
    nothing that a run holds leads back to it.
    """

    first: int
    term: int
    count: int
    head: Buffer
    """All lengths, then all data checksums: how the WAL stores them."""
    payload: Buffer
    """The entries' data; empty for a recovered large entry, which is read from its file."""
    data_bytes: int
    """How much data it stands for, in memory or not."""
    kept: int
    """How many of its entries no newer run has overwritten; always the first ones."""
    wal: int = 0
    """The WAL file that holds the run; 0 while none does."""
    large: LargePlace | None = None
    bytes_before: int = 0
    """How much data the memtable's runs before it have, and had; see `Memtable.bytes_within`."""
    known_starts: U64 | None = None

    @property
    def lengths(self) -> memoryview:
        """The entries' lengths, four bytes each."""
        return memoryview(self.head)[: 4 * self.count]

    @property
    def checksums(self) -> memoryview:
        """The checksums of the entries' data, four bytes each."""
        return memoryview(self.head)[4 * self.count :]

    @property
    def last(self) -> int:
        """The index of its last entry, overwritten or not."""
        return self.first + self.count - 1

    @property
    def kept_last(self) -> int:
        """The index of its last entry that is not overwritten."""
        return self.first + self.kept - 1

    def starts(self) -> U64:
        """Where each entry begins in the payload, and where the last one ends."""
        if self.known_starts is None:
            starts = np.zeros(self.count + 1, np.uint64)
            np.cumsum(np.frombuffer(self.lengths, np.uint32), out=starts[1:], dtype=np.uint64)
            self.known_starts = starts
        return self.known_starts

    def entry(self, index: int) -> Entry:
        """One entry of the run."""
        if self.count == 1:
            return Entry(index, self.term, self.payload)
        starts = self.starts()
        at = index - self.first
        return Entry(
            index, self.term, memoryview(self.payload)[int(starts[at]) : int(starts[at + 1])]
        )

    def entries(self, low: int, high: int) -> list[Entry]:
        """The entries from `low` up to and including `high`."""
        if self.count == 1:
            return [Entry(self.first, self.term, self.payload)]
        payload, term = memoryview(self.payload), self.term
        bounds = self.starts()[low - self.first : high - self.first + 2].tolist()
        return [
            Entry(index, term, payload[start:end])
            for index, (start, end) in enumerate(itertools.pairwise(bounds), start=low)
        ]

    @property
    def kept_bytes(self) -> int:
        """How much data is not overwritten."""
        return self.data_bytes if self.kept == self.count else int(self.starts()[self.kept])

    def bytes_below(self, index: int) -> int:
        """How much data its entries before an index have."""
        at = index - self.first
        return self.data_bytes if at >= self.count else 0 if at <= 0 else int(self.starts()[at])


def own(data: Buffer) -> Buffer:
    """A buffer as flat bytes that nobody changes any more; copied only if somebody could.

    A view of wider items has fewer items than bytes, and a writable one may change after its
    checksum was taken.
    """
    if type(data) is bytes:
        return data
    view = memoryview(data)
    if not view.readonly or not view.c_contiguous:
        return view.tobytes()
    return view if view.ndim == 1 and view.itemsize == 1 else view.cast("B")


def run_of(first: int, term: int, datas: Sequence[Buffer]) -> Run:
    """Make a run of what a caller appends; the buffers are its own (see `own`)."""
    count = len(datas)
    payload = datas[0] if count == 1 else b"".join(datas)
    head = array("I", map(len, datas))
    head.extend(map(crc32c, datas))
    return Run(
        first=first,
        term=term,
        count=count,
        head=head.tobytes(),
        payload=payload,
        data_bytes=len(payload),
        kept=count,
    )


def entry_checksum(index: int, term: int, data: Buffer) -> int:
    """The stored checksum of one entry."""
    return int(crc32c(_INDEX_TERM.pack(index, term), crc32c(data)))


def _sixteen_tables() -> U32:
    tables = np.zeros((16, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        tables[0, byte] = value
    for k in range(1, 16):
        previous = tables[k - 1]
        tables[k] = tables[0][previous & 0xFF] ^ (previous >> 8)
    return tables


_TABLES = _sixteen_tables()


def fold_checksums(checksums: U32, indexes: U64, terms: U64) -> U32:
    """`entry_checksum` for many entries whose data checksums are known, without a Python loop.

    CRC-32C of sixteen more bytes is the exclusive or of sixteen table look-ups, where the present
    state is first folded into the first four bytes.
    """
    suffix = np.empty((len(indexes), 16), np.uint8)
    suffix[:, :8] = np.ascontiguousarray(indexes, "<u8").view(np.uint8).reshape(-1, 8)
    suffix[:, 8:] = np.ascontiguousarray(terms, "<u8").view(np.uint8).reshape(-1, 8)
    suffix[:, :4] ^= (~checksums).astype("<u4", copy=False).view(np.uint8).reshape(-1, 4)
    state = _TABLES[15][suffix[:, 0]]
    for k in range(1, 16):
        state ^= _TABLES[15 - k][suffix[:, k]]
    folded: U32 = ~state
    return folded
