"""A new token of an administrator for a cluster whose first one is lost, or that never had one.

The directory of a node that is stopped gets it in `admin.token.new`; the node has it in force when
it is next started (`first_token`). The file of the old one goes, for it will say what is not so.
"""

from __future__ import annotations

import contextlib

from lowmark.errors import Rejected
from lowmark.log import Log, LogConfig
from lowmark.log.files import discard
from lowmark.metastore import find_identity
from lowmark.node.directory import log_disk
from lowmark.node.first_token import PATH, write_new
from lowmark.runtime import real_runtime


def reset_token(path: str, config: LogConfig) -> str:
    """Draw a token for the cluster of a directory; gives the file that will have it."""
    disk = log_disk(path)
    identity = find_identity(disk)
    if identity is None or not identity.cluster or identity.left:
        raise Rejected(
            f"the node of {path} belongs to no cluster",
            detail="It has left its cluster, or was never let into one.",
            hint="Give the directory of a node that belongs to the cluster.",
        )
    with contextlib.ExitStack() as opened:
        runtime = real_runtime(path)
        opened.callback(runtime.loop.close)
        log = Log.open(runtime, config, read_only=True)  # it has the lock: the node is stopped
        opened.callback(log.close)
        write_new(runtime.disk)
        discard(runtime.disk, PATH)
        runtime.disk.sync_dir("")
        return runtime.disk.describe(PATH)
