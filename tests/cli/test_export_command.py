"""`lowmark export`: what it says, and what it refuses. What is in the files is in tests/client."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cli.shop import Shop
from lowmark.client import parse_time


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path / "shop").with_orders(partitions=1)
    shop.run("append", "orders", "-", stdin="id,status\no-1,new\no-2,new\no-3,new\n")
    return shop


def test_it_says_rows_files_bytes_and_the_time(shop: Shop, tmp_path: Path) -> None:
    # when
    said = shop.run("export", "orders", "--to", str(tmp_path / "out"))
    # then
    assert said.startswith("exported 3 rows of orders as of 20")
    assert f"to {tmp_path / 'out'}: 1 file (" in said
    assert pq.read_table(tmp_path / "out").num_rows == 3


@pytest.mark.slow
def test_programs_get_one_object(shop: Shop, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = shop.json("export", "orders", "--to", str(out))
    size = sum(path.stat().st_size for path in out.iterdir())
    assert done == {
        "table": "orders",
        "format": "parquet",
        "to": str(out),
        "as_of": done["as_of"],
        "time": done["time"],
        "rows": 3,
        "files": 1,
        "bytes": size,
        "engine": "local",
        "where": "this process",
        "gaps": [],
    }
    # and its time is the one that a later export, or a read, may name
    assert abs(parse_time(done["as_of"], now=done["time"]) - done["time"]) < 1 << 20
    shop.run("append", "orders", "-", stdin="id,status\no-4,new\n")
    again = shop.json(
        "export", "orders", "--to", str(tmp_path / "again"), "--as-of", str(done["time"])
    )
    assert (again["rows"], again["time"]) == (3, done["time"])


def test_columns_are_chosen_by_name(shop: Shop, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    shop.run("export", "orders", "--to", out, "--columns", "status,_offset")
    assert pq.read_table(out).schema.names == ["status", "_offset"]


@pytest.mark.slow
def test_a_table_that_was_dropped_is_exported_as_of_before(shop: Shop, tmp_path: Path) -> None:
    time = str(shop.lines("orders", "--columns", "_time")[-1]["_time"])
    shop.run("table", "drop", "orders", "--yes")
    done = shop.json("export", "orders", "--to", str(tmp_path / "out"), "--as-of", time)
    assert (done["rows"], done["table"]) == (3, "orders")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "orc"], "--format can't be 'orc'"),
        (["--on-gap", "no"], "--on-gap is raise or skip"),
        (["--columns", ","], "--columns names no column"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_opened(
    words: list[str], said: str, shop: Shop, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert said in shop.refused("export", "orders", "--to", str(out), *words, code=2)
    assert not out.exists()


@pytest.mark.slow
def test_a_directory_with_something_in_it_is_refused_with_a_hint(
    shop: Shop, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shop.run("export", "orders", "--to", str(out))
    before = sorted(path.name for path in out.iterdir())
    said = shop.refused("export", "orders", "--to", str(out), "--json")
    assert json.loads(said)["kind"] == "DestinationRefused"
    said = shop.refused("export", "orders", "--to", str(out))
    assert f"{out} is not empty" in said
    assert "hint: Name a directory that is not there yet" in said
    assert sorted(path.name for path in out.iterdir()) == before


def test_a_destination_has_to_be_named(shop: Shop) -> None:
    assert "--to" in shop.refused("export", "orders", code=2)
