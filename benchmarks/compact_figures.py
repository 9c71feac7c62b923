"""What the figures of compaction are made of. Pure.

Every figure is our number by the peer's, in the same unit; where less is better, both are costs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial

from benchmarks.compact_peers import find_peer
from benchmarks.compact_sizes import CompactSizes
from benchmarks.compact_workload import PARTITIONS
from benchmarks.figure import Compared, Figure, Pair, Take, Target, ratio

PLAIN_INPUT = "_plain_input"
"""Ends the name of a peer's turn whose input is not compressed."""
LEAST_S = 0.001
"""What is left of a turn without an empty job, at least: tiny ones may come to nothing."""

find_duckdb, find_polars = partial(find_peer, "duckdb"), partial(find_peer, "polars")


@dataclass(frozen=True, slots=True)
class Field:
    """A figure, and what it is made of."""

    figure: Figure
    pair: Pair
    notes: Callable[[CompactSizes], str]
    variants: Mapping[str, Pair] = field(default_factory=dict)

    def compared(self, sizes: CompactSizes) -> Compared:
        """The same for these sizes."""
        return Compared(self.pair, self.notes(sizes), self.variants if sizes.variants else {})


def sides_of(compared: Mapping[str, Compared]) -> set[Hashable]:
    """Who must have a turn."""
    pairs = [pair for one in compared.values() for pair in (one.pair, *one.variants.values())]
    return {side for pair in pairs for side in pair.sides}


# -- numbers of a round -----------------------------------------------------------------------


def _rate(side: str) -> Take:
    """Rows a second."""
    return lambda one: one[side].rate


def _net(side: str) -> Take:
    """Milliseconds without those of an empty job."""
    return lambda one: max(one[side].seconds - one["empty"].seconds, LEAST_S) * 1e3


def _net_per_row(side: str) -> Take:
    return lambda one: _net(side)(one) * 1e6 / one[side].amount


def _moved(side: str) -> Take:
    return lambda one: one[side].bytes_moved / 1e6


def _held(side: str) -> Take:
    return lambda one: one[side].held_bytes / 1e6


def _keys(side: str) -> Take:
    """How fast somebody who comes new gets to know a key."""
    return lambda one: one["compacted"].amount / one[side].seconds


def _against(peer: str) -> Pair:
    return ratio(_rate("full"), _rate(peer), "full", peer)


def _memory_against(peer: str) -> Pair:
    return ratio(_held("full"), _held(peer), "full", peer)


# -- words ------------------------------------------------------------------------------------


def _job(sizes: CompactSizes) -> str:
    return (
        f"{sizes.rows:,} rows of 100 bytes, {sizes.keys:,} keys, 1 % deletes, {PARTITIONS}"
        " partitions, compacted on Spark (local[*]) from the log's segments into ledgers, with"
        " proof and key index, until published, adopted, and the backlog cut"
    )


PARQUET = (
    "the same rows from Parquet files, a partition each, to Parquet, synced, not compressed, as"
    " ours is not with such values"
)
PLAIN_WORDS = "plain input: its files are not compressed, as our log is not"


def _spark_words(sizes: CompactSizes) -> str:
    return (
        f"{_job(sizes)}; peer: plain Spark SQL in the same session (Java's full compiler, 4 GB),"
        f" max_by per key, {PARQUET}, sorted by offset; it was given {sizes.spark_partitions} of"
        f" {PARTITIONS} partitions, and its time is scaled to the whole in proportion; its first"
        " run was "
        + ("as large" if sizes.whole_warm_up else "on a small sample")
        + " and does not count"
    )


def _duckdb_words(sizes: CompactSizes) -> str:
    return (
        f"{_job(sizes)}; peer: DuckDB, {PARQUET}: the last offset per key as a temporary table, a"
        " semi join with it, ORDER BY partition and offset; one statement: the last offsets are a"
        " part of the query, and DuckDB builds its join on the wrong side; per partition: one after"
        f" the other; {PLAIN_WORDS}"
    )


def _polars_words(sizes: CompactSizes) -> str:
    return (
        f"{_job(sizes)}; peer: Polars, {PARQUET}: per partition, as many at a time as there are"
        f" cores, read_parquet, is_last_distinct, write_parquet; {PLAIN_WORDS}"
    )


def _copy_words(sizes: CompactSizes) -> str:
    return (
        f"{_job(sizes)}; peer: two processes that read the same files of the log once, and write"
        " and sync as many bytes as the ledgers have"
    )


def _second_words(sizes: CompactSizes) -> str:
    return (
        f"a run after one key in {sizes.rewritten_in} was rewritten; peer: the full run before it:"
        f" {_job(sizes)}"
    )


def _growth_words(sizes: CompactSizes) -> str:
    return (
        f"{_job(sizes)}; peer: {sizes.half_rows:,} rows, {sizes.half_keys:,} keys; an empty job"
        " subtracted from both"
    )


def _memory_words(sizes: CompactSizes) -> str:
    return (
        "the most anonymous memory (RssAnon) of all Python processes of Spark together, during the"
        f" full run: {_job(sizes)}; what the daemon shares with its workers counts for each; peer:"
        " DuckDB's process, as in vs_duckdb"
    )


def _bootstrap_words(sizes: CompactSizes) -> str:
    changes = sizes.rows // sizes.keys
    return (
        f"reading a table of {sizes.keys:,} keys to its end, compacted, all columns; the rate is"
        f" keys by that time; peer: reading its whole backlog, {changes} changes per key, before"
        " the run that cut it; no value is looked at on either side, but for our checksums"
    )


FIELDS = (
    Field(Figure("vs_plain_spark", Target(10.0), "rows/s"), _against("plain_spark"), _spark_words),
    Field(
        Figure("vs_duckdb", Target(2.0), "rows/s", needs=find_duckdb),
        _against("duckdb"),
        _duckdb_words,
        {
            "one_statement": _against("duckdb_one_statement"),
            "per_partition": _against("duckdb_per_partition"),
            "plain_input": _against("duckdb" + PLAIN_INPUT),
        },
    ),
    Field(
        Figure("vs_polars", Target(1.0), "rows/s", needs=find_polars),
        _against("polars"),
        _polars_words,
        {"plain_input": _against("polars" + PLAIN_INPUT)},
    ),
    Field(Figure("vs_copy", Target(0.15, aim=0.4), "rows/s"), _against("copy"), _copy_words),
    Field(
        Figure("second_run_bytes", Target(0.05, at_least=False), "MB"),
        ratio(_moved("second"), _moved("full"), "full", "second"),
        lambda sizes: f"bytes read and written by {_second_words(sizes)}",
    ),
    Field(
        Figure("second_run_time", Target(0.25, at_least=False), "ms"),
        ratio(_net("second"), _net("full"), "full", "second", "empty"),
        lambda sizes: f"time of {_second_words(sizes)}; an empty job subtracted from both",
    ),
    Field(
        Figure("rows_growth", Target(1.15, at_least=False), "ns/row"),
        ratio(_net_per_row("full"), _net_per_row("half"), "full", "half", "empty"),
        _growth_words,
    ),
    Field(
        Figure("memory_vs_duckdb", Target(0.5, at_least=False), "MB", needs=find_duckdb),
        _memory_against("duckdb"),
        _memory_words,
        {
            "one_statement": _memory_against("duckdb_one_statement"),
            "per_partition": _memory_against("duckdb_per_partition"),
        },
    ),
    Field(
        Figure("bootstrap_speedup", Target(6.0), "keys/s"),
        ratio(_keys("compacted"), _keys("backlog"), "full", "backlog", "compacted"),
        _bootstrap_words,
    ),
)
