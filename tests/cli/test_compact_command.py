"""`lowmark compact`: what it says, to people and to programs; what it refuses; how it ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import lowmark
from cli.history import (
    KEYS,
    ROWS,
    begun,
    copied,
    files_of,
    fill,
    settle,
    settled,
    started,
    without,
)
from cli.shop import Shop, shared
from eventually import eventually
from inside import backend_of, partitions_of
from lowmark.cli.app import app
from lowmark.cli.compact import compact
from lowmark.compaction import runner as running
from lowmark.ledger import Work
from lowmark.ledger.work import Throttle
from lowmark.spark.archive import SWITCH
from walls import by_steps, wall_clock

RUN = {
    "run",
    "table",
    "state",
    "trigger",
    "began",
    "ended",
    "seconds",
    "engine",
    "where",
    "by",
    "watermark",
    "verify",
    "trim",
    "rewrite",
    "read",
    "read_rate",
    "write_rate",
    "resumed",
    "error",
    "held_until",
    "ready_at",
    "hint",
}
NUMBERS = {
    "rows_read",
    "rows_live",
    "rows_died",
    "deletes",
    "deletes_dropped",
    "bytes_read",
    "bytes_written",
    "ledger_bytes",
    "trimmed_bytes",
    "too_young_rows",
}
PARTITION = NUMBERS | {
    "partition",
    "state",
    "why",
    "base",
    "base_epoch",
    "low",
    "horizon",
    "rows",
    "bytes",
    "manifest",
    "files_written",
    "rows_checked",
    "read_from",
    "trimmed_to",
    "held_by",
    "held_until",
    "lineage",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return settled(tmp_path_factory.mktemp("made") / "shop")


@pytest.fixture
def shop(made: Shop, tmp_path: Path) -> Shop:
    return copied(made, tmp_path / "shop")


def state_of(shop: Shop) -> dict[str, str]:
    rows = shop.lines("orders", "--compacted", "--columns", "id,status")
    return {row["id"]: row["status"] for row in rows}


EXPECTED = {f"o-{n % KEYS}": f"new-{n}" for n in range(ROWS)}


# -- what it says -------------------------------------------------------------------------------


@pytest.mark.slow
def test_people_get_each_partition_and_a_line_of_what_was_done(shop: Shop) -> None:
    # when a table with a history is compacted
    said = shop.run("compact", "orders", "--engine", "local")
    # then what was done to each partition is said, and what it came to
    head, *_ = said.splitlines()
    assert head.split()[:2] == ["partition", "rows"]
    last = said.splitlines()[-1]
    assert f"{ROWS:,} rows read → {KEYS:,} live" in last
    assert "(in this process)" in last
    # and of each key the last row is left
    assert state_of(shop) == EXPECTED
    # and once more there is nothing to do, which is no run
    assert "nothing to do for orders: nothing is new" in shop.run(
        "compact", "orders", "--engine", "local"
    )
    assert len(shop.json("runs")) == 1


def test_programs_get_every_documented_field_and_no_other(shop: Shop) -> None:
    done = shop.json("compact", "orders", "--engine", "local")
    assert set(done) == RUN | NUMBERS | {"partitions"}
    assert [set(one) for one in done["partitions"]] == [PARTITION, PARTITION]
    words = set(re.findall(r"\w+", compact.__doc__ or ""))
    assert set(done) | PARTITION <= words
    assert (done["table"], done["state"]) == ("orders", "done")
    assert (done["engine"], done["where"]) == ("local", "this process")
    assert (done["rows_read"], done["rows_live"], done["too_young_rows"]) == (ROWS, KEYS, 0)
    assert (done["error"], done["resumed"], done["trigger"]) == (None, 0, "by hand")
    assert done["began"] <= done["ended"]
    for name in NUMBERS:
        assert done[name] == sum(one[name] for one in done["partitions"])
    for one in done["partitions"]:
        assert (one["state"], one["why"], one["held_by"]) == ("adopted", None, [])
        assert one["trimmed_to"] == one["horizon"] == one["rows_read"]
        assert one["trimmed_bytes"] == one["bytes"]


@pytest.mark.slow
def test_options_are_noted_and_reach_the_run(shop: Shop) -> None:
    # given a run of one partition that leaves the backlog, and checks everything
    words = ("--partitions", "1", "--verify", "--no-trim", "--memory", "2MiB")
    done = shop.json("compact", "orders", "--engine", "local", *words)
    assert (done["verify"], done["trim"], done["rewrite"]) == (True, False, False)
    [one] = done["partitions"]
    assert (one["partition"], one["trimmed_bytes"]) == (1, 0)
    assert one["rows_checked"] >= one["rows_read"]
    before = {part["partition"]: part for part in shop.json("explain", "orders")["partitions"]}
    assert before[0]["ledger"] is None
    assert (before[1]["start"], before[1]["horizon"]) == (0, one["horizon"])
    # when the rest is done
    rest = shop.json("compact", "orders", "--engine", "local")
    # then what was left is cut as well, once the other one is compacted
    assert [part["state"] for part in rest["partitions"]] == ["adopted", "skipped"]
    # and files are written anew only if that is wanted
    assert shop.json("compact", "orders", "--engine", "local")["bytes_written"] == 0
    again = shop.json("compact", "orders", "--engine", "local", "--rewrite")
    assert again["rewrite"] is True
    assert [part["files_written"] for part in again["partitions"]] == [1, 1]
    assert state_of(shop) == EXPECTED


# -- a dry run ----------------------------------------------------------------------------------


def test_a_dry_run_has_the_numbers_of_the_run(shop: Shop) -> None:
    plan = shop.json("compact", "orders", "--engine", "local", "--dry-run")
    said = shop.run("compact", "orders", "--engine", "local", "--dry-run")
    done = shop.json("compact", "orders", "--engine", "local")
    assert (plan["state"], plan["ended"]) == ("planned", None)
    assert set(plan) == set(done)
    planned = ("partition", "low", "horizon", "rows", "bytes", "too_young_rows", "held_until")
    for before, after in zip(plan["partitions"], done["partitions"], strict=True):
        assert {name: before[name] for name in planned} == {name: after[name] for name in planned}
        assert before["rows"] == after["rows_read"]
        assert f"{before['rows']:,}" in said
    assert f"a run would compact {ROWS:,} rows" in said
    assert "of 2 partitions of orders" in said


def test_a_dry_run_changes_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared(shop, monkeypatch) as database:

        def everything() -> tuple[Any, ...]:
            # Not all files: what was opened a moment ago may still tidy up its log. But nothing
            # can be changed without an entry in a log, or a file among the ledgers.
            table = database["orders"]
            logs = [one.group.log.last_index for one in partitions_of(table)]
            revision = backend_of(database).node.cluster.metastore.state.latest
            found = table.explain().partitions
            return logs, revision, files_of(shop), found, database.runs()

        before = everything()
        shop.run("compact", "orders", "--engine", "local", "--dry-run")
        shop.json("compact", "orders", "--engine", "local", "--dry-run", "--verify", "--rewrite")
        assert everything() == before


@pytest.mark.slow
def test_a_dry_run_adopts_nothing_that_was_published(shop: Shop) -> None:
    # given a run that ended between publishing a ledger and having it adopted
    class Stopped(BaseException):
        pass

    def stop(name: str) -> None:
        if name == "adopt partition 1":
            raise Stopped

    with lowmark.open(shop.data) as database, pytest.raises(Stopped):
        database["orders"].compact(engine="local", step=stop)
    # when somebody only looks
    plan = shop.json("compact", "orders", "--engine", "local", "--dry-run")
    # then nothing is adopted, and the plan is what a run would find once it has adopted that
    ledgers = [part["ledger"] for part in shop.json("explain", "orders")["partitions"]]
    assert ledgers[1] is None
    done = shop.json("compact", "orders", "--engine", "local")
    for before, after in zip(plan["partitions"], done["partitions"], strict=True):
        assert (before["low"], before["rows"]) == (after["low"], after["rows"])
    assert state_of(shop) == EXPECTED


# -- what it leaves, and why --------------------------------------------------------------------


@pytest.mark.slow
def test_rows_that_are_old_enough_are_compacted_though_only_commands_use_the_directory(
    tmp_path: Path,
) -> None:
    ahead_ms = 0
    wall = by_steps(1)
    with wall_clock(lambda: wall() + ahead_ms):
        # given rows that are too young, and the time from which on they are not
        shop = Shop(tmp_path / "d").with_orders()
        shop.run("append", "orders", "-", stdin='{"id": "o-1"}')
        young = shop.json("compact", "orders", "--engine", "local")
        assert young["state"] == "too young"
        ready = datetime.fromisoformat(young["ready_at"])
        # when that has come, then they are compacted at once
        ahead_ms = int(ready.timestamp() * 1_000) + 1 - wall()
        done = shop.json("compact", "orders", "--engine", "local")
        assert (done["state"], done["rows_live"]) == ("done", 1)


def test_rows_that_are_too_young_are_counted_and_said_until_when(shop: Shop) -> None:
    # given a few rows later than the low watermark
    fill(shop, 30, 30)
    # when the table is planned, and compacted
    plan = shop.run("compact", "orders", "--engine", "local", "--dry-run")
    done = shop.json("compact", "orders", "--engine", "local")
    # then they are said: how many, and until when
    until = min(one["held_until"] for one in done["partitions"])
    assert (done["too_young_rows"], done["rows_read"]) == (30, ROWS)
    # and from when on the first of them is old enough, and what to do meanwhile
    for said in (plan, shop.run("compact", "orders", "--engine", "local")):
        assert "30 rows are too young. The first of them is old enough from " in said
        assert "`lowmark watermark advance --to now`" in said
        assert "`lowmark watermark history`" in said
    assert done["ready_at"] > until
    assert done["ready_at"] in done["hint"]
    assert "every row is later than the low watermark" in shop.run(
        "compact", "orders", "--engine", "local"
    )
    # and programs are told the same by the state, with the time
    young = shop.json("compact", "orders", "--engine", "local")
    assert (young["state"], young["too_young_rows"], young["held_until"]) == (
        "too young",
        30,
        until,
    )
    # and when it has passed, they go
    settle(shop)
    assert shop.json("compact", "orders", "--engine", "local")["rows_read"] == 30
    # and then nothing is new
    nothing = shop.json("compact", "orders", "--engine", "local")
    assert nothing["state"] == "nothing"
    assert nothing["too_young_rows"] == 0
    assert {nothing[name] for name in ("held_until", "ready_at", "hint")} == {None}


@pytest.mark.slow
def test_whoever_keeps_the_backlog_is_named(shop: Shop) -> None:
    shop.run("cursor", "create", "orders", "billing")
    said = shop.run("compact", "orders", "--engine", "local")
    assert "the backlog below the horizon is kept for cursor billing" in said
    # when the reader has gone, a run has nothing to read, and cuts
    shop.run("cursor", "delete", "orders", "billing")
    said = shop.run("compact", "orders", "--engine", "local")
    assert "nothing to do for orders" in said
    assert "of the backlog were trimmed" in said


@pytest.mark.slow
def test_an_empty_table_has_nothing_to_do(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop").with_orders(2)
    for words in ((), ("--dry-run",), ("--rewrite",)):
        assert "nothing to do for orders: nothing is new" in shop.run(
            "compact", "orders", "--engine", "local", *words
        )
    assert shop.json("runs") == []
    assert files_of(shop) == []


# -- what it refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("ordrs", "--engine", "local"), 1, "Did you mean orders?"),
        (("orders", "--engine", "local", "--partitions", "0,7"), 1, "no partition 7"),
        (
            ("orders", "--engine", "local", "--partitions", "first"),
            2,
            "--partitions can't be 'first'",
        ),
        (("orders", "--engine", "local", "--partitions", ","), 2, "--partitions can't be ','"),
        (("orders", "--engine", "local", "--partitions", "-1"), 2, "--partitions can't be '-1'"),
        (
            ("orders", "--engine", "local", "--read-rate", "fast"),
            2,
            "--read-rate: 'fast' is not a size",
        ),
        (("orders", "--engine", "local", "--read-rate", ""), 2, "--read-rate: '' is not a size"),
        (("orders", "--engine", "local", "--read-rate", "5M"), 2, "is not a size"),
        (
            ("orders", "--engine", "local", "--write-rate", "-1"),
            2,
            "--write-rate can't be less than 0 B",
        ),
        (
            ("orders", "--engine", "local", "--write-rate", "9" * 30),
            2,
            "--write-rate can't be more than",
        ),
        (
            ("orders", "--engine", "local", "--memory", "1KiB"),
            2,
            "--memory can't be less than 1.0 MiB",
        ),
        (
            ("orders", "--engine", "local", "--memory", "99999999TiB"),
            2,
            "--memory can't be more than",
        ),
        (
            ("orders", "--engine", "local", "--spark-master", "local"),
            2,
            "--engine local runs without Spark",
        ),
        (("orders", "--engine", "local", "--resume", "nobody"), 1, "there is no run nobody"),
        (
            ("orders", "--engine", "local", "--resume", "x", "--dry-run"),
            2,
            "goes on as it was planned",
        ),
        (
            ("orders", "--engine", "local", "--resume", "x", "--partitions", "0"),
            2,
            "as it was planned",
        ),
        (("orders", "--engine", "local", "--resume", "x", "--verify"), 2, "as it was planned"),
        (("orders", "--engine", "local", "--resume", "x", "--no-trim"), 2, "as it was planned"),
        (("orders", "--engine", "local", "--resume", "x", "--rewrite"), 2, "as it was planned"),
        ((), 2, "TABLE"),
    ],
)
def test_what_can_not_be_done_is_refused_before_anything_is(
    made: Shop, words: tuple[str, ...], code: int, why: str
) -> None:
    assert why in made.refused("compact", *words, code=code)
    told = json.loads(made.refused("compact", *words, "--json", code=code))
    assert set(told) == {"error", "kind", "detail", "hint"}
    assert files_of(made) == []


def test_a_run_that_is_done_is_not_resumed(shop: Shop) -> None:
    run = shop.json("compact", "orders", "--engine", "local")["run"]
    said = shop.refused("compact", "orders", "--engine", "local", "--resume", run)
    assert f"run {run} is done" in said
    assert f"run {run} is done" in shop.refused("runs", "resume", run, "--engine", "local")


@pytest.mark.slow
def test_a_table_may_be_left_alone(shop: Shop) -> None:
    shop.run("table", "alter", "orders", "--set", "compaction=off")
    for words in ((), ("--dry-run",)):
        assert "compaction=off" in shop.refused("compact", "orders", "--engine", "local", *words)
    assert shop.json("runs") == []


@pytest.mark.slow
def test_a_table_that_is_open_elsewhere_is_compacted_through_its_owner(shop: Shop) -> None:
    with lowmark.open(shop.data) as database:
        shop.run("compact", "orders", "--engine", "local")
        # then the owner knows of the run, and reads what it made
        [run] = database.runs()
        assert run.state == "done"
        assert all(one.ledger is not None for one in database["orders"].explain().partitions)
    assert state_of(shop) == EXPECTED


def test_only_a_database_is_compacted(tmp_path: Path) -> None:
    words = ["compact", "orders", "--engine", "local", "--data", str(tmp_path / "nowhere")]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "there is no directory" in done.stderr
    assert not (tmp_path / "nowhere").exists()


def test_without_spark_a_run_is_made_in_this_process_and_says_so(shop: Shop) -> None:
    # given a Python without PySpark, when nothing is said about where
    done = without("pyspark", "compact", "orders", "--data", str(shop.data))
    # then it is done here, and that is said, and why
    assert done.exit_code == 0, done.stderr
    assert "(in this process: PySpark can't be imported)" in done.stdout
    [run] = shop.json("runs")
    assert (run["state"], run["engine"]) == ("done", "local")
    assert run["where"] == "this process: PySpark can't be imported"
    assert state_of(shop) == EXPECTED


def test_without_java_a_run_is_made_in_this_process_and_says_so(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no java"))
    done = shop.json("compact", "orders")
    assert (done["state"], done["engine"]) == ("done", "local")
    assert done["where"] == "this process: Spark needs Java, and there is none"
    assert state_of(shop) == EXPECTED


def test_without_spark_it_is_said_what_to_install_and_how_to_go_on(shop: Shop) -> None:
    # given a Python without PySpark
    words = ("compact", "orders", "--engine", "spark", "--data", str(shop.data))
    done = without("pyspark", *words)
    # then it is said what is missing
    assert (done.exit_code, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    assert "pip install 'pyspark>=4.2'" in done.stderr
    assert "--engine local" in done.stderr
    # and how to go on with the run, which goes on without Spark as well
    [run] = shop.json("runs")
    assert run["state"] == "failed"
    assert f"lowmark runs resume {run['run']}" in done.stderr
    assert shop.json("runs", "resume", run["run"], "--engine", "local")["state"] == "done"
    assert state_of(shop) == EXPECTED


# -- rates --------------------------------------------------------------------------------------


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def now_s(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_a_throttle_lets_as_much_time_pass_as_its_rate_says() -> None:
    clock = Clock()
    throttle = Throttle(1_000, clock)
    for _ in range(100):
        throttle(100)
    assert throttle.total == 10_000
    assert clock.now == pytest.approx(10.0, abs=0.25)
    # and one without a rate only counts
    before, free = clock.now, Throttle(0, clock)
    free(1 << 40)
    assert (free.total, clock.now) == (1 << 40, before)


def test_rates_have_units_and_reach_the_work(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a look at what is worked off, which is done as always
    works: list[Work] = []

    def looked_at(data: bytes) -> bytes:
        works.append(msgspec.msgpack.decode(data, type=Work))
        return running.work_off(data)

    monkeypatch.setattr("lowmark.compaction.work.work_off", looked_at)
    # when a run is made with rates
    words = ("--read-rate", "64 MiB", "--write-rate", "32mb")
    done = shop.json("compact", "orders", "--engine", "local", *words)
    # then they are noted, and each task has its share
    assert (done["read_rate"], done["write_rate"]) == (64 << 20, 32_000_000)
    assert [(one.read_rate, one.write_rate) for one in works] == [(64 << 20, 32_000_000)] * 2
    said = shop.run("runs", "show", done["run"])
    assert "64.0 MiB/s" in said
    assert "30.5 MiB/s" in said


# -- ending before the end ----------------------------------------------------------------------


@pytest.mark.slow
def test_an_interrupt_cancels_the_run_and_leaves_nothing_behind(shop: Shop) -> None:
    # given a run that has finished one partition, and is at the other one
    with started(shop, "compact", "orders", "--engine", "local", "--read-rate", "60KiB") as process:
        run = begun(shop, process, mark="*.done")
        # when somebody presses Ctrl-C
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
    # then it says what became of it
    assert (process.returncode, out) == (130, "")
    assert said == f"run {run} was cancelled\ninterrupted\n"
    # and no file is left, and nobody holds anything
    assert files_of(shop) == []
    assert list((shop.data / "ledgers").glob("*/runs/*")) == []
    [noted] = shop.json("runs")
    assert (noted["run"], noted["state"]) == (run, "cancelled")
    found = shop.json("explain", "orders")
    assert (found["rows"], found["holders"]) == (ROWS, [])
    # and it can't be resumed, but begun again
    assert f"run {run} is cancelled" in shop.refused("runs", "resume", run, "--engine", "local")
    assert shop.json("compact", "orders", "--engine", "local")["rows_live"] == KEYS
    assert state_of(shop) == EXPECTED


# -- progress -----------------------------------------------------------------------------------


def on_a_terminal(*words: str) -> tuple[int, str]:
    """What a command shows on a terminal of 120 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "lowmark", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm"},
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                some = os.read(ours, 1 << 16)
            except OSError:  # the other side is closed
                break
            if not some:
                break
            shown += some
        os.close(ours)
    return process.returncode, shown.decode()


@pytest.mark.slow
def test_a_terminal_shows_a_bar_while_it_goes_on(shop: Shop) -> None:
    words = (
        "compact",
        "orders",
        "--engine",
        "local",
        "--read-rate",
        "150KiB",
        "--data",
        str(shop.data),
    )
    code, shown = on_a_terminal(*words)
    assert code == 0, shown
    assert "compacting" in shown
    assert "━" in shown
    assert "of 2 partitions" in shown
    assert f"{KEYS:,} live" in re.sub(r"\s+", " ", shown)


@pytest.mark.slow
def test_without_a_terminal_nothing_is_said_on_the_way(shop: Shop) -> None:
    done = shop.invoke("compact", "orders", "--engine", "local", "--read-rate", "150KiB")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "compacting" not in done.stdout
    assert "\x1b" not in done.stdout


# -- on Spark -----------------------------------------------------------------------------------


@pytest.mark.release  # a JVM of its own; `spark/test_compaction` does the same in the shared one
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_a_table_is_compacted_on_spark(shop: Shop) -> None:
    # when it is compacted on a Spark of its own
    words = ("compact", "orders", "--spark-master", "local[2]", "--json")
    with started(shop, *words, env={SWITCH: "off"}) as process:
        # Java and Python's workers have the environment of this one.
        eventually(lambda: len(processes_of(shop)) > 1, deadline_s=120)
        out, said = process.communicate(timeout=160)
        # then the answer is there, and nothing else is said
        assert (process.returncode, said) == (0, "")
        done = json.loads(out)
        assert (done["state"], done["where"]) == ("done", "local[2]")
        assert (done["rows_read"], done["rows_live"]) == (ROWS, KEYS)
        # and nobody is left of it
        eventually(lambda: processes_of(shop) == [])
    assert state_of(shop) == EXPECTED


def processes_of(shop: Shop) -> list[int]:
    """Processes that were told of the shop by their environment, or by who started them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if str(shop.data).encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found
