"""A data directory as it lies there: verified, dumped, and read without starting its node.

Nothing here writes. It reads the same files as the engine, by the same formats and the same steps
of recovery, and says everything that is wrong instead of stopping at the first damage.

    log, group, pieces    everything that is wrong with a log: `verify_log`
    metastore             what that means for the node, and what is wrong with its own files
    access                what other users of the machine can look into: `verify_access`
    findings              what was found, with the file, the group and what to do
    dump                  what stands in the files, entry by entry
    offline               the metastore, the catalog and the tables of a node that is not running
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.inspect.access import verify_access
    from lowmark.inspect.dump import DumpEntry, DumpLine, DumpPiece, DumpWal, dump_log
    from lowmark.inspect.findings import Finding
    from lowmark.inspect.log import verify_log
    from lowmark.inspect.metastore import verify_node
    from lowmark.inspect.offline import DataInUse, open_offline

__all__ = [
    "DataInUse",
    "DumpEntry",
    "DumpLine",
    "DumpPiece",
    "DumpWal",
    "Finding",
    "dump_log",
    "open_offline",
    "verify_access",
    "verify_log",
    "verify_node",
]

__getattr__, __dir__ = face(__name__)
