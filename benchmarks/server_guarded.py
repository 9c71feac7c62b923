"""What it costs to keep strangers out: TLS and tokens, against a node without them.

Both sides are the same node with the same rows and the same clients, in one run, by turns.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.figure import Figure, PeerMissing, Side, Target
from benchmarks.runner import Bench, Plan, Turn, measures
from benchmarks.server_figures import NODE, appended, checked, fleet
from benchmarks.server_sizes import ServerSizes
from benchmarks.server_wire import Append, Get, Read, Work, worked
from benchmarks.table_figures import ROWS
from benchmarks.table_workload import BATCH_ROWS, PARTITIONS
from clusters.processes import Child
from lowmark import authority
from lowmark.errors import LowmarkError, Unauthenticated, invariant
from lowmark.node import NodeClient
from lowmark.node.messages import Nothing, PeerAddress

HOST = "127.0.0.1"
WITH = "with TLS 1.3 and a token that is checked at each call"


def _certificates(folder: Path) -> str:
    """A folder of certificates for a node on this machine."""
    ours = authority.Authority.found(str(folder / "tls"))
    ours.issue("node", [HOST])
    return f"{ours.folder}/node"


def _check_guard(address: str, *, tls: bool, tokens: bool) -> None:
    """See that a node speaks TLS, and asks for a token, exactly if it is to."""
    invariant(address.startswith("lowmark+tls") == tls, "TLS as asked for")
    refused: type[LowmarkError] | None = None
    if not tls:  # else it would take the authority to ask; the options are the same
        try:
            with NodeClient(address) as client:
                client.ask("cluster.peer-address", Nothing(), PeerAddress)
        except Unauthenticated as error:
            refused = type(error)
        invariant((refused is not None) == tokens, "tokens as asked for")


def find_cryptography() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise PeerMissing(
            "cryptography is not installed: there are no certificates for TLS",
            hint="Install it with `pip install 'lowmark[tls]'`.",
        )


@measures(Figure("tls_append", Target(0.8), "rows/s", needs=find_cryptography))
def tls_append(bench: Bench[ServerSizes]) -> Iterator[Plan]:
    """Appends of four clients over TLS with a token, against without."""
    sizes = bench.sizes
    clients = sizes.append_clients
    rows = sizes.appended(clients)
    share = rows // clients
    work = [Append(first=i * share, rows=share) for i in range(clients)]
    with fleet(bench, clients) as ours, bench.fresh_folder() as kept:
        certificates = _certificates(kept)

        def appending(tls: str) -> Turn:
            def turn(folder: Path) -> Side:
                with ours.node(folder, sizes.append_wal_bytes, tls=tls, tokens=bool(tls)) as node:
                    _check_guard(ours.address, tls=bool(tls), tokens=bool(tls))
                    return checked(worked(ours.clients, work, until_rest_of=node), rows)

            return turn

        yield bench.compare(
            appending(certificates),
            appending(""),
            notes=f"{appended(sizes, clients)}; deployment: {NODE}, TCP on loopback, {WITH}; batch:"
            f" {BATCH_ROWS:,} rows as Arrow; clients: {clients} processes; window: 1 append each;"
            " peer: the same without TLS and token",
            profile=False,
        )


def _asking(clients: Sequence[Child], work: list[Work], amount: int) -> Turn:
    return lambda _: checked(worked(clients, work), amount)


def _beside(
    bench: Bench[ServerSizes], work: list[Work], amount: int, *, tls: bool
) -> Iterator[tuple[Turn, Turn]]:
    """Turns at a node that is guarded, and at one that is not, with the same rows."""
    sizes = bench.sizes
    bench.say(f"preparing {sizes.keys} rows at two nodes")
    with ExitStack() as stack:
        turns = []
        for guarded in (True, False):
            ours = stack.enter_context(fleet(bench, len(work)))
            folder = stack.enter_context(bench.fresh_folder())
            certificates = _certificates(folder) if guarded and tls else ""
            node = stack.enter_context(
                ours.node(folder, sizes.append_wal_bytes, tls=certificates, tokens=guarded)
            )
            _check_guard(ours.address, tls=guarded and tls, tokens=guarded)
            first = [Append(first=0, rows=sizes.keys)]
            checked(worked(ours.clients[:1], first, until_rest_of=node), sizes.keys)
            # Some keys of every partition: the index is built when a key is looked up first.
            worked(ours.clients[:1], [Get(keys=sizes.keys, gets=200, seed=0)])

            turns.append(_asking(ours.clients, work, amount))
        yield turns[0], turns[1]


@measures(Figure("tls_read", Target(0.7), "rows/s", needs=find_cryptography), runs="short_runs")
def tls_read(bench: Bench[ServerSizes]) -> Iterator[Plan]:
    """A table read back over TLS with a token, against without."""
    rows = bench.sizes.keys
    for with_tls, without in _beside(bench, [Read()], rows, tls=True):
        yield bench.compare(
            with_tls,
            without,
            notes=f"{rows:,} {ROWS}, written in batches of {BATCH_ROWS:,}, over {PARTITIONS}"
            f" partitions; deployment: {NODE}, TCP on loopback, {WITH}; batch: as stored; clients:"
            " 1 process, which counts the rows; window: one answer of up to 16 MiB at a time, the"
            " next is fetched meanwhile; peer: the same without TLS and token",
            profile=False,
        )


@measures(Figure("auth_cost", Target(0.95), "gets/s"), runs="short_runs")
def auth_cost(bench: Bench[ServerSizes]) -> Iterator[Plan]:
    """Look-ups over a connection with a token, against without; no TLS on either side."""
    sizes = bench.sizes
    clients = sizes.get_clients
    work: list[Work] = [
        Get(keys=sizes.keys, gets=sizes.gets, seed=i) for i in range(1, clients + 1)
    ]
    for with_token, without in _beside(bench, work, clients * sizes.gets, tls=False):
        yield bench.compare(
            with_token,
            without,
            notes=f"{sizes.gets:,} look-ups by each client among {sizes.keys:,} keys, drawn evenly;"
            f" deployment: {NODE}, TCP on loopback, a token that is checked at each call; batch: 1"
            f" key; clients: {clients} processes, which get dicts; window: 1 get each; peer: the"
            " same without token",
            profile=False,
        )
