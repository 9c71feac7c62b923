"""The passes of Spark's tasks: where a plan is made they are asked for, where a task runs shown.

A pass is as narrow as Spark lets us know what its tasks are for:

    a read           a table, as long as the application: Spark does not say when a read is over
    a write          that write; it ends when the write is committed or given up
    a stream's reads  that query; it ends when the query is stopped, or minutes after its process
                     was killed
    a stream's rows  a table, as long as the application: a sink does not hear the query's name

What they are given travels with the partitions of a read and the writer of a write, which Spark
pickles: bytes that it shows nowhere. It is in no option, whose values Spark's pages show.
"""

from __future__ import annotations

import logging

from lowmark.backend import passing
from lowmark.backend.keeper import Application, Kept, ask, forget
from lowmark.backend.remote import RemoteBackend
from lowmark.client import Database
from lowmark.errors import Rejected
from lowmark.tokens import Right, Secret

logger = logging.getLogger(__name__)


def shown_by_tasks(database: Database, table: str, right: Right, *, what: str = "") -> str:
    """The pass of tasks that this process plans, renewed from now on; empty: they need none.
    `what` it is for, if that is known to end; else the whole application. Where no Java process is
    above this one, it is renewed by the next plan alone.
    """
    backend = database.backend
    if not isinstance(backend, RemoteBackend):
        return ""
    number, application = database[table].descriptor.id, Application.of_this_process()
    name = what or ("" if application is None else f"application {application.name}")
    secret = passing.secret_for(backend, right, number, name or "this process")
    if secret is None:
        return ""
    if not passing.make(backend, secret.digest(), right, number):
        return ""
    if application is not None:
        nodes = ",".join(backend.addresses)
        try:
            digest = secret.digest().hex()
            kept = Kept(digest, nodes, backend.ca, number, right, ends=bool(what))
            ask(application, kept)
        except (OSError, Rejected) as error:
            # Executors may have a token. If not, tasks are let in for minutes, and hear why then.
            logger.warning("a pass will not be renewed", extra={"reason": str(error)})
    return secret.reveal()


def end_shown(database: Database, shown: str) -> None:
    """A write is over: no task shows its pass any more. The write never fails by it: what can't be
    forgotten now ends with the application.
    """
    if not shown:
        return
    digest, application = Secret(shown).digest(), Application.of_this_process()
    if application is not None:
        try:
            forget(application, digest.hex())
        except (OSError, Rejected) as error:
            logger.warning("a pass was not forgotten", extra={"reason": str(error)})
    passing.end(database.backend, digest)
