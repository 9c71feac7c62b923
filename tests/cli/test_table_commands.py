"""`lowmark table`: create, list, show, alter, drop; and which directories are taken."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import lowmark
from cli.shop import ORDERS, Shop
from eventually import eventually
from lowmark.catalog.describing import column_text
from lowmark.cli.app import app
from lowmark.cli.session import WrongUse
from lowmark.cli.table import parse_columns
from lowmark.errors import Rejected


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop")


def columns_of(shop: Shop, table: str) -> dict[str, str]:
    return {one["name"]: one["type"] for one in shop.json("table", "show", table)["columns"]}


# -- creating -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_table_is_made_with_its_directory_and_shown(shop: Shop) -> None:
    # when a table is created in a directory that is not there
    words = ("--columns", ORDERS, "--key", "id", "--partitions", "2", "--option", "compression=lz4")
    said = shop.run("table", "create", "orders", *words)
    # then it says what it made
    assert said == "created table orders: 3 columns, key id, 2 partitions\n"
    # and others show it
    [row] = shop.json("table", "list")
    assert row["table"] == "orders"
    assert (row["key"], row["columns"], row["partitions"], row["rows"]) == ("id", 3, 2, 0)
    found = shop.json("table", "show", "orders")
    assert found["columns"][0] == {
        "name": "id",
        "type": "string",
        "required": True,
        "default": None,
    }
    assert {"name": "compression", "value": "lz4", "set": True} in found["options"]
    assert [one["partition"] for one in found["partitions"]] == [0, 1]
    assert found["schema_version"] == 1
    for word in ("decimal(12,2)", "partitions", "compression", "lz4"):
        assert word in shop.run("table", "show", "orders")


def test_a_table_that_is_there_is_refused_or_fine_if_that_is_said(shop: Shop) -> None:
    shop.with_orders()
    assert "orders" in shop.refused("table", "create", "orders", "--columns", ORDERS)
    again = ("table", "create", "orders", "--columns", ORDERS, "--if-not-exists")
    assert shop.json(*again)["created"] is False
    assert shop.run(*again) == "nothing to do: there is a table orders\n"


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream", "json"])
def test_columns_are_taken_from_a_file(shop: Shop, tmp_path: Path, kind: str) -> None:
    # given a file with columns, as a read wrote it
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("größe", pa.list_(pa.float64())),
            pa.field("_change", pa.dictionary(pa.int8(), pa.string())),
        ]
    )
    path = tmp_path / f"rows.{kind}"
    match kind:
        case "parquet":
            pq.write_table(schema.empty_table(), path)
        case "arrow":
            pa.ipc.new_file(str(path), schema).close()
        case "stream":
            pa.ipc.new_stream(str(path), schema).close()
        case _:
            path.write_text('{"id": "int64 not null", "größe": "list<float64>"}')
    # when a table is made of it
    shop.run("table", "create", "t", "--schema", str(path), "--key", "id")
    # then it has the columns, without those of the system
    assert columns_of(shop, "t") == {"id": "int64", "größe": "list<float64>"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--columns", "id strnig"), "there is no type strnig"),
        (("--columns", "id bigint, size strnig"), "column size: "),
        (("--columns", "id"), "is not a column with its type"),
        (("--columns", ""), "is not a column with its type"),
        (("--columns", "id string, id string"), "id"),
        (("--columns", "id string, _offset int64"), "_offset"),
        (("--columns", "id string, price float64", "--key", "price"), "price"),
        (("--columns", "id string", "--key", "nope"), "there is no such column"),
        (("--columns", "n int8 default 300"), "out of range"),
        (("--columns", "s string default 'open"), "a quote is not closed"),
        (("--columns", "id string", "--option", "compression"), "name=value"),
        (("--columns", "id string", "--option", "compression=fast"), "none | lz4 | zstd"),
        (("--columns", "id string", "--option", "colour=red"), "there is no table option"),
        (("--columns", "id string", "--partitions", "0"), "partitions"),
        ((), "either --columns or --schema"),
        (("--schema", "nowhere.parquet"), "there is no file"),
    ],
)
def test_what_can_not_be_a_table_is_wrong_use_and_leaves_no_directory(
    shop: Shop, words: tuple[str, ...], why: str
) -> None:
    assert why in shop.refused("table", "create", "t", *words, code=2)
    assert not shop.data.exists()


@pytest.mark.parametrize("content", [b"PAR1 no", b"no", b"[1]", b'{"a": 1}', b"{}", b"{"])
def test_a_file_that_holds_no_columns_is_refused(
    shop: Shop, tmp_path: Path, content: bytes
) -> None:
    ending = "json" if content[:1] in b"{[" else "parquet"
    path = tmp_path / f"columns.{ending}"
    path.write_bytes(content)
    said = shop.refused("table", "create", "t", "--schema", str(path), code=2)
    assert "Traceback" not in said
    assert str(path) in said


@pytest.mark.parametrize(
    "text",
    [
        "id string not null",
        "price decimal(10,2) default 0.00",
        "n int64 not null default 7",
        "m map<string, float64>",
        "s struct<a: int64, b: string not null>",
        "`two words` string",
        "größe float64",
        "at timestamp default 2026-07-01T12:00:00+00:00",
    ],
)
def test_a_column_in_words_is_read_as_it_is_shown(text: str) -> None:
    [column] = parse_columns(text)
    assert column_text(column.with_id(1)) == text.replace("`", "")


def test_words_in_quotes_are_only_words() -> None:
    first, second, third = parse_columns(
        "a string default 'it''s, not null', b STRING NOT NULL Default x, c int8 default 1 not null"
    )
    assert (first.default, first.required) == ("it's, not null", False)
    assert (second.default, second.required) == ("x", True)
    assert (third.default, third.required) == (1, True)
    with pytest.raises((WrongUse, Rejected)):
        parse_columns("a string,, b string")


# -- changing -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_changes_of_a_table_make_one_version(shop: Shop) -> None:
    # given a table with a row
    shop.run("table", "create", "t", "--columns", "id int64, n int32, old string, s string")
    shop.run("append", "t", "-", stdin="id,n,old,s\n1,2,x,y\n")
    before = shop.json("table", "alter", "t", "--set", "compression=zstd")
    # when everything is changed at once
    words = ("--add", "note string not null default 'a, b'", "--drop", "old", "--rename", "s=text")
    more = ("--widen", "n=int64", "--set", "retention_ms=60000", "--unset", "compression")
    after = shop.json("table", "alter", "t", *words, *more)
    # then there is one more version of the catalog, and the row is read as it says
    assert after["version"] == before["version"] + 1
    assert after["changes"]
    assert shop.lines("t") == [{"id": 1, "n": 2, "text": "y", "note": "a, b"}]
    options = {one["name"]: one for one in shop.json("table", "show", "t")["options"]}
    assert options["retention_ms"]["value"] == "60000"
    assert options["compression"]["set"] is False
    # and the same once more has nothing to do
    assert "nothing to do" in shop.run("table", "alter", "t", "--set", "retention_ms=60000")


def test_a_name_that_was_dropped_or_given_away_can_be_used_at_once(shop: Shop) -> None:
    shop.run("table", "create", "t", "--columns", "a string, b string, c string")
    words = ("--drop", "a", "--rename", "b=a", "--add", "b int64")
    shop.run("table", "alter", "t", *words)
    assert columns_of(shop, "t") == {"a": "string", "c": "string", "b": "int64"}


def test_if_one_change_is_refused_nothing_is_changed(shop: Shop) -> None:
    shop.with_orders()
    said = shop.refused("table", "alter", "orders", "--add", "note string", "--drop", "id")
    assert "it is in the key" in said
    assert columns_of(shop, "orders").keys() == {"id", "status", "amount"}
    said = shop.refused("table", "alter", "orders", "--widen", "status=int64")
    assert "can't become int64" in said


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--add", "note"),
        ("--widen", "amount"),
        ("--rename", "a=b", "--rename", "a=c"),
        ("--set", "compression=lz4", "--unset", "compression"),
        ("--unset", "colour"),
        ("--add", "note string not null"),
    ],
)
def test_what_can_not_be_a_change_is_wrong_use(shop: Shop, words: tuple[str, ...]) -> None:
    shop.with_orders()
    assert shop.refused("table", "alter", "orders", *words, code=2)


@pytest.mark.slow
def test_a_table_is_dropped_only_if_that_is_meant(shop: Shop) -> None:
    shop.with_orders()
    shop.run("append", "orders", "-", stdin="id,status\no-1,new\n")
    # when nobody can be asked
    assert "--yes" in shop.refused("table", "drop", "orders", code=2)
    [row] = shop.json("table", "list")
    assert row["rows"] == 1
    # and when it is said
    assert shop.json("table", "drop", "orders", "--yes") == {"table": "orders", "dropped": True}
    # then it is gone
    assert shop.json("table", "list") == []
    assert "there is no table orders" in shop.refused("table", "drop", "orders", "--yes")
    assert "nothing to do" in shop.run("table", "drop", "orders", "--yes", "--if-exists")


# -- directories --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("table", "show", "ordrs"),
        ("table", "alter", "ordrs", "--add", "x string"),
        ("table", "drop", "ordrs", "--yes"),
        ("append", "ordrs", "-"),
        ("read", "ordrs"),
        ("get", "ordrs", "o-1"),
        ("delete", "ordrs", "o-1"),
        ("cursor", "list", "ordrs"),
        ("explain", "ordrs"),
    ],
)
def test_of_an_unknown_table_it_says_which_one_was_probably_meant(
    shop: Shop, words: tuple[str, ...]
) -> None:
    shop.with_orders()
    said = shop.refused(*words, stdin="id\n1\n")
    assert "there is no table ordrs" in said
    assert "Did you mean orders?" in said
    told = json.loads(shop.refused(*words, "--json", stdin="id\n1\n").splitlines()[-1])
    assert told["kind"] == "TableUnknown"


def test_a_directory_that_is_open_elsewhere_is_read_through_its_owner(shop: Shop) -> None:
    shop.with_orders()
    with lowmark.open(shop.data) as owner:
        assert shop.lines("orders") == []
        owner["orders"].append([{"id": "o-1"}])
        assert len(shop.lines("orders")) == 1


def test_only_creating_a_table_makes_a_directory(shop: Shop, tmp_path: Path) -> None:
    assert "there is no directory" in shop.refused("table", "list", code=2)
    assert "there is no directory" in shop.refused("read", "orders", code=2)
    assert not shop.data.exists()
    shop.data.mkdir()
    (shop.data / "notes.txt").write_text("mine")
    assert "is not a data directory" in shop.refused("append", "t", "-", code=2)
    assert [path.name for path in shop.data.iterdir()] == ["notes.txt"]
    # Not even creating a table makes a database among files of others.
    said = shop.refused("table", "create", "t", "--columns", "id int64", code=2)
    assert "is not a data directory of Lowmark" in said
    assert "notes.txt" in said
    assert [path.name for path in shop.data.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("given", ["127.0.0.1:7570", "lowmark://n1", "s3://bucket/shop"])
def test_an_address_is_no_directory_for_a_command(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    create = ["table", "create", "t", "--columns", "id int64"]
    for words in (["table", "list"], ["read", "t"], create):
        done = CliRunner().invoke(app, [*words, "--data", given])
        assert done.exit_code == 2, done.output
        assert given in done.stderr
        assert "hint: " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_tilde_in_an_option_is_the_home_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    create = ["table", "create", "t", "--columns", "id int64", "--data=~/shop"]
    done = CliRunner().invoke(app, create)
    assert done.exit_code == 0, done.output
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]


def test_the_directory_may_be_named_by_the_environment(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.with_orders()
    monkeypatch.delenv("LOWMARK_DATA", raising=False)
    nowhere = CliRunner().invoke(app, ["table", "list"])
    assert (nowhere.exit_code, nowhere.stdout) == (2, "")
    assert "LOWMARK_DATA" in nowhere.stderr
    monkeypatch.setenv("LOWMARK_DATA", str(shop.data))
    assert "orders" in CliRunner().invoke(app, ["table", "list"]).stdout
    assert CliRunner().invoke(app, ["table", "list", "--data", ""]).exit_code == 2


# -- schema versions ------------------------------------------------------------------------------


@pytest.mark.slow
def test_schemas_says_what_needs_versions_and_forgets_the_others(shop: Shop) -> None:
    # given a table that was altered, and whose history is ten minutes
    shop.with_orders()
    shop.run("table", "alter", "orders", "--add", "note string")
    # then writers may still use the first version, and the command says so
    assert shop.json("table", "schemas", "orders") == {
        "table": "orders",
        "trim": False,
        "first": 1,
        "keep_from": 1,
        "latest": 2,
        "held_by": [{"version": 1, "holder": "the low watermark: it was in force then"}],
    }
    shown = shop.run("table", "schemas", "orders", "--trim")
    assert shown.splitlines() == [
        "version 1 is needed by the low watermark: it was in force then",
        "nothing to forget: there are versions 1 to 2",
    ]
    # when history is over
    shop.run("watermark", "history", "0 seconds")

    def passed() -> bool:
        shop.run("watermark", "advance")
        found = shop.json("table", "schemas", "orders")
        return bool(found["keep_from"] == 2)

    eventually(passed)
    # then it goes
    assert shop.run("table", "schemas", "orders") == "1 schema version may be forgotten\n"
    told = shop.run("table", "schemas", "orders", "--trim")
    assert told == "1 schema version was forgotten\n"
    assert shop.json("table", "show", "orders")["oldest_schema_version"] == 2
