"""Where a file's bytes come from: a path or a stream, with how far reading is."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Self

import pyarrow as pa

from lowmark.convert.errors import LineRefused

RECORD_BYTES_MAX = 64 << 20
"""How long one row may be as text; a quote that is never closed would else take all memory."""

_COPY_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Some rows of a file, in the table's schema."""

    batch: pa.RecordBatch
    first_row: int
    """How many rows of the file come before these."""
    bytes_done: int
    """How much of the file is read, this batch included."""
    bytes_total: int | None
    """The size of the file; of a pipe, it is not known."""


class Source:
    """Bytes from the first to the last, with a look at the first ones before."""

    def __init__(self, stream: BinaryIO, name: str, *, path: str | None, size: int | None) -> None:
        self._stream = stream
        self._path = path
        self._ahead = b""
        self._temporary = ExitStack()
        self.name = name
        self.size = size
        self.done = 0
        self.closed = False

    @classmethod
    @contextmanager
    def opened(
        cls, file: str | os.PathLike[str] | BinaryIO, name: str | None = None
    ) -> Iterator[Self]:
        """Open a path, or take a stream that is open; only what was opened here is closed."""
        with ExitStack() as stack:
            if isinstance(file, str | os.PathLike):
                path = os.fspath(file)
                stream = stack.enter_context(open(path, "rb"))
                status = os.fstat(stream.fileno())
                regular = stat.S_ISREG(status.st_mode)
                source = cls(
                    stream,
                    name or path,
                    path=path if regular else None,
                    size=status.st_size if regular else None,
                )
            else:
                source = cls(file, name or "the input", path=None, size=None)
            stack.enter_context(source._temporary)
            yield source

    @property
    def ending(self) -> str:
        """The ending of the file's name, such as `.csv`."""
        return os.path.splitext(self.name)[1].lower()

    def peek(self, count: int) -> bytes:
        """The next bytes, which stay the next ones; fewer only at the end."""
        if len(self._ahead) < count:
            self._ahead += self._read(count - len(self._ahead))
        return self._ahead[:count]

    def read(self, count: int) -> bytes:
        """Take the next bytes; fewer only at the end."""
        found, self._ahead = self._ahead[:count], self._ahead[count:]
        if len(found) < count:
            found += self._read(count - len(found))
        self.done += len(found)
        return found

    def _read(self, count: int) -> bytes:
        # A pipe gives what it has; that is not the end.
        parts = []
        while count and (part := self._stream.read(count)):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Take no more; Arrow calls it. What is open is closed by who opened it."""
        self.closed = True

    def to_seek_in(self) -> pa.NativeFile:
        """The whole as a file in which one can go back and forth; nothing was read before."""
        if self._path is not None:
            return self._temporary.enter_context(pa.OSFile(self._path))
        made = tempfile.NamedTemporaryFile(prefix="lowmark-")  # noqa: SIM115 - the next line is it
        copy = self._temporary.enter_context(made)
        copy.write(self._ahead)
        self._ahead = b""
        shutil.copyfileobj(self._stream, copy, _COPY_BYTES)
        copy.flush()
        self.size = os.fstat(copy.fileno()).st_size
        return self._temporary.enter_context(pa.OSFile(copy.name))


def text_blocks(
    source: Source, whole_until: Callable[[bytes], int], *, size: int
) -> Iterator[tuple[bytes, int, int]]:
    """Blocks of whole rows, each with the line that it begins with, and the bytes done after it.

    `whole_until` says where in some bytes the last row ends that is whole, or 0; `size` is how much
    is read at once.
    """
    rest, line, done, want = b"", 1, 0, size
    if source.peek(3) == _BYTE_ORDER_MARK:
        done += len(source.read(3))
    at_end = False
    while not at_end:
        more = source.read(want)
        at_end = len(more) < want
        block = rest + more
        # The last row may do without its line end.
        end = whole_until(block + b"\n") if at_end and block[-1:] != b"\n" else whole_until(block)
        if end:
            rows, rest = (block, b"") if end >= len(block) else (block[:end], block[end:])
            done += len(rows)
            yield rows, line, done
            line += lines_in(rows)
            want = size
            continue
        rest = block
        want = max(size, len(rest))  # twice as much, not block by block again
        if len(rest) > RECORD_BYTES_MAX:
            raise LineRefused(
                f"the row that begins here is longer than {RECORD_BYTES_MAX >> 20} MiB",
                file=source.name,
                line=line,
                hint="Is a quote not closed?",
            )
    if rest:
        raise LineRefused(
            "a quote is not closed",
            file=source.name,
            line=line,
            hint="Inside quotes, a quote is written twice.",
        )


def lines_in(block: bytes) -> int:
    """How many lines end in some bytes: with LF, CR LF, or CR alone."""
    returns = block.count(b"\r")
    if not returns:
        return block.count(b"\n")
    return block.count(b"\n") + returns - block.count(b"\r\n")
