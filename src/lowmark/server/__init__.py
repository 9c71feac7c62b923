"""A server: a database that this process has open, for clients in other processes.

    import lowmark
    from lowmark.server import Server

    db = lowmark.open("./data")
    with Server(db, "127.0.0.1:6570"):
        ...  # elsewhere: lowmark.connect("127.0.0.1:6570")

What it guarantees
    1. A client of ours gets the same answers, and the same errors by name, as a caller in this
       process: every call goes through the port (`backend.port`).
    2. Rows that were acknowledged are durable. A numbered batch that comes twice is stored once,
       also by another start of the server.
    3. Nothing that a client sends is believed: rows are hashed again, schemas and values checked.
       A batch that is refused has left nothing behind.
    4. A client that is silent for longer than its time keeps nothing; it hears of that by name.
    5. What clients have under way is limited, and each limit has a named error. One that stops to
       read costs a bounded amount of memory, and a thread for a bounded time.
    6. `close` ends within a few seconds, whatever clients do.

server      a listener (`lowmark.node.listener`) for a database
endpoint    what it asks of a database
service     calls of the port, hello
appending   streams of numbered batches
receiving   messages of streams, with a bound for what they hold
checking    what is wrong with a batch
reading     bounded reads of our clients
plain       tables for Flight clients with none of our code
sessions    what is kept for clients, and for how long
noting      what the lock file says of a process that serves
limits      what may be under way
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.node.tls import only_tls_1_3
    from lowmark.server.endpoint import HOLD_MS
    from lowmark.server.limits import Limits
    from lowmark.server.noting import OwnerNote
    from lowmark.server.server import Server

__all__ = ["HOLD_MS", "Limits", "OwnerNote", "Server", "only_tls_1_3"]

__getattr__, __dir__ = face(__name__)
