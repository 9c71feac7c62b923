"""A store that is not of this machine, as far as Lowmark can tell; it can be full, or fail."""

from __future__ import annotations

import errno
import os
from typing import Any

import pyarrow as pa
from pyarrow import fs

from lowmark.runtime.store import Store

__all__ = ["Remote", "put_behind", "remote_store"]


class Remote(fs.FileSystemHandler):  # type: ignore[misc]
    """A folder behind a handler: nothing of it can be mapped, renamed or synced from here."""

    def __init__(self) -> None:
        self._system = fs.LocalFileSystem()
        self.space_bytes: int | None = None
        """How much may still be written; None: as much as anybody likes."""
        self.broken = ""
        """The name of a call that fails; `all`: no call is answered."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = None  # type: ignore[assignment]

    def _check(self, call: str) -> None:
        if self.broken in {call, "all"}:
            raise OSError(errno.EIO, "the line is dead")

    def get_type_name(self) -> str:
        return "remote"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        self._check("get_file_info")
        return self._system.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        self._check("get_file_info")
        return self._system.get_file_info(selector)

    def open_input_file(self, path: str) -> Any:
        self._check("open_input_file")
        if self.broken == "read":
            return pa.PythonFile(_Dying(path), mode="r")
        return self._system.open_input_file(path)

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def open_output_stream(self, path: str, metadata: object) -> Any:
        del metadata
        self._check("open_output_stream")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return pa.PythonFile(_Writing(self, path), mode="w")

    def open_append_stream(self, path: str, metadata: object) -> Any:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self._check("delete_file")
        os.unlink(path)

    def delete_dir(self, path: str) -> None:
        self._check("delete_dir")
        self._system.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def create_dir(self, path: str, recursive: bool) -> None:
        self._system.create_dir(path, recursive=recursive)

    def move(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError


class _Dying:
    """A file that was opened before the line died."""

    closed = False

    def __init__(self, path: str) -> None:
        self._size = os.path.getsize(path)
        self._at = 0

    def seek(self, place: int, whence: int = 0) -> int:
        self._at = place + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, count: int) -> bytes:
        raise OSError(errno.EIO, "the line is dead")

    def close(self) -> None:
        self.closed = True


class _Writing:
    """What is written appears when it is closed, as in an object store."""

    def __init__(self, remote: Remote, path: str) -> None:
        self._remote = remote
        self._path = path
        self._data = bytearray()
        self.closed = False

    def write(self, data: Any) -> int:
        room = self._remote.space_bytes
        if room is not None and len(data) > room:
            raise OSError(errno.ENOSPC, "no space is left")
        if room is not None:
            self._remote.space_bytes = room - len(data)
        self._data += data
        return len(data)

    def tell(self) -> int:
        return len(self._data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with open(self._path, "wb") as file:
                file.write(self._data)


def remote_store(root: str) -> tuple[Store, Remote]:
    """A store behind a handler, and the handler."""
    remote = Remote()
    store = Store(root)
    put_behind(store, remote)
    return store, remote


def put_behind(store: Store, remote: Remote) -> None:
    """Have a store reach its files by the handler from now on."""
    store._system = fs.PyFileSystem(remote)
    store.local = False
