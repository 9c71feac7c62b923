"""The database of a source, opened where Spark calls it."""

from __future__ import annotations

from lowmark.access import connect, open_database
from lowmark.client import Database
from lowmark.frames.options import Options


def opened(options: Options, *, moves_cursors: bool = False) -> Database:
    """The database, to be closed by the caller.

    Tasks and plans never own a directory: they may end at any moment. One that `moves_cursors`
    writes, so it may.
    """
    if options.node:
        return connect(options.node)
    if moves_cursors:
        return open_database(options.path, create=False)
    return open_database(options.path, read_only=True)
