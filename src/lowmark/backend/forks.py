"""What gRPC leaves in a child process: nothing that works, and much that waits for ever.

gRPC's threads stay in the parent. In the child, a call waits for an answer of none of them, and so
does the end of a server, which Flight begins by itself when the interpreter ends. So in a child
whatever was made before the fork is left as it is, never ended; and a new connection is refused by
name (`Forked`): a process that wants one is started by `spawn`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any, TypeVar

from lowmark.backend.errors import Forked

T = TypeVar("T")

_made: list[weakref.ref[Any]] = []
_lock = threading.RLock()
"""Guards the list; taken around every fork, so that a child finds it whole."""
_in_child = False


def made(one: T) -> T:
    """Take note of a client or server of Flight's."""
    with _lock:
        _made[:] = [ref for ref in _made if ref() is not None]
        _made.append(weakref.ref(one))
    return one


def check_fork(address: str) -> None:
    """Refuse to use gRPC in a child of a process that did."""
    if _in_child:
        raise Forked(address, opened=False)


def _forked() -> None:
    try:
        _leave_all()
    finally:
        _lock.release()


def _leave_all() -> None:
    global _in_child  # noqa: PLW0603
    left = [one for one in (ref() for ref in _made) if one is not None]
    if not _made:
        return
    _in_child = True
    for one in left:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))  # its destructor must not run, ever
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        if found is not None and any(found[0] is one for one in left):
            finalizer.detach()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forked)
