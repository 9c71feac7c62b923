"""All suites: what each is fed, what it measures, and what is told of the machine beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from benchmarks import catalog_figures as catalog
from benchmarks import cluster_figures as cluster
from benchmarks import cluster_load
from benchmarks import group_figures as group
from benchmarks import server_figures as server
from benchmarks import server_guarded as guarded
from benchmarks import table_figures as table
from benchmarks.append import append_1m, append_100b
from benchmarks.catalog_sizes import CatalogSizes
from benchmarks.cluster_guarded import tls_replicated
from benchmarks.cluster_sizes import ClusterSizes
from benchmarks.compact_rounds import compaction
from benchmarks.compact_sizes import CompactSizes
from benchmarks.compaction import append_during_phase3, phase3
from benchmarks.group_sizes import GroupSizes
from benchmarks.live_set import live_set_bytes
from benchmarks.log_sizes import LogSizes
from benchmarks.rebalance_moves import foreground_during_move, move_vs_cp
from benchmarks.rebalance_plans import plans
from benchmarks.rebalance_sizes import RebalanceSizes
from benchmarks.recover import open_10k, recover, recover_small
from benchmarks.runner import Suite
from benchmarks.server_peers import nats_version, redis_version
from benchmarks.server_sizes import ServerSizes
from benchmarks.spark_scans import scans
from benchmarks.spark_sizes import SparkSizes
from benchmarks.spark_streams import streams
from benchmarks.spark_upserts import upserts
from benchmarks.spark_workers import cold_run
from benchmarks.spark_writes import writes
from benchmarks.table_peers import postgres_version
from benchmarks.table_sizes import TableSizes
from benchmarks.upkeep_history import memory_after_cut, start_after_cut
from benchmarks.upkeep_rounds import append_beside_rounds, rounds
from benchmarks.upkeep_sizes import UpkeepSizes

SUITES: Mapping[str, Suite] = {
    "log": Suite(
        sizes=LogSizes,
        measurements=[
            append_1m,
            append_100b,
            recover,
            recover_small,
            phase3,
            append_during_phase3,
            live_set_bytes,
            open_10k,
        ],
        versions=["numpy", "crc32c", "pyroaring"],
        machine=lambda: {"sqlite": sqlite3.sqlite_version},
        switch_interval_s=0.0005,
    ),
    "group": Suite(
        sizes=GroupSizes,
        measurements=[
            group.replicated_1m,
            group.small_vs_etcd,
            group.large_vs_etcd,
            group.failover,
            group.catch_up,
            group.idle_groups,
        ],
        versions=["msgspec", "numpy", "immutables"],
    ),
    "catalog": Suite(
        sizes=CatalogSizes,
        measurements=[
            catalog.restart_after_snapshot,
            catalog.replay_rate,
            catalog.lookup_growth,
            catalog.apply_growth,
            catalog.invoke_vs_etcd,
            catalog.watchers_50,
        ],
        versions=["msgspec", "numpy", "immutables"],
    ),
    "table": Suite(
        sizes=TableSizes,
        measurements=[
            table.append_vs_raw,
            table.append_vs_sqlite,
            table.append_objects_vs_sqlite,
            table.append_vs_postgres,
            table.send_per_s,
            table.one_row_vs_sqlite,
            table.get_p50_vs_sqlite,
            table.read_vs_memory,
            table.memory_growth,
        ],
        versions=["pyarrow", "numpy", "msgspec"],
        machine=lambda: {
            "sqlite": sqlite3.sqlite_version,
            "postgresql": postgres_version(),
        },
    ),
    "server": Suite(
        sizes=ServerSizes,
        measurements=[
            server.socket_append_vs_embedded,
            server.tcp_append_vs_sqlite,
            server.send_vs_nats,
            server.read_vs_flight,
            server.get_per_s,
            guarded.tls_append,
            guarded.tls_read,
            guarded.auth_cost,
        ],
        versions=["pyarrow", "numpy", "msgspec", "nats-py"],
        machine=lambda: {
            "sqlite": sqlite3.sqlite_version,
            "nats": nats_version(),
            "redis": redis_version(),
        },
    ),
    "compact": Suite(
        sizes=CompactSizes,
        measurements=[compaction],
        versions=["pyarrow", "numpy", "pyspark", "duckdb", "polars"],
    ),
    "spark": Suite(
        sizes=SparkSizes,
        measurements=[cold_run, scans, writes, upserts, streams],
        versions=["pyarrow", "numpy", "pyspark", "deltalake"],
    ),
    "cluster": Suite(
        sizes=ClusterSizes,
        measurements=[cluster_load.under_load, tls_replicated, cluster.many_groups],
        versions=["pyarrow", "numpy", "msgspec"],
    ),
    "rebalance": Suite(
        sizes=RebalanceSizes,
        measurements=[move_vs_cp, foreground_during_move, plans],
        versions=["pyarrow", "numpy", "msgspec"],
    ),
    "upkeep": Suite(
        sizes=UpkeepSizes,
        measurements=[rounds, append_beside_rounds, start_after_cut, memory_after_cut],
        versions=["pyarrow", "numpy", "msgspec"],
    ),
}
