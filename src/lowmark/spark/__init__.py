"""Work placed on Spark, and the sessions that it takes.

Spark is used for one thing: to carry out a function on pieces of work, on as many cores and
machines as it has. It places tasks, and it tries again those whose process died. It does not
shuffle, read or write anything, and it knows nothing about what the work is: bytes go in, and bytes
come out.

    Runner     takes packs of pieces. A pack is a task; a piece is a call of the function.
    Session    a connection to Spark. Ours is opened by the name of a master, and ends with its Java
               process; one that the caller gives is used as it is and left as it was.
    Daemon     the process that workers are forked from, with what tasks need imported already.
    Python     which one sessions of this process start, if nothing else says it.
    Archive    what Java knows about Spark's classes, in a file, so that the next session starts in
               less time.

What always holds
    1. `run` gives one answer for each piece, in order, or raises. An error that the function raised
       comes out as what it was, with its class; what is not an error of Lowmark's comes with the
       traceback of where it happened.
    2. A task may run more than once, even twice at once: work must bear that.
    3. When `run` has ended, its tasks have ended.
    4. A session of ours listens on loopback only and prints nothing, unless it is told to. What it
       leaves on the disk goes when it ends, but for the archive.
    5. This package and `frames` alone import PySpark, and only when something is asked of them.
       Without PySpark or Java the error says which is missing.
"""

from typing import Any

from lowmark.spark.python import name_python

# mypy takes this name for true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from lowmark.spark.archive import archive_path, make_archive
    from lowmark.spark.errors import (
        JavaMissing,
        JavaTooOld,
        MasterNotReached,
        NoExecutors,
        SessionRefused,
        SparkGone,
        SparkMissing,
        SparkNotStarted,
        TaskFailed,
        TaskLost,
        WorkersUnfit,
    )
    from lowmark.spark.java import why_not
    from lowmark.spark.runner import SparkRunner
    from lowmark.spark.session import close_session, open_session

__all__ = [
    "JavaMissing",
    "JavaTooOld",
    "MasterNotReached",
    "NoExecutors",
    "SessionRefused",
    "SparkGone",
    "SparkMissing",
    "SparkNotStarted",
    "SparkRunner",
    "TaskFailed",
    "TaskLost",
    "WorkersUnfit",
    "archive_path",
    "close_session",
    "make_archive",
    "open_session",
    "why_not",
]

_FOUND_IN = {
    "JavaMissing": "lowmark.spark.errors",
    "JavaTooOld": "lowmark.spark.errors",
    "MasterNotReached": "lowmark.spark.errors",
    "NoExecutors": "lowmark.spark.errors",
    "SessionRefused": "lowmark.spark.errors",
    "SparkGone": "lowmark.spark.errors",
    "SparkMissing": "lowmark.spark.errors",
    "SparkNotStarted": "lowmark.spark.errors",
    "SparkRunner": "lowmark.spark.runner",
    "TaskFailed": "lowmark.spark.errors",
    "TaskLost": "lowmark.spark.errors",
    "WorkersUnfit": "lowmark.spark.errors",
    "archive_path": "lowmark.spark.archive",
    "close_session": "lowmark.spark.session",
    "export_part": "lowmark.frames.exporting",
    "make_archive": "lowmark.spark.archive",
    "open_session": "lowmark.spark.session",
    "register": "lowmark.frames.functions",
    "release_frames": "lowmark.frames.scan",
    "table": "lowmark.frames.scan",
    "upsert": "lowmark.frames.sink",
    "why_not": "lowmark.spark.java",
}
"""Where a name comes from when it is first used: `lowmark.spark.daemon` is imported through here,
and Arrow must not be there before it. What opens databases for Spark is above this package."""


name_python()


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module 'lowmark.spark' has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    return getattr(importlib.import_module(_FOUND_IN[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
