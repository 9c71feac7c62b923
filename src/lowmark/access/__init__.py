"""The ways to a database: a directory of this machine, or the address of a server.

A directory is used by any number of processes at once. One of them, the **owner**, has it open: it
has the lock, and an endpoint for the others, its **guests** (`lowmark.node.owner` has the order of
its steps). A guest uses the database through the endpoint, by the same API.

What holds
    1. At most one process has a directory open: the one that has the lock.
    2. What was acknowledged to any process is durable; it does not matter which one asked.
    3. When the owner closes or dies, the guest that next asks for something takes the directory
       over, or finds the process that did. A safe call is asked again, a numbered one is stored
       once, and any other that was under way ends with `OutcomeUnknown`. It never makes a new
       database in the place of one that is gone.
    4. A guest that took over serves the others like any owner. It uses its own endpoint itself, so
       that what it has under way goes on, whichever process is the owner.
    5. Guests of a node that is served (`lowmark serve`) never take its place: they go on at another
       node of its cluster, or wait for it, each call for no longer than it may.
    6. A process that opens it to read never owns it and never writes to it: it is a guest, or,
       while there is no owner, reads the files as they were at one moment. It keeps no owner out;
       what an owner removes that it needs is `DirectoryChanged`.
    7. `Locked` means that the owner can't be reached, or that the caller insists on owning.
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.access.connecting import connect
    from lowmark.access.directory import check_owned
    from lowmark.access.opening import open_database

__all__ = ["check_owned", "connect", "open_database"]

__getattr__, __dir__ = face(__name__)
