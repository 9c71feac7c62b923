"""What the rounds come to: a figure per field. Pure.

Every figure is our number by the peer's, in the same unit; where less is better, both are costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.compact_rounds import PLAIN_INPUT, Measured, Round
from benchmarks.compact_sizes import CompactSizes
from benchmarks.compact_workload import PARTITIONS
from benchmarks.figure import Figure, Target, Variant

__all__ = ["COMPACT_FIELDS", "Field", "figure_of"]

LEAST_S = 0.001
"""What is left of a turn without an empty job, at least: tiny ones may come to nothing."""

Take = Callable[[Round], float]
"""A number of a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two numbers to be compared, and whose turns they are made of."""

    sides: tuple[str, ...]
    ours: Take
    peer: Take

    def values(self, rounds: Sequence[Round]) -> list[float]:
        """One a round."""
        return [self.ours(one) / self.peer(one) for one in rounds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A figure, and what it is made of."""

    pair: Pair
    target: Target
    unit: str
    notes: Callable[[CompactSizes], str]
    variants: Mapping[str, Pair] = field(default_factory=dict)

    def sides(self, sizes: CompactSizes) -> set[str]:
        """Who must have a turn for it."""
        pairs = [self.pair, *(self.variants.values() if sizes.variants else ())]
        return {side for pair in pairs for side in pair.sides}


def figure_of(name: str, measured: Measured, sizes: CompactSizes) -> Figure:
    """The median of the rounds' values."""
    which = COMPACT_FIELDS[name]
    rounds = measured.with_all(*which.pair.sides)
    values = which.pair.values(rounds)
    return Figure(
        name=name,
        value=median(values),
        target=which.target,
        unit=which.unit,
        ours=median(map(which.pair.ours, rounds)),
        peer=median(map(which.pair.peer, rounds)),
        spread=(min(values), max(values)),
        runs=len(values),
        notes=which.notes(sizes),
        variants={
            variant: Variant(
                median(pair.values(shared)),
                median(map(pair.ours, shared)),
                median(map(pair.peer, shared)),
            )
            for variant, pair in which.variants.items()
            if (shared := measured.with_all(*pair.sides))
        },
    )


# -- numbers of a round -----------------------------------------------------------------------


def _rate(side: str) -> Take:
    """Rows a second."""
    return lambda one: one[side].rows / one[side].seconds


def _net(side: str) -> Take:
    """Milliseconds without those of an empty job."""
    return lambda one: max(one[side].seconds - one["empty"].seconds, LEAST_S) * 1e3


def _net_per_row(side: str) -> Take:
    return lambda one: _net(side)(one) * 1e6 / one[side].rows


def _moved(side: str) -> Take:
    return lambda one: one[side].bytes_moved / 1e6


def _held(side: str) -> Take:
    return lambda one: one[side].anonymous_bytes / 1e6


def _keys(side: str) -> Take:
    """How fast somebody who comes new gets to know a key."""
    return lambda one: one["compacted"].rows / one[side].seconds


def _against(peer: str) -> Pair:
    return Pair(sides=("full", peer), ours=_rate("full"), peer=_rate(peer))


def _memory_against(peer: str) -> Pair:
    return Pair(sides=("full", peer), ours=_held("full"), peer=_held(peer))


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


COMPACT_FIELDS: Mapping[str, Field] = {
    "vs_plain_spark": Field(
        pair=_against("plain_spark"), target=Target(10.0), unit="rows/s", notes=_spark_words
    ),
    "vs_duckdb": Field(
        pair=_against("duckdb"),
        target=Target(2.0),
        unit="rows/s",
        notes=_duckdb_words,
        variants={
            "one_statement": _against("duckdb_one_statement"),
            "per_partition": _against("duckdb_per_partition"),
            "plain_input": _against("duckdb" + PLAIN_INPUT),
        },
    ),
    "vs_polars": Field(
        pair=_against("polars"),
        target=Target(1.0),
        unit="rows/s",
        notes=_polars_words,
        variants={"plain_input": _against("polars" + PLAIN_INPUT)},
    ),
    "vs_copy": Field(
        pair=_against("copy"), target=Target(0.15, aim=0.4), unit="rows/s", notes=_copy_words
    ),
    "second_run_bytes": Field(
        pair=Pair(sides=("full", "second"), ours=_moved("second"), peer=_moved("full")),
        target=Target(0.05, at_least=False),
        unit="MB",
        notes=lambda sizes: f"bytes read and written by {_second_words(sizes)}",
    ),
    "second_run_time": Field(
        pair=Pair(sides=("full", "second", "empty"), ours=_net("second"), peer=_net("full")),
        target=Target(0.25, at_least=False),
        unit="ms",
        notes=lambda sizes: f"time of {_second_words(sizes)}; an empty job subtracted from both",
    ),
    "rows_growth": Field(
        pair=Pair(
            sides=("full", "half", "empty"), ours=_net_per_row("full"), peer=_net_per_row("half")
        ),
        target=Target(1.15, at_least=False),
        unit="ns/row",
        notes=_growth_words,
    ),
    "memory_vs_duckdb": Field(
        pair=_memory_against("duckdb"),
        target=Target(0.5, at_least=False),
        unit="MB",
        notes=_memory_words,
        variants={
            "one_statement": _memory_against("duckdb_one_statement"),
            "per_partition": _memory_against("duckdb_per_partition"),
        },
    ),
    "bootstrap_speedup": Field(
        pair=Pair(
            sides=("full", "backlog", "compacted"), ours=_keys("compacted"), peer=_keys("backlog")
        ),
        target=Target(6.0),
        unit="keys/s",
        notes=_bootstrap_words,
    ),
}
