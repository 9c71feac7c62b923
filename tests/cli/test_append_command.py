"""`lowmark append`: files of every kind, and those that can't be taken."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.shop import Shop
from eventually import eventually
from lowmark.formatting import counted


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop").with_orders(partitions=2)


def ids(shop: Shop) -> list[str]:
    return sorted(row["id"] for row in shop.lines("orders"))


ROWS = pa.table(
    {"id": ["o-1", "o-2"], "status": ["neu ✓", None], "amount": [Decimal("9.50"), None]}
)


@pytest.mark.slow
def test_a_file_of_every_kind_is_appended(shop: Shop, tmp_path: Path) -> None:
    # given the same rows in five forms
    files = {kind: tmp_path / f"orders.{kind}" for kind in ("csv", "tsv", "jsonl", "parquet")}
    files["csv"].write_text("id,status,amount\no-1,neu ✓,9.50\no-2,,\n")
    files["tsv"].write_text("id\tstatus\tamount\no-1\tneu ✓\t9.50\no-2\t\t\n")
    files["jsonl"].write_text('{"id":"o-1","status":"neu ✓","amount":"9.50"}\n{"id":"o-2"}\n')
    pq.write_table(ROWS, files["parquet"])
    files["arrow"] = tmp_path / "orders.arrow"
    with pa.ipc.new_file(str(files["arrow"]), ROWS.schema) as writer:
        writer.write_table(ROWS)
    wanted = [
        {"id": "o-1", "status": "neu ✓", "amount": "9.50", "_change": "upsert"},
        {"id": "o-2", "status": None, "amount": None, "_change": "upsert"},
    ]
    for kind, path in files.items():
        # when one is appended
        done = shop.json("append", "orders", str(path))
        # then it says how much that was, and the rows are there
        assert (done["rows"], done["complete"]) == (2, True), kind
        assert (done["batches"], done["bytes"]) == (1, path.stat().st_size), kind
        tail = sorted(shop.lines("orders"), key=lambda row: row["id"])
        assert tail[0] == wanted[0], kind
        assert tail[-1] == wanted[1], kind
    assert shop.json("table", "list")[0]["rows"] == 2 * len(files)


@pytest.mark.slow
def test_rows_come_from_stdin_in_any_form(shop: Shop) -> None:
    shop.run("append", "orders", "-", stdin="id\no-1\n")
    shop.run("append", "orders", "-", stdin='{"id": "o-2"}\n')
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS.schema) as writer:
        writer.write_table(ROWS.slice(0, 1))
    shop.run("append", "orders", "-", stdin=sink.getvalue().to_pybytes())
    sink = pa.BufferOutputStream()
    pq.write_table(ROWS.slice(1), sink)
    shop.run("append", "orders", "-", stdin=sink.getvalue().to_pybytes())
    said = shop.run("append", "orders", "-", "--format", "csv", "--delimiter", ";", stdin="id\no-3")
    assert said.startswith("appended 1 row to orders in 1 batch: ")
    assert ids(shop) == ["o-1", "o-1", "o-2", "o-2", "o-3"]


def test_deletes_are_changes_like_others(shop: Shop) -> None:
    shop.run("append", "orders", "-", stdin="id,_change\no-1,upsert\no-2,upsert\no-1,delete\n")
    assert shop.json("explain", "orders", "--key", "o-1")["state"] == "deleted"
    assert shop.json("explain", "orders", "--key", "o-2")["state"] == "live"


def test_a_header_alone_is_no_row(shop: Shop) -> None:
    done = shop.json("append", "orders", "-", stdin="id,status\n")
    assert (done["rows"], done["batches"], done["complete"]) == (0, 0, True)


@pytest.mark.parametrize("words", [("-",), ("-", "--format", "jsonl"), ("empty.parquet",)])
def test_an_empty_file_is_no_row_or_refused_but_never_a_crash(
    shop: Shop, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.parquet").touch()
    done = shop.invoke("append", "orders", *words, stdin="")
    assert done.exit_code in {0, 1}, done.output
    assert ids(shop) == []


def test_a_bad_value_is_named_with_its_line_and_column(shop: Shop, tmp_path: Path) -> None:
    # given a file whose fourth line has an amount that is none
    path = tmp_path / "bad.csv"
    path.write_text('id,status,amount\no-1,"two\nlines",1\no-2,new,9.505\n')
    # when it is appended
    said = shop.refused("append", "orders", str(path))
    # then it says where and what, and nothing was stored
    assert f"{path}, line 4, column amount: '9.505'" in said
    assert "0 rows in 0 batches were stored" in said
    assert ids(shop) == []


@pytest.mark.slow
def test_what_came_before_a_refused_batch_is_stored_and_counted(shop: Shop, tmp_path: Path) -> None:
    # given a file of more than one batch, with something wrong at its end
    path = tmp_path / "many.jsonl"
    status = "x" * 100
    good = [json.dumps({"id": f"o-{n}", "status": status}) for n in range(15_000)]
    path.write_text("\n".join([*good, '{"id": "o-x", "amount": "much"}']) + "\n")
    # when it is appended
    done = shop.invoke("append", "orders", str(path), "--json")
    # then it failed, and both streams say so
    assert done.exit_code == 1
    told, error = json.loads(done.stdout), json.loads(done.stderr)
    assert "line 15001, column amount: 'much'" in error["error"]
    assert told["complete"] is False
    assert 0 < told["rows"] < 15_000
    batches = counted(told["batches"], "batch", "batches")
    assert f"{told['rows']:,} rows in {batches} were stored" in error["detail"]
    # and what it says is what is there: whole batches, and nothing of the last one
    [row] = shop.json("table", "list")
    assert row["rows"] == told["rows"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("id,statsu\no-1,new\n", "Did you mean status?"),
        ("status\nnew\n", "id"),
        ("id,status\no-1\n", "line 2"),
        ("id,id\na,b\n", "twice"),
        ('{"id": 7}\n', "column id"),
        ('{"id": "o-1"\n', "line 1"),
        ("id,status\n\xff,x\n", "line 2"),
    ],
)
def test_what_is_no_row_of_the_table_is_refused_whole(shop: Shop, text: str, why: str) -> None:
    said = shop.refused("append", "orders", "-", stdin=text.encode("latin-1"))
    assert why in said
    assert "stdin" in said
    assert ids(shop) == []


def test_what_can_not_be_read_is_wrong_use(shop: Shop, tmp_path: Path) -> None:
    assert "there is no file" in shop.refused("append", "orders", "nowhere.csv", code=2)
    assert "is a directory" in shop.refused("append", "orders", str(tmp_path), code=2)
    words = ("append", "orders", "-", "--format", "xml")
    assert "parquet, arrow, csv, jsonl" in shop.refused(*words, code=2)
    path = tmp_path / "not.parquet"
    path.write_bytes(b"PAR1 and then nothing")
    assert "can't be read as parquet" in shop.refused("append", "orders", str(path))
    assert "compressed" in shop.refused("append", "orders", "-", stdin=b"\x1f\x8b\x08" + bytes(99))


@pytest.mark.slow
def test_a_uuid_and_bytes_are_written_as_text(shop: Shop) -> None:
    shop.run("table", "create", "blobs", "--columns", "id uuid, data binary", "--key", "id")
    number = uuid.UUID(int=5)
    shop.run("append", "blobs", "-", stdin=f"id,data\n{number},00ff\n")
    assert shop.json("get", "blobs", str(number)) == {"id": str(number), "data": "00ff"}


@pytest.mark.slow
def test_an_interrupt_says_how_much_was_stored(shop: Shop) -> None:
    # given an append that waits for more of its input
    words = ["append", "orders", "-", "--data", str(shop.data), "--format", "jsonl"]
    with subprocess.Popen(
        [sys.executable, "-m", "lowmark", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdin is not None
            row = json.dumps({"id": "o-1", "status": "x" * 1000}) + "\n"
            process.stdin.write((row * 3_000).encode())  # more than a block
            process.stdin.flush()
            eventually(lambda: size_of(shop.data) > 1_000_000)
            # when it is interrupted
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=60)
        finally:
            process.kill()
    # then it ends as an interrupted command does, and what it says is what is there
    assert process.returncode == 130, said
    assert out == b""
    stored, interrupted = said.decode().splitlines()
    assert interrupted == "interrupted"
    [table] = shop.json("table", "list")
    assert stored == f"{table['rows']:,} rows were stored"
    assert table["rows"] > 0


def size_of(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # it was flushed and went
            size += path.stat().st_size
    return size


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_on_a_terminal_a_bar_shows_how_far_it_is(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id\n" + "".join(f"o-{n}\n" for n in range(1000)))
    ours, theirs = os.openpty()
    with open(ours, "rb", buffering=0) as seen:
        words = ["append", "orders", str(path), "--data", str(shop.data)]
        done = subprocess.run(
            [sys.executable, "-m", "lowmark", *words],
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            check=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        )
        os.close(theirs)
        shown = seen.read(100_000)
    # then the bar is on stderr, and the result on stdout
    assert b"rows.csv" in shown
    assert b"rows" in shown
    assert done.stdout.startswith("appended 1,000 rows to orders in 1 batch")
