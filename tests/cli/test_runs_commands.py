"""`lowmark runs`: which runs there were, what became of them; cancel one, go on with one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lowmark
from cli.history import KEYS, ROWS, SLOWLY, begun, copied, files_of, settled, started
from cli.shop import Shop
from lowmark.cli import runs
from lowmark.cli.app import app
from lowmark.client import Database
from lowmark.compaction.context import leave_word
from lowmark.ledger.manifest import run_folder

ROW = {
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
    "held_until",
    "ready_at",
    "hint",
}


class Stopped(BaseException):
    """The process ends here."""


def stopped_before(database: Database, step: str) -> str:
    """A run whose process ended before a step; gives its name."""

    def stop(name: str) -> None:
        if name == step:
            raise Stopped

    with pytest.raises(Stopped):
        database["orders"].compact(engine="local", step=stop)
    return database.runs()[0].run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return settled(tmp_path_factory.mktemp("made") / "shop")


@pytest.fixture
def shop(made: Shop, tmp_path: Path) -> Shop:
    return copied(made, tmp_path / "shop")


# -- looking ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_runs_are_listed_and_shown(shop: Shop) -> None:
    # given a shop without a run
    assert shop.run("runs") == "no run is known\n"
    assert shop.run("runs", "orders") == "no run of orders is known\n"
    assert shop.json("runs") == []
    # when its table is compacted
    done = shop.json("compact", "orders", "--engine", "local")
    # then the run is listed: of all tables, of this one, and by the long form
    [row] = shop.json("runs")
    assert set(row) == ROW
    assert set(re.findall(r"\w+", runs.runs.__doc__ or "")) >= ROW
    assert row == {name: done[name] for name in ROW}
    for words in (("orders",), ("list",), ("list", "orders")):
        assert shop.json("runs", *words) == [row]
    shown = shop.run("runs")
    for word in (row["run"], "orders", "done", "by hand", "local", f"{ROWS:,}", f"{KEYS:,}"):
        assert word in shown
    # and shown with all that was done
    assert shop.json("runs", "show", row["run"]) == done
    shown = shop.run("runs", "show", row["run"])
    for word in (row["run"], "no limit", "low watermark", "trimmed to"):
        assert word in shown


def test_options_may_stand_before_the_command(shop: Shop) -> None:
    run = shop.json("compact", "orders", "--engine", "local")["run"]
    words = ["runs", "--data", str(shop.data), "--json", "show", run]
    assert json.loads(CliRunner().invoke(app, words).stdout)["run"] == run
    words = ["runs", "--data", str(shop.data), "--json", "orders"]
    assert json.loads(CliRunner().invoke(app, words).stdout)[0]["run"] == run


def test_the_newest_run_comes_first_and_has_the_name_that_the_table_had(shop: Shop) -> None:
    first = shop.json("compact", "orders", "--engine", "local", "--partitions", "0")["run"]
    second = shop.json("compact", "orders", "--engine", "local", "--partitions", "1")["run"]
    assert [row["run"] for row in shop.json("runs")] == [second, first]


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("ordrs",), 1, "Did you mean orders?"),
        (("show", "nobody"), 1, "there is no run nobody"),
        (("cancel", "nobody"), 1, "there is no run nobody"),
        (("resume", "nobody", "--engine", "local"), 1, "there is no run nobody"),
        (("resume", "nobody", "--engine", "local", "--spark-master", "local"), 2, "without Spark"),
        (("resume", "nobody", "--engine", "local", "--read-rate", "fast"), 2, "is not a size"),
        (("show",), 2, "RUN"),
        (("orders", "customers"), 2, "customers"),
        (("list", "--engine", "local"), 2, "--engine"),
    ],
)
def test_what_there_is_not_is_refused(
    made: Shop, words: tuple[str, ...], code: int, why: str
) -> None:
    assert why in made.refused("runs", *words, code=code)
    told = json.loads(made.refused("runs", *words, "--json", code=code))
    assert set(told) == {"error", "kind", "detail", "hint"}


# -- interrupted --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_is_given_up_leaves_nothing(shop: Shop) -> None:
    # given a run whose process ended after the first of two partitions was written
    with lowmark.open(shop.data) as database:
        run = stopped_before(database, "publish partition 0")
    [row] = shop.json("runs")
    assert (row["run"], row["state"], row["ended"]) == (run, "interrupted", None)
    assert files_of(shop) != []
    # when it is cancelled
    told = shop.json("runs", "cancel", run)
    # then it is over, and its files are gone
    assert told == {"run": run, "state": "cancelled", "word": None}
    assert shop.json("runs")[0]["state"] == "cancelled"
    assert files_of(shop) == []
    assert list((shop.data / "ledgers").glob("*/runs/*")) == []
    assert shop.json("explain", "orders")["holders"] == []
    # and not a second time
    for words in (("cancel", run), ("resume", run, "--engine", "local")):
        assert f"run {run} is cancelled" in shop.refused("runs", *words)


def test_a_run_goes_on_with_what_is_finished(shop: Shop) -> None:
    # given a run whose process ended when all was written, and nothing published
    with lowmark.open(shop.data) as database:
        run = stopped_before(database, "publish partition 0")
    written = {name for name in files_of(shop) if name.endswith(".parquet")}
    assert len(written) == 2
    # when it goes on
    done = shop.json("runs", "resume", run, "--engine", "local")
    # then it is the same run, and it has not written anything again
    assert (done["run"], done["state"], done["resumed"]) == (run, "done", 1)
    assert (done["rows_read"], done["rows_live"]) == (ROWS, KEYS)
    assert {name for name in files_of(shop) if name.endswith(".parquet")} == written
    assert "1 time" in shop.run("runs", "show", run)


@pytest.mark.slow
def test_a_word_to_end_a_run_does_not_end_it_when_it_is_resumed(shop: Shop) -> None:
    # given an interrupted run that has not found the word to end any more
    with lowmark.open(shop.data) as database:
        run = stopped_before(database, "carry out the work")
        leave_word(database.backend.store, run_folder(database["orders"].descriptor.id, run))
    # when another process goes on with it, and it has the time to look for such a word
    done = shop.json("runs", "resume", run, "--engine", "local", "--read-rate", "100KiB")
    # then it is done
    assert done["state"] == "done"


def test_another_run_does_what_an_interrupted_one_would_have_done(shop: Shop) -> None:
    with lowmark.open(shop.data) as database:
        run = stopped_before(database, "publish partition 0")
    done = shop.json("compact", "orders", "--engine", "local")
    assert (done["state"], done["rows_live"]) == ("done", KEYS)
    other = shop.json("runs", "show", run)
    assert other["state"] == "cancelled"
    assert f"given up for run {done['run']}" in other["error"]
    assert not [name for name in files_of(shop) if run in name]


def test_one_that_was_all_but_over_is_given_up_without_a_trace(shop: Shop) -> None:
    # given a run whose process ended when everything was done but noted
    with lowmark.open(shop.data) as database:
        run = stopped_before(database, "note the end")
    # when the table is compacted again, and nothing is new
    assert "nothing is new" in shop.run("compact", "orders", "--engine", "local")
    # then nothing waits for it any more
    assert shop.json("runs", "show", run)["state"] == "cancelled"
    assert not [name for name in files_of(shop) if "/runs/" in name]
    assert shop.json("explain", "orders")["ledger_rows"] == KEYS


def test_a_run_of_a_table_that_was_dropped_has_nothing_to_be_done(shop: Shop) -> None:
    run = shop.json("compact", "orders", "--engine", "local")["run"]
    shop.run("table", "drop", "orders", "--yes")
    for words in (("cancel", run), ("resume", run, "--engine", "local")):
        said = shop.refused("runs", *words)
        assert "was dropped" in said or f"there is no run {run}" in said


# -- real processes -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_run_is_shown_as_interrupted_and_goes_on(shop: Shop) -> None:
    # given a run that is killed when one of two partitions is finished
    with started(shop, "compact", "orders", "--engine", "local", "--read-rate", "60KiB") as process:
        run = begun(shop, process, mark="*.done")
        process.kill()
        process.communicate(timeout=60)
    # then it is listed as interrupted, and it is said what it holds
    [row] = shop.json("runs")
    assert (row["run"], row["state"], row["read_rate"]) == (run, "interrupted", 60 << 10)
    assert "interrupted" in shop.run("runs", "orders")
    holders = {one["name"] for one in shop.json("explain", "orders")["holders"]}
    assert holders == {f"compaction {run}"}
    written = {name for name in files_of(shop) if name.endswith(".parquet")}
    # when it goes on, as fast as it can
    done = shop.json("runs", "resume", run, "--engine", "local", "--read-rate", "0")
    # then it is done, what was finished was not done again, and nothing is held
    assert (done["run"], done["state"], done["resumed"]) == (run, "done", 1)
    assert (done["read_rate"], done["rows_read"], done["rows_live"]) == (0, ROWS, KEYS)
    assert written <= set(files_of(shop))
    assert shop.json("explain", "orders")["holders"] == []
    assert not [name for name in files_of(shop) if "/runs/" in name]


@pytest.mark.slow
def test_another_process_ends_a_run_that_goes_on(shop: Shop) -> None:
    # given a run that will take minutes
    with started(shop, "compact", "orders", "--engine", "local", "--read-rate", SLOWLY) as process:
        run = begun(shop, process)
        # when another process looks for it
        assert [(row["run"], row["state"]) for row in shop.json("runs")] == [(run, "running")]
        # then it can't be compacted twice at a time, nor resumed
        assert f"is being compacted by run {run}" in shop.refused(
            "compact", "orders", "--engine", "local"
        )
        assert f"is being compacted by run {run}" in shop.refused("runs", "resume", run)
        # and when it is asked to end
        told = shop.json("runs", "cancel", run)
        assert (told["run"], told["state"]) == (run, "asked")
        assert told["word"].startswith(str(shop.data))
        # then it ends, and says so
        out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert "was cancelled" in said
    assert [row["state"] for row in shop.json("runs")] == ["cancelled"]
    assert files_of(shop) == []
    assert shop.json("explain", "orders")["holders"] == []
