"""The figure of Spark's Python workers: a run whose workers must be started first.

Spark ends workers that had nothing to do for a minute (a constant of its own), and looks for such
ones every ten seconds. A full measurement rests for as long as it says. A quick one calls what
Spark calls then; on both ways it is seen that all workers are gone before the clock starts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.compact_base import Base, make_base, opened_copy
from benchmarks.compact_memory import python_tasks
from benchmarks.compact_ours import compacted_by
from benchmarks.compact_session import opened_session
from benchmarks.compact_workload import PARTITIONS
from benchmarks.figure import Figure, Pair, Round, Side, Take, Target, ratio
from benchmarks.runner import Bench, Plan, measures
from benchmarks.spark_sizes import SparkSizes
from lowmark.errors import invariant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLD_VS_WARM = Figure("cold_vs_warm_run", Target(1.2, at_least=False), "ms")
CHANGES = 10
"""Of each key."""
SEED = 1
GONE_WITHIN_S = 30.0
LOOKS_EVERY_S = 0.05


@measures(COLD_VS_WARM, warm_up=False)
def cold_run(bench: Bench[SparkSizes]) -> Iterator[Plan]:
    """A table is compacted right after another run, and after a rest."""
    sizes = bench.sizes
    with bench.fresh_folder() as root:
        bases = {"": _made(bench, root, sizes.rows)}
        if sizes.variants:
            bases["large_"] = _made(bench, root, sizes.large_rows)
        with opened_session(rehearsal=bench.rehearsal) as session:
            turns = [partial(_turn, bench, session, base, prefix) for prefix, base in bases.items()]
            variants = {"large": _pair("large_")} if sizes.variants else {}
            yield bench.plan(turns, _pair(""), _words(sizes), variants)


def _made(bench: Bench[SparkSizes], root: Path, rows: int) -> Base:
    bench.say(f"preparing a table of {rows:,} rows")
    return make_base(root / f"{rows}", rows, rows // CHANGES, seed=SEED)


def _turn(
    bench: Bench[SparkSizes], session: SparkSession, base: Base, prefix: str, folder: Path
) -> Round:
    _compacted(bench, session, base, folder)
    warm = _compacted(bench, session, base, folder)
    _rest(session, bench.sizes.idle_seconds)
    cold = _compacted(bench, session, base, folder)
    return {f"{prefix}warm": warm, f"{prefix}cold": cold}


def _compacted(bench: Bench[SparkSizes], session: SparkSession, base: Base, folder: Path) -> Side:
    with opened_copy(base, folder) as opened:
        run, _ = compacted_by(bench, session, opened, base.rows)
    return run


def _rest(session: SparkSession, seconds: float) -> None:
    """Until Spark has ended all workers; the daemon that they are forked from stays."""
    if seconds:
        time.sleep(seconds)
    else:
        end_idle_workers(session)
    ends_at = time.monotonic() + GONE_WITHIN_S
    while len(python_tasks()) > 1 and time.monotonic() < ends_at:
        time.sleep(LOOKS_EVERY_S)
    left = len(python_tasks())
    invariant(left == 1, f"the daemon alone is left of Spark's Python processes, and not {left}")


def end_idle_workers(session: SparkSession) -> None:
    """What Spark does when its workers have had nothing to do for a minute."""
    # Its methods for that are its own. We ask Java's reflection, since Py4J would look at all
    # methods of a class, and some name classes that PySpark comes without.
    java: Any = session.sparkContext._jvm
    field = java.java.lang.Class.forName("org.apache.spark.SparkEnv").getDeclaredField(
        "pythonWorkers"
    )
    field.setAccessible(True)
    context: Any = session.sparkContext._jsc
    pools = field.get(context.sc().env()).valuesIterator()
    while pools.hasNext():
        pool = pools.next()
        getattr(pool, f"{pool.getClass().getName().replace('.', '$')}$$cleanupIdleWorkers")()


def _pair(prefix: str) -> Pair:
    cold, warm = f"{prefix}cold", f"{prefix}warm"
    return ratio(_milliseconds(cold), _milliseconds(warm), cold, warm)


def _milliseconds(side: str) -> Take:
    return lambda one: one[side].seconds * 1e3


def _words(sizes: SparkSizes) -> str:
    rest = (
        f"{sizes.idle_seconds:.0f} s without a task"
        if sizes.idle_seconds
        else "Spark was told to end its idle workers, as it does after a minute without a task"
    )
    return (
        f"the time of a run over {sizes.rows:,} rows of 100 bytes, {sizes.rows // CHANGES:,} keys,"
        f" {PARTITIONS} partitions, compacted on Spark (local[*]), after {rest}; peer: the same run"
        f" right after another; large: {sizes.large_rows:,} rows"
    )
