"""`lowmark get`, `delete` and `explain`: rows by their keys, and what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path / "shop").with_orders(partitions=2)
    shop.run("append", "orders", "-", stdin="id,status,amount\no-1,new,9.5\no-2,ünï,\n-5,odd,1\n")
    return shop


@pytest.mark.slow
def test_a_row_is_found_by_its_key(shop: Shop) -> None:
    assert shop.json("get", "orders", "o-1") == {"id": "o-1", "status": "new", "amount": "9.50"}
    shown = shop.run("get", "orders", "o-2")
    assert [line.split() for line in shown.splitlines()] == [
        ["id", "o-2"],
        ["status", "ünï"],
        ["amount", "-"],
    ]
    # and one that looks like an option stands behind two dashes
    assert "odd" in shop.run("get", "orders", "--", "-5")


@pytest.mark.slow
def test_what_is_not_there_is_told_apart_from_what_was_deleted(shop: Shop) -> None:
    shop.run("delete", "orders", "o-1")
    for key, word in (("o-1", "o-1 was deleted from orders at 20"), ("o-9", "o-9 is unknown in")):
        done = shop.invoke("get", "orders", key)
        assert (done.exit_code, done.stderr) == (1, "")
        assert done.stdout.startswith(word)
        done = shop.invoke("get", "orders", key, "--json")
        assert (done.exit_code, json.loads(done.stdout)) == (1, None)
        assert done.stderr.startswith(word)


@pytest.mark.slow
def test_keys_of_several_columns_are_several_arguments(shop: Shop) -> None:
    words = ("--columns", "order string, line int32, n int64", "--key", "order,line")
    shop.run("table", "create", "lines", *words)
    shop.run("append", "lines", "-", stdin="order,line,n\na,1,10\na,2,20\nb,1,30\n")
    assert shop.json("get", "lines", "a", "2")["n"] == 20
    said = shop.refused("get", "lines", "a", code=2)
    assert "(order, line): that is 2 values, not 1" in said
    assert "line" in shop.refused("get", "lines", "a", "x")
    # and several keys are deleted one behind the other
    assert shop.json("delete", "lines", "a", "1", "b", "1") == {"table": "lines", "deletes": 2}
    assert shop.invoke("get", "lines", "b", "1").exit_code == 1
    assert shop.json("get", "lines", "a", "2")["n"] == 20
    assert shop.refused("delete", "lines", "a", "1", "b", code=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "key", "bad"),
    [
        ("int64", "7", "seven"),
        ("int8", "-1", "300"),
        ("decimal(10,2)", "1.50", "1.505"),
        ("date", "2026-07-01", "July"),
        ("timestamp", "2026-07-01T12:00:00Z", "noon"),
        ("uuid", "00000000-0000-0000-0000-000000000007", "7"),
        ("binary", "00ff", "0"),
        ("string", "größe, ✓", None),
    ],
)
def test_a_key_is_read_as_its_column_says(shop: Shop, kind: str, key: str, bad: str | None) -> None:
    shop.run("table", "create", "t", "--columns", f"k {kind}, v string", "--key", "k")
    shop.run("append", "t", "-", stdin=f'k,v\n"{key}",here\n')
    found = json.loads(shop.run("get", "t", "--json", "--", key))
    assert found == {"k": int(key) if kind.startswith("int") else key, "v": "here"}
    if bad is not None:
        said = shop.refused("get", "t", bad)
        assert f"{bad!r} can't be a value of key column k" in said
        assert kind in said
    shop.run("delete", "t", "--", key)
    assert shop.invoke("get", "t", "--", key).exit_code == 1


@pytest.mark.slow
def test_keys_come_from_a_file(shop: Shop, tmp_path: Path) -> None:
    # given the keys of a table, as a read writes them
    path = tmp_path / "keys.csv"
    shop.run("read", "orders", "--columns", "id,_offset", "--csv", str(path))
    # when they are deleted
    assert shop.json("delete", "orders", "--keys-from", str(path))["deletes"] == 3
    # then there is nothing left
    assert shop.lines("orders", "--as-of", "now") == []
    # and stdin will do, too
    assert "deleted 1 key" in shop.run("delete", "orders", "--keys-from", "-", stdin="id\no-1\n")


@pytest.mark.slow
def test_a_file_with_a_bad_key_deletes_nothing(shop: Shop, tmp_path: Path) -> None:
    words = ("delete", "orders", "--keys-from")
    assert "line 4" in shop.refused(*words, "-", stdin="id\no-1\n\no-2,o-3\n")
    assert shop.refused(*words, "-", stdin="id,status\no-1,new\n")
    assert shop.refused(*words, str(tmp_path / "nowhere"), code=2)
    assert shop.refused("delete", "orders", code=2)
    assert shop.json("delete", "orders", "--keys-from", "-", stdin="id\n")["deletes"] == 0
    assert len(shop.lines("orders", "--as-of", "now")) == 3


@pytest.mark.slow
@pytest.mark.parametrize("words", [("get", "log", "1"), ("delete", "log", "1")])
def test_a_table_without_a_key_has_none_to_ask_for(shop: Shop, words: tuple[str, ...]) -> None:
    shop.run("table", "create", "log", "--columns", "line string")
    assert "table log has no key" in shop.refused(*words)
    assert "table log has no key" in shop.refused("explain", "log", "--key", "1")


@pytest.mark.slow
def test_explain_says_what_is_kept_and_for_whom(shop: Shop) -> None:
    shop.run("cursor", "create", "orders", "billing")
    found = shop.json("explain", "orders")
    assert (found["table"], found["rows"]) == ("orders", 3)
    assert {one["name"] for one in found["holders"]} == {"billing"}
    assert sum(one["keeps_bytes"] for one in found["holders"]) == found["bytes"]
    assert found["kept_because"]
    shown = shop.run("explain", "orders")
    assert "billing" in shown
    assert found["kept_because"] in shown


@pytest.mark.slow
def test_explain_says_what_became_of_a_key(shop: Shop) -> None:
    found = shop.json("explain", "orders", "--key", "o-1")
    assert (found["key"], found["state"]) == ({"id": "o-1"}, "live")
    assert found["row"]["amount"] == "9.50"
    shop.run("delete", "orders", "o-1")
    found = shop.json("explain", "orders", "--key", "o-1")
    assert (found["state"], found["row"]) == ("deleted", None)
    assert found["offset"] is not None
    assert shop.json("explain", "orders", "--key", "o-9")["state"] == "unknown"
    assert "deleted" in shop.run("explain", "orders", "--key", "o-1")
    assert "never written" in shop.run("explain", "orders", "--key", "o-9")
