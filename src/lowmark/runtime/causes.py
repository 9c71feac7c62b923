"""What Python raises when this process has run out of something, by our names.

Code does not expect these where they happen: they may come from any line. So they are named where
they leave us: at the calls of the API, and where a step of a lane ends.
"""

from __future__ import annotations

import errno
import os
from typing import TypeVar

from lowmark.errors import LowmarkError, NoMemory, NoThreads
from lowmark.runtime.disk import DiskFull, NoHandles

E = TypeVar("E", bound=BaseException)

RAN_OUT = (MemoryError, RuntimeError, OSError)
"""What `by_name` may know a name for; most of them it has none for."""
_NO_THREAD = "can't start new thread"
"""Python has no error of its own for it."""


def by_name(error: E, *, where: str = "") -> E | LowmarkError:
    """An error of memory, threads, handles or space by our name; any other as it is."""
    found: LowmarkError
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError) or number == errno.ENOMEM:  # Arrow's is one, too
        found = NoMemory(str(error), where=where)
    elif isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        found = NoThreads(where=where)
    elif number in {errno.EMFILE, errno.ENFILE}:
        assert isinstance(error, OSError)
        path = str(error.filename or where or "a file")
        found = NoHandles(path, call="open", reason=os.strerror(error.errno or 0))
    elif number in {errno.ENOSPC, errno.EDQUOT}:
        assert isinstance(error, OSError)
        found = DiskFull(str(error.filename or where))
    else:
        return error
    found.__cause__ = error
    return found
