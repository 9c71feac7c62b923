"""Files as memory, shared by all who read them and for as long as anybody does.

A mapping keeps a file handle, and keeps a file that was removed on the disk. So a file is mapped
once, however many parts of it are in use, and no more than a number of files are: beyond it, and
on disks that can't map, whoever reads gets a copy.
"""

from __future__ import annotations

import mmap
import threading
import weakref

from lowmark.runtime.disk import File

__all__ = ["FILES_MAPPED_MAX", "Mappings"]

FILES_MAPPED_MAX = 128


class Mappings:
    """May be asked on any thread."""

    def __init__(self, files_max: int = FILES_MAPPED_MAX) -> None:
        self._files_max = files_max
        self._lock = threading.Lock()
        self._mapped: weakref.WeakValueDictionary[tuple[str, bytes], mmap.mmap] = (
            weakref.WeakValueDictionary()
        )

    def __len__(self) -> int:
        return len(self._mapped)

    def whole(self, file: File, path: str, head: bytes) -> memoryview | None:
        """The whole of an open file; None if it is to be read instead.

        `head` are its first bytes: a name may be given to another file.
        """
        with self._lock:
            known = self._mapped.get((path, head))
            if known is not None:
                return memoryview(known)
            if len(self._mapped) >= self._files_max:
                return None
            view = file.map()
            if isinstance(view.obj, mmap.mmap):
                self._mapped[path, head] = view.obj
            return view
