"""`lowmark read`: for people, for programs, into files; from and to any place; following."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lowmark
from cli.shop import Shop, shared
from inside import backend_of
from lowmark.client import time_text

EVERYTHING = (
    "id int64, flag bool, small int8, real float64, price decimal(38,10), name string,"
    " data binary, who uuid, day date, at timestamp, local timestamp_ntz,"
    " tags list<string>, sizes list<decimal(5,2)>, place struct<city: string, zip: int32>,"
    " counts map<string, int64>, days map<int32, date>"
)
FULL: dict[str, Any] = {
    "id": 9_007_199_254_740_993,
    "flag": True,
    "small": -1,
    "real": 0.1,
    "price": "12345678901234567890.1234567890",
    "name": 'größe "," \n \t',
    "data": "00ff10",
    "who": "00000000-0000-0000-0000-000000000007",
    "day": "2026-07-01",
    "at": "2026-07-01T12:00:00.123456Z",
    "local": "2026-07-01T12:00:00",
    "tags": ["a", None, "ü"],
    "sizes": ["1.50"],
    "place": {"city": "Köln", "zip": None},
    "counts": {"a": 1, "b": None},
    "days": [[1, "2026-07-01"]],
}
EMPTY: dict[str, Any] = dict.fromkeys(FULL) | {"id": 1, "name": ""}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop").with_orders()


def fill(shop: Shop, count: int, first: int = 0) -> None:
    rows = "".join(f"o-{n},new\n" for n in range(first, first + count))
    shop.run("append", "orders", "-", stdin=f"id,status\n{rows}")


# -- for people ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_people_get_a_table_of_the_first_hundred_rows(shop: Shop) -> None:
    # given one row more than is shown
    fill(shop, 101)
    # when it is read
    done = shop.invoke("read", "orders")
    # then there are a head and a hundred rows, and a line on stderr says that there are more
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["id", "status", "amount", "_change"]
    assert rows[0].split() == ["o-0", "new", "-", "upsert"]
    assert len(rows) == 100
    assert "--all" in done.stderr
    # and the position is behind what was shown
    assert done.stderr.endswith("position: 0:100\n")
    # and whoever says how much, gets that
    for words, count in ((("--all",), 101), (("--limit", "101"), 101), (("--limit", "3"), 3)):
        done = shop.invoke("read", "orders", *words)
        assert len(done.stdout.splitlines()) == count + 1
        assert done.stderr == f"position: 0:{count}\n"


def test_exactly_a_hundred_rows_are_all(shop: Shop) -> None:
    fill(shop, 100)
    done = shop.invoke("read", "orders")
    assert (len(done.stdout.splitlines()), done.stderr) == (101, "position: 0:100\n")


def test_a_table_without_rows_has_a_head(shop: Shop) -> None:
    assert shop.run("read", "orders").split() == ["id", "status", "amount", "_change"]
    assert shop.lines("orders") == []


# -- forms --------------------------------------------------------------------------------------


@pytest.fixture
def wide(shop: Shop) -> Shop:
    shop.run("table", "create", "wide", "--columns", EVERYTHING)
    text = f"{json.dumps(FULL)}\n{json.dumps(EMPTY)}\n"
    shop.run("append", "wide", "-", stdin=text)
    return shop


@pytest.mark.slow
def test_every_type_is_given_as_it_was_written(wide: Shop) -> None:
    assert wide.lines("wide") == [FULL, EMPTY]
    shown = wide.run("read", "wide")
    for word in (
        "12345678901234567890.1234567890",
        "Köln",
        "00ff10",
        "2026-07-01T12:00:00.123456Z",
    ):
        assert word in shown
    assert len(shown.splitlines()) == 3  # a line end in a value is no line end of the table


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "csv", "arrow", "parquet"])
def test_what_was_read_can_be_appended_to_another_table(
    wide: Shop, form: str, tmp_path: Path
) -> None:
    # given rows in a file
    path = tmp_path / "rows.out"
    if form == "json":
        path.write_text(wide.run("read", "wide", "--json"))
    else:
        done = wide.invoke("read", "wide", f"--{form}", str(path))
        assert (done.exit_code, done.stdout) == (0, "")
        wrote, position = done.stderr.splitlines()
        assert wrote == "wrote 2 rows"
        assert position.startswith("position: 0:")
    # when they are appended elsewhere
    wide.run("table", "create", "copy", "--columns", EVERYTHING)
    words = ("--format", {"json": "jsonl"}.get(form, form))
    wide.run("append", "copy", str(path), *words)
    # then nothing is different
    assert wide.lines("copy") == [FULL, EMPTY]
    assert [each.name for each in tmp_path.glob("*.part")] == []


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "arrow", "parquet"])
def test_changes_go_through_files_and_pipes(shop: Shop, form: str) -> None:
    # given an upsert and a delete
    shop.run("append", "orders", "-", stdin="id,_change\no-1,upsert\no-2,upsert\no-1,delete\n")
    # when they go through a pipe to another table
    piped = shop.invoke("read", "orders", f"--{form}", "-")
    assert piped.exit_code == 0, piped.output
    shop.run(
        "table",
        "create",
        "copy",
        "--columns",
        "id string, status string, amount decimal(12,2)",
        "--key",
        "id",
        "--partitions",
        "1",
    )
    shop.run("append", "copy", "-", stdin=piped.stdout_bytes)
    # then they are the same changes
    assert shop.lines("copy") == shop.lines("orders")
    assert shop.json("explain", "copy", "--key", "o-1")["state"] == "deleted"


@pytest.mark.slow
def test_a_large_file_has_few_row_groups(shop: Shop, tmp_path: Path) -> None:
    for at in range(5):
        fill(shop, 10, first=10 * at)
    path = tmp_path / "all.parquet"
    shop.run("read", "orders", "--parquet", str(path), "--columns", "id,_offset,_partition,_time")
    file = pq.ParquetFile(path)
    assert (file.num_row_groups, file.metadata.num_rows) == (1, 50)
    assert file.read().column("_offset").to_pylist() == list(range(50))


@pytest.mark.slow
def test_a_file_that_can_not_be_written_leaves_nothing(shop: Shop, tmp_path: Path) -> None:
    fill(shop, 3)
    for bad in (str(tmp_path), str(tmp_path / "nowhere" / "x.csv")):
        shop.refused("read", "orders", "--csv", bad, code=2)
    path = tmp_path / "old.csv"
    path.write_text("mine")
    shop.refused("read", "orders", "--csv", str(path), "--columns", "nope")
    assert path.read_text() == "mine"


@pytest.mark.slow
def test_numbers_that_json_does_not_have_are_text(shop: Shop) -> None:
    shop.run("table", "create", "f", "--columns", "x float64, y float32")
    shop.run("append", "f", "-", stdin="x,y\nnan,inf\n-inf,0.1\n")
    assert shop.lines("f")[0] == {"x": "NaN", "y": "Infinity"}
    assert shop.lines("f")[1]["x"] == "-Infinity"


# -- places -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_columns_places_and_partitions_are_chosen(tmp_path: Path) -> None:
    # given a table of two partitions
    shop = Shop(tmp_path / "shop").with_orders(partitions=2)
    fill(shop, 20)
    where = shop.lines("orders", "--columns", "id,_partition,_offset")
    ends = {number: sum(row["_partition"] == number for row in where) for number in (0, 1)}
    assert min(ends.values()) > 2

    def read(*words: str) -> list[tuple[int, int]]:
        rows = shop.lines("orders", "--columns", "_partition,_offset", *words)
        return [(row["_partition"], row["_offset"]) for row in rows]

    # then only what is asked for is given
    assert {number for number, _ in read("--partition", "1")} == {1}
    assert read("--start", "0:1", "--end", "0:2") == [(0, 1)]
    assert read("--start", f"0:{ends[0]},1:{ends[1] - 1}") == [(1, ends[1] - 1)]
    assert read("--start", "latest") == []
    assert len(read("--start", "2020-01-01")) == 20
    assert read("--end", "2020-01-01T00:00:00Z") == []
    # and what there is not is refused by name
    assert "no partition 7" in shop.refused("read", "orders", "--partition", "7")
    assert "no partition 7" in shop.refused("read", "orders", "--start", "7:0")
    assert "0:5,1:5" in shop.refused("read", "orders", "--start", "5")
    assert "no column" in shop.refused("read", "orders", "--columns", "nope")
    assert "is not a time" in shop.refused("read", "orders", "--start", "yesterday")


def test_a_plain_offset_is_enough_for_one_partition(shop: Shop) -> None:
    fill(shop, 5)
    rows = shop.lines("orders", "--start", "3", "--end", "4", "--columns", "id")
    assert rows == [{"id": "o-3"}]


@pytest.mark.slow
def test_a_table_is_read_as_it_was(shop: Shop) -> None:
    # given a row that was changed, and another one that was deleted
    shop.run("append", "orders", "-", stdin="id,status\no-1,new\no-2,new\n")
    shop.run("append", "orders", "-", stdin="id,status\no-1,paid\n")
    shop.run("delete", "orders", "o-2")
    first, _, change = [row["_time"] for row in shop.lines("orders", "--columns", "_time")]
    before = time_text(first)
    assert before < time_text(change)  # as text it is a whole millisecond
    # then each time has its own table
    for moment in (before, str(first)):
        rows = shop.lines("orders", "--as-of", moment, "--columns", "id,status")
        assert rows == [{"id": "o-1", "status": "new"}, {"id": "o-2", "status": "new"}]
    now = shop.lines("orders", "--as-of", "now", "--columns", "id,status")
    assert now == [{"id": "o-1", "status": "paid"}]
    # and also one that was dropped since
    shop.run("table", "drop", "orders", "--yes")
    assert len(shop.lines("orders", "--as-of", before)) == 2
    assert "there is no table" in shop.refused("read", "orders")


def test_a_time_without_a_table_is_refused(shop: Shop) -> None:
    assert "in the future" in shop.refused("read", "orders", "--as-of", "2999-01-01")
    assert shop.invoke("read", "orders", "--as-of", "1999-01-01").exit_code == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--json", "--csv", "x"),
        ("--parquet", "x", "--arrow", "y"),
        ("--follow", "--csv", "x"),
        ("--follow", "--end", "latest"),
        ("--as-of", "now", "--start", "latest"),
        ("--as-of", "now", "--follow"),
        ("--on-gap", "ignore"),
        ("--limit", "-1"),
        ("--columns", ","),
        ("--start", "0:1,0:2"),
    ],
)
def test_what_does_not_go_together_is_wrong_use(shop: Shop, words: tuple[str, ...]) -> None:
    assert shop.refused("read", "orders", *words, code=2)


@pytest.mark.slow
def test_rows_that_are_gone_are_an_error_or_a_note(shop: Shop) -> None:
    # given a table whose first rows went by retention
    shop.run("table", "create", "log", "--columns", "n int64", "--partitions", "1")
    shop.run("append", "log", "-", stdin="n\n1\n2\n")
    shop.run("table", "alter", "log", "--set", "retention_bytes=1")
    with lowmark.open(shop.data) as database:
        table = database["log"]
        table.append([{"n": 3}])
        upkeep = backend_of(database).node.upkeep
        assert upkeep is not None
        backend_of(database).ask(lambda: upkeep.retain(table.descriptor.id))
        start = table.explain().partitions[0].start
    assert start > 0
    # when somebody reads from before that
    said = shop.refused("read", "log", "--start", "0")
    # then that is said, or noted
    assert f"offsets 0 to {start - 1} of partition 0 are expired" in said
    done = shop.invoke("read", "log", "--start", "0", "--on-gap", "skip", "--json")
    assert done.exit_code == 0
    assert f"note: offsets 0 to {start - 1} of partition 0" in done.stderr


# -- following ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_who_follows_gets_rows_as_they_are_appended(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(shop, 1)
    with shared(shop, monkeypatch) as database:
        orders, over = database["orders"], threading.Event()

        def more() -> None:
            for n in itertools.count(1):
                orders.append([{"id": f"o-{n}", "status": "new"}])
                if over.wait(0.02):
                    return

        appending = threading.Thread(target=more)
        appending.start()
        try:
            # when three rows from now on are wanted
            words = ("read", "orders", "--follow", "--start", "latest", "--limit", "3")
            lines = shop.run(*words, "--json").splitlines()
            shown = shop.run(*words).splitlines()
        finally:
            over.set()
            appending.join()
    # then they are those that came next, without a gap
    numbers = [int(json.loads(line)["id"].removeprefix("o-")) for line in lines]
    assert numbers == [*range(numbers[0], numbers[0] + 3)]
    assert numbers[0] > 0
    assert [line.split()[1] for line in shown] == ["status", "new", "new", "new"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--json"], pytest.param([], marks=pytest.mark.release)])
def test_an_interrupt_ends_who_follows(shop: Shop, words: list[str]) -> None:
    # given somebody who has read all there is, and waits
    fill(shop, 2)
    command = ["read", "orders", "--follow", "--data", str(shop.data), *words]
    with subprocess.Popen(
        [sys.executable, "-m", "lowmark", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            seen = [process.stdout.readline() for _ in range(2 if words else 3)]
            # when that is interrupted
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=60)
        finally:
            process.kill()
    # then it ends as a watch does, and the directory is free
    assert (process.returncode, out) == (130, "")
    # and says where it was, unless it was interrupted before it knew that its rows were out
    assert said in {"interrupted\n", "position: 0:2\ninterrupted\n"}
    assert "o-1" in seen[-1]
    assert len(shop.lines("orders")) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["--json"], pytest.param(["--all"], marks=pytest.mark.release), ["--csv", "-"]]
)
def test_a_closed_pipe_ends_it_quietly(shop: Shop, words: list[str]) -> None:
    # given more than a pipe takes before somebody reads from it
    rows = "".join(f"o-{n},{'new' * 100}\n" for n in range(500))
    shop.run("append", "orders", "-", stdin=f"id,status\n{rows}")
    # when whoever reads has seen enough after a line
    command = [sys.executable, "-m", "lowmark", "read", "orders", "--data", str(shop.data), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            said = process.stderr.read()
        finally:
            process.kill()
    # then nobody complains
    assert said == b""


def test_batches_of_an_export_are_those_of_the_table(shop: Shop, tmp_path: Path) -> None:
    fill(shop, 3)
    path = tmp_path / "rows.arrow"
    shop.run("read", "orders", "--arrow", str(path), "--columns", "id")
    with pa.ipc.open_file(str(path)) as file:
        assert file.read_all().to_pylist() == [{"id": f"o-{n}"} for n in range(3)]


# -- compacted ----------------------------------------------------------------------------------


@pytest.fixture
def compacted(shop: Shop) -> Shop:
    """Ten keys with five changes each in the ledger, one of them deleted; then two changes more."""
    for at in range(5):
        rows = "".join(f"o-{n},state {at}\n" for n in range(10))
        shop.run("append", "orders", "-", stdin=f"id,status\n{rows}")
    shop.run("delete", "orders", "o-9")
    shop.run("watermark", "advance", "--to", "now")
    shop.run("compact", "orders", "--engine", "local")
    shop.run("append", "orders", "-", stdin="id,status\no-0,later\no-1,later\n")
    return shop


@pytest.mark.slow
def test_whoever_wants_the_last_of_each_key_gets_the_ledger_and_then_the_backlog(
    compacted: Shop,
) -> None:
    # when it is read compacted
    done = compacted.invoke("read", "orders", "--compacted", "--columns", "id,status", "--json")
    # then there is the last row of each key below the horizon, and every change after it
    rows = [tuple(json.loads(line).values()) for line in done.stdout.splitlines()]
    last = [(f"o-{n}", "state 4") for n in range(9)]
    assert rows == [*last, ("o-0", "later"), ("o-1", "later")]
    assert (done.exit_code, done.stderr) == (0, "position: 0:53\n")
    # and people get the same
    shown = compacted.run("read", "orders", "--compacted").splitlines()
    assert [line.split()[0] for line in shown[1:]] == [row[0] for row in rows]
    # from any place on
    later = compacted.lines("orders", "--compacted", "--start", "51", "--columns", "id")
    assert later == [{"id": "o-0"}, {"id": "o-1"}]


@pytest.mark.slow
def test_whoever_reads_every_change_is_told_that_earlier_ones_were_compacted(
    compacted: Shop,
) -> None:
    done = compacted.invoke("read", "orders", "--columns", "id", "--json")
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["o-0", "o-1"]
    assert "note: 51 earlier changes were compacted; --compacted has the last" in done.stderr
    # but not who says where to begin, or wants the table as of a time
    for words in (("--start", "latest"), ("--as-of", "now"), ("--compacted",)):
        assert compacted.invoke("read", "orders", *words).stderr == "position: 0:53\n"
    # and who wants what is gone is refused, or gets a note of the gap
    said = compacted.refused("read", "orders", "--start", "3")
    assert "offsets 3 to 50 of partition 0 are" in said
    done = compacted.invoke("read", "orders", "--start", "3", "--on-gap", "skip", "--json")
    assert done.exit_code == 0
    assert "note: offsets 3 to 50 of partition 0 are" in done.stderr


@pytest.mark.slow
def test_who_says_what_is_to_happen_at_a_gap_means_all_changes(compacted: Shop) -> None:
    # when no start is given, and gaps are to be an error, then the first one is
    said = compacted.refused("read", "orders", "--on-gap", "raise")
    assert "offsets 0 to 50 of partition 0 are no longer in the backlog" in said
    # or it is told, once, with what is left
    done = compacted.invoke("read", "orders", "--on-gap", "skip", "--columns", "id", "--json")
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["o-0", "o-1"]
    assert done.exit_code == 0
    said = "note: offsets 0 to 50 of partition 0 are superseded\nposition: 0:53\n"
    assert done.stderr == said
    # and who says where to begin is taken at their word
    done = compacted.invoke("read", "orders", "--start", "earliest", "--on-gap", "raise")
    assert done.stderr == "position: 0:53\n"


@pytest.mark.slow
def test_a_start_at_a_time_whose_rows_were_compacted_is_refused_and_not_passed_over(
    shop: Shop,
) -> None:
    # given two changes, of which the second one replaces the first, compacted and cut
    fill(shop, 1)
    fill(shop, 1)
    first, last = (row["_time"] for row in shop.lines("orders", "--columns", "_time"))
    shop.run("watermark", "advance", "--to", "now")
    shop.run("compact", "orders", "--engine", "local")
    fill(shop, 1, first=7)
    # then a reader from the time of either of them is told, however it reads
    for time, *more in ((first,), (last,), (first, "--follow", "--limit", "1")):
        said = shop.refused("read", "orders", "--start", str(time), *more)
        assert "of partition 0 are no longer in the backlog, which begins at 2" in said
    # and one from behind them gets what came next
    assert [row["id"] for row in shop.lines("orders", "--start", str(last + 1))] == ["o-7"]


@pytest.mark.slow
def test_a_table_that_was_compacted_is_read_from_a_cursor_on(compacted: Shop) -> None:
    compacted.run("cursor", "create", "orders", "search", "--kind", "compacted")
    words = ("orders", "--compacted", "--cursor", "search", "--columns", "id")
    assert len(compacted.lines(*words)) == 11
    compacted.run("cursor", "commit", "orders", "search", "--to", "latest")
    assert compacted.lines(*words) == []
    assert "there is no cursor" in compacted.refused("read", "orders", "--cursor", "nobody")
    for wrong in (
        ("--cursor", "search", "--start", "0"),
        ("--compacted", "--as-of", "now"),
        ("--cursor", "search", "--as-of", "now"),
    ):
        assert compacted.refused("read", "orders", *wrong, code=2)


# -- consuming ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["--json"], ["--all"], ["--csv", "-"], ["--follow", "--limit", "7", "--json"]]
)
def test_a_cursor_follows_what_was_written(shop: Shop, words: list[str]) -> None:
    # given a cursor, and rows for it
    fill(shop, 7)
    shop.run("cursor", "create", "orders", "billing")
    consume = ("read", "orders", "--cursor", "billing", "--commit", "--columns", "id")
    # when they are consumed
    done = shop.invoke(*consume, *words)
    # then they were written, and the cursor stands behind them
    assert done.exit_code == 0, done.output
    assert [f"o-{n}" in done.stdout for n in range(7)] == [True] * 7
    assert done.stderr.endswith("position: 0:7\n")
    [cursor] = shop.json("cursor", "list", "orders")
    assert (cursor["lag_rows"], cursor["position"]) == (0, {"0": 7})
    # and the next one gets what came since, and no more than it asked for
    fill(shop, 3, first=7)
    assert "o-7" in shop.run(*consume, "--limit", "1", "--json")
    assert "o-8" in shop.run(*consume, "--limit", "1", "--json")
    assert [json.loads(line)["id"] for line in shop.run(*consume, "--json").splitlines()] == ["o-9"]
    assert shop.run(*consume, "--json") == ""


def test_people_consume_what_they_were_shown(shop: Shop) -> None:
    fill(shop, 150)
    shop.run("cursor", "create", "orders", "billing")
    done = shop.invoke("read", "orders", "--cursor", "billing", "--commit")
    assert len(done.stdout.splitlines()) == 101
    assert "for more" in done.stderr
    [cursor] = shop.json("cursor", "list", "orders")
    assert cursor["position"] == {"0": 100}


@pytest.mark.slow
def test_without_commit_a_cursor_stays(shop: Shop) -> None:
    fill(shop, 2)
    shop.run("cursor", "create", "orders", "billing")
    shop.run("read", "orders", "--cursor", "billing")
    [cursor] = shop.json("cursor", "list", "orders")
    assert cursor["position"] == {"0": 0}
    assert "--cursor NAME" in shop.refused("read", "orders", "--commit", code=2)


@pytest.mark.slow
def test_rows_that_were_not_written_are_not_consumed(shop: Shop) -> None:
    # given more rows than a pipe takes, and a cursor
    rows = "".join(f"o-{n},{'new' * 100}\n" for n in range(500))
    shop.run("append", "orders", "-", stdin=f"id,status\n{rows}")
    shop.run("cursor", "create", "orders", "billing")
    words = ["read", "orders", "--cursor", "billing", "--commit", "--json"]
    # when whoever takes them goes away after a line
    command = [sys.executable, "-m", "lowmark", *words, "--data", str(shop.data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.close()
            process.wait(60)
        finally:
            process.kill()
    # then the cursor has not moved
    [cursor] = shop.json("cursor", "list", "orders")
    assert cursor["position"] == {"0": 0}


# -- conditions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("status = 'new'", [1, 4]),
        ("amount > 5", [2, 3]),
        ("amount <= 9.50 and not status = 'paid'", [1]),
        ("status in ('paid', 'it''s') or amount is null", [2, 3, 4]),
        ("(status = 'new' or status = 'paid') and amount is not null", [1, 2]),
        ("id <> 'o-1'", [2, 3, 4]),
        ("STATUS NOT IN ('new')", None),
        ("status NOT IN ('new')", [2, 3]),
        ("`status` = 'new' AND \"id\" != 'o-4'", [1]),
        ("_offset >= 2 and _change = 'upsert'", [3, 4]),
        ("amount = -1 or amount = 1e0", [1]),
    ],
)
def test_rows_are_read_by_a_condition(shop: Shop, where: str, left: list[int] | None) -> None:
    rows = "o-1,new,1\no-2,paid,9.50\no-3,it's,12\no-4,new,\n"
    shop.run("append", "orders", "-", stdin=f"id,status,amount\n{rows}")
    if left is None:
        assert "which the table does not have" in shop.refused(
            "read", "orders", "--where", where, code=2
        )
        return
    for more in ((), ("--as-of", "now")):
        found = shop.lines("orders", "--columns", "id", "--where", where, *more)
        assert [row["id"] for row in found] == [f"o-{n}" for n in left]


@pytest.mark.parametrize(
    "where",
    [
        "",
        "status",
        "status =",
        "status = new",
        "status = 'new' and",
        "status = 'new' 'x'",
        "(status = 'new'",
        "status = 'new')",
        "'new' = status",
        "status = 'new",
        "status in ()",
        "amount > 'much'",
        "amount is 5",
        "status = 'new'; drop table orders",
        "not " * 200 + "status = 'new'",
        "__import__('os')",
    ],
)
def test_a_condition_that_is_none_is_refused(shop: Shop, where: str) -> None:
    assert "--where" in shop.refused("read", "orders", "--where", where, code=2)
