"""The database of a source, opened where Spark calls it."""

from __future__ import annotations

from lowmark import access
from lowmark.client import Database
from lowmark.frames.options import Options


def opened(options: Options, *, writes: bool = False) -> Database:
    """The database, to be closed by the caller.

    Tasks and plans never own a directory: they may end at any moment. The process that follows a
    stream lasts as long as that, and `writes`: it may own one that no other process has open.
    """
    if options.node:
        return access.connect(options.node)
    if writes:
        return access.open_database(options.path, create=False)
    return access.open_database(options.path, read_only=True)


def check_writable(options: Options) -> None:
    """Refuse a directory that no process has open: tasks would, one after the other."""
    if options.path:
        access.check_owned(options.path)
