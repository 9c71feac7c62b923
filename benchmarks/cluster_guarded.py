"""What it costs three nodes to keep strangers out of what they tell each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.cluster_load import appends, loaded, served_by
from benchmarks.cluster_sizes import ClusterSizes
from benchmarks.figure import Compared, Figure, Target, rates
from benchmarks.runner import Bench, Plan, measures
from benchmarks.served import where
from benchmarks.server_figures import Fleet
from benchmarks.server_guarded import find_cryptography
from benchmarks.table_workload import BATCH_ROWS
from clusters.processes import Children
from lowmark.errors import invariant
from lowmark.runtime.network import speaks_tls

TLS_REPLICATED = Figure("tls_replicated", Target(0.7), "rows/s", needs=find_cryptography)


@measures(TLS_REPLICATED)
def tls_replicated(bench: Bench[ClusterSizes]) -> Iterator[Plan]:
    """Appends to three nodes with TLS between them and their clients, against three without."""
    sizes = bench.sizes
    with ExitStack() as stack:
        folder = stack.enter_context(bench.fresh_folder())
        fleet = Fleet(stack.enter_context(Children(folder)), sizes.clients)
        bench.say("making two clusters of three nodes, one of them with TLS")
        guarded = stack.enter_context(loaded(bench, fleet, tls=True))
        plain = stack.enter_context(loaded(bench, fleet))
        for load, tls in ((guarded, True), (plain, False)):
            status = load.cluster.status(load.cluster.names[0])
            invariant(
                all(speaks_tls(node.endpoint) == tls for node in status.nodes), "TLS as asked for"
            )
        yield Plan(
            turns=[appends(guarded, sizes, "TLS"), appends(plain, sizes, "plain")],
            compared={
                TLS_REPLICATED.name: Compared(
                    rates(TLS_REPLICATED, "TLS", "plain"),
                    f"{sizes.clients * sizes.load_batches} batches, each durable at two of three"
                    " nodes before it is acknowledged, until all three have all rows; deployment:"
                    f" three {served_by(where())}, TLS 1.3 between them, both sides with a"
                    f" certificate, and with clients; batch: {BATCH_ROWS:,} rows of 100 bytes as"
                    f" Arrow; clients: {sizes.clients} processes, spread over the nodes; window: 1"
                    " append each, by a numbered producer; peer: the same clients append as much"
                    " to three nodes without TLS; both clusters stay up, and rest when it is not"
                    " their turn",
                )
            },
        )
