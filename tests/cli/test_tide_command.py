"""`lowmark tide`: with letters, as JSON, and as a picture."""

from __future__ import annotations

import json
import re
import struct
import zlib
from pathlib import Path

import pytest

from cli.history import KEYS, ROWS, copied, fill, settle, settled, without
from cli.shop import Shop
from lowmark.cli.tide import tide

TOTALS = {
    "table",
    "at",
    "watermark",
    "watermark_held_by",
    "compacts",
    "kept_because",
    "changes",
    "backlog_rows",
    "backlog_bytes",
    "kept_bytes",
    "ledger_rows",
    "ledger_bytes",
    "ledger_deletes",
}
PARTITION = {
    "partition",
    "start",
    "horizon",
    "watermark",
    "end",
    "expired",
    "backlog_bytes",
    "kept_rows",
    "kept_bytes",
    "next_rows",
    "next_bytes",
    "young_rows",
    "young_bytes",
}
LEDGER = {"manifest", "epoch", "files", "bytes", "rows", "live_rows", "deletes"}
TOTAL_HOLDER = {
    "kind",
    "name",
    "behind_rows",
    "behind_bytes",
    "keeps_rows",
    "keeps_bytes",
    "overdue",
}
HOLDER = TOTAL_HOLDER | {"offset", "why"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop whose history is compacted up to somewhere, with a reader at its beginning."""
    shop = settled(tmp_path_factory.mktemp("made") / "shop")
    shop.run("cursor", "create", "orders", "billing")
    shop.run("cursor", "create", "orders", "search", "--kind", "compacted", "--start", "latest")
    shop.run("compact", "orders", "--engine", "local")
    fill(shop, 600, 600, status="later")
    settle(shop)
    fill(shop, 400, 400, status="young")
    return shop


# -- for programs -------------------------------------------------------------------------------


@pytest.mark.slow
def test_programs_get_every_documented_field_and_no_other(made: Shop) -> None:
    seen = made.json("tide", "orders")
    assert set(seen) == TOTALS | {"partitions", "holders"}
    for one in seen["partitions"]:
        assert set(one) == PARTITION | {"ledger", "holders"}
        assert set(one["ledger"]) == LEDGER
        assert [set(holder) for holder in one["holders"]] == [HOLDER, HOLDER]
    assert [set(holder) for holder in seen["holders"]] == [TOTAL_HOLDER, TOTAL_HOLDER]
    words = set(re.findall(r"\w+", tide.__doc__ or ""))
    assert TOTALS | PARTITION | LEDGER | HOLDER <= words


@pytest.mark.slow
def test_the_numbers_are_those_of_the_history(made: Shop) -> None:
    seen = made.json("tide", "orders")
    assert (seen["table"], seen["compacts"]) == ("orders", True)
    assert (seen["changes"], seen["backlog_rows"]) == (ROWS + 1_000, ROWS + 1_000)
    assert (seen["ledger_rows"], seen["ledger_deletes"]) == (KEYS, 0)
    parts = seen["partitions"]
    for name, count in (("kept_rows", ROWS), ("next_rows", 600), ("young_rows", 400)):
        assert sum(one[name] for one in parts) == count
    for one in parts:
        assert one["start"] <= one["horizon"] <= one["watermark"] <= one["end"]
        assert one["backlog_bytes"] == sum(one[f"{n}_bytes"] for n in ("kept", "next", "young"))
    billing, search = seen["holders"]
    assert (billing["name"], billing["kind"]) == ("billing", "cursor")
    assert (billing["keeps_rows"], billing["keeps_bytes"]) == (ROWS, seen["kept_bytes"])
    assert (search["name"], search["kind"]) == ("search", "compacted cursor")
    assert (search["behind_rows"], search["keeps_bytes"]) == (1_000, 0)


# -- with letters -------------------------------------------------------------------------------


def test_people_get_a_bar_for_each_partition(made: Shop) -> None:
    said = made.run("tide", "orders")
    assert f"table orders: {ROWS + 1_000:,} changes so far" in said
    assert f"{KEYS:,} live rows" in said
    bars = [line for line in said.splitlines() if line.startswith("      ▓")]
    assert len(bars) == 2
    for bar in bars:
        # what is kept, what comes next, and what is too young, in this order
        assert re.fullmatch(r" {6}▓+▒+░+ +backlog [0-9.]+ KiB", bar)
    assert said.count("▲ billing") == 2
    assert said.count("horizon ╵") == 2
    assert max(map(len, said.splitlines())) <= 100
    for word in ("readers and runs in it", "compacted cursor", f"{ROWS + 1_000:,}"):
        assert word in said


@pytest.mark.slow
def test_a_few_rows_fill_the_whole_bar(tmp_path: Path) -> None:
    # given a table of three rows, all of them live
    shop = settled(tmp_path / "shop", partitions=1, rows=3, keys=3)
    shop.run("compact", "orders", "--engine", "local")
    # then the ledger is full from its beginning to its end
    said = shop.run("tide", "orders")
    [bar] = [line for line in said.splitlines() if "ledger 1" in line or "100% live" in line]
    assert re.match(r"    0 █{64} ledger", bar)
    assert "Nothing holds any of it." in said


@pytest.mark.slow
def test_a_table_without_rows_and_one_that_is_not_compacted_are_drawn(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop").with_orders(2)
    assert "table orders: 0 changes so far" in shop.run("tide", "orders")
    assert "low watermark: never moved" in shop.run("tide", "orders")
    shop.run("table", "create", "log", "--columns", "n int64", "--partitions", "1")
    shop.run("append", "log", "-", stdin="n\n1\n2\n")
    said = shop.run("tide", "log")
    assert "Rows are kept for good" in said
    assert "ledger" not in said
    seen = shop.json("tide", "log")
    assert (seen["compacts"], seen["partitions"][0]["ledger"]) == (False, None)
    # and one without a key that was put into a ledger has one
    settle(shop)
    shop.run("compact", "log", "--engine", "local")
    assert shop.json("tide", "log")["compacts"] is True
    assert "cut: only the ledger has it" in shop.run("tide", "log")


# -- as a picture -------------------------------------------------------------------------------


def pixels(data: bytes) -> tuple[int, int, bytes]:
    """Width, height and the lines of a PNG file."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, found = 8, b""
    width = height = 0
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        chunk = data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, height = struct.unpack(">II", chunk[:8])
        elif kind == b"IDAT":
            found += chunk
        at += size + 12
    return width, height, zlib.decompress(found)


@pytest.mark.slow
def test_a_picture_is_drawn(made: Shop, tmp_path: Path) -> None:
    path = tmp_path / "tide.png"
    path.write_text("what was there before")
    said = made.run("tide", "orders", "--png", str(path))
    assert said == f"the tide of orders is in {path}\n"
    # then it is a picture of that size, and something is on it
    width, height, lines = pixels(path.read_bytes())
    assert (width, height) == (1_600, 900)
    assert len(path.read_bytes()) > 20_000
    assert len(set(lines)) > 50
    # and who wants both gets both
    path.unlink()
    assert made.json("tide", "orders", "--png", str(path))["table"] == "orders"
    assert path.exists()


@pytest.mark.slow
def test_a_picture_that_can_not_be_written_is_refused(made: Shop, tmp_path: Path) -> None:
    for bad in (tmp_path, tmp_path / "nowhere" / "tide.png"):
        said = made.refused("tide", "orders", "--png", str(bad))
        assert f"the picture can't be written to {bad}" in said


def test_without_matplotlib_it_is_said_what_to_install(made: Shop, tmp_path: Path) -> None:
    path = tmp_path / "tide.png"
    words = ("tide", "orders", "--data", str(made.data), "--png", str(path))
    done = without("matplotlib", *words)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "a picture needs matplotlib" in done.stderr
    assert "pip install matplotlib" in done.stderr
    assert "Traceback" not in done.stderr
    assert not path.exists()
    # and without a picture it is not needed
    told = json.loads(without("matplotlib", *words[:4], "--json").stdout)
    assert told["table"] == "orders"


# -- what it refuses ----------------------------------------------------------------------------


def test_an_unknown_table_is_refused(made: Shop) -> None:
    assert "Did you mean orders?" in made.refused("tide", "ordrs")
    assert json.loads(made.refused("tide", "ordrs", "--json"))["kind"] == "TableUnknown"


def test_looking_changes_nothing(made: Shop, tmp_path: Path) -> None:
    shop = copied(made, tmp_path / "shop")
    before = shop.json("tide", "orders")
    shop.run("tide", "orders")
    after = shop.json("tide", "orders")
    assert {name: after[name] for name in after if name != "at"} == {
        name: before[name] for name in before if name != "at"
    }
