"""`lowmark cursor` and `lowmark watermark`: who holds what, and for how long."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.shop import Shop, shared
from eventually import eventually
from lowmark.cli import cursor
from lowmark.cli.app import app
from lowmark.formatting import bytes_text, times_text


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path / "shop").with_orders()
    shop.run("append", "orders", "-", stdin="id\no-1\no-2\no-3\n")
    return shop


@pytest.mark.slow
def test_a_cursor_lives_from_its_creation_to_its_deletion(shop: Shop) -> None:
    # given a cursor at the beginning
    made = shop.json("cursor", "create", "orders", "billing")
    assert (made["cursor"], made["kind"], made["position"]) == ("billing", "raw", {"0": 0})
    assert made["lag_rows"] == 3
    assert made["pinned_bytes"] > 0
    assert made["overdue"] is False
    # when it moves
    said = shop.run("cursor", "commit", "orders", "billing", "--to", "0:2")
    assert said == "cursor billing of table orders stands at 0:2, 1 row behind\n"
    # then it is there, and goes back only by a reset
    assert "can't move back" in shop.refused(
        "cursor", "commit", "orders", "billing", "--to", "earliest"
    )
    assert shop.json("cursor", "reset", "orders", "billing", "--to", "earliest")["lag_rows"] == 3
    latest = shop.json("cursor", "commit", "orders", "billing", "--to", "latest")
    again = shop.json("cursor", "move", "orders", "billing", "--to", "latest")  # the older name
    assert again["position"] == latest["position"]
    assert (latest["lag_rows"], latest["pinned_bytes"]) == (0, 0)
    # and it is listed until it is deleted
    [row] = shop.json("cursor", "list", "orders")
    assert row["position"] == {"0": 3}
    assert "billing" in shop.run("cursor", "list", "orders")
    assert "billing" in shop.run("table", "show", "orders")
    assert shop.json("cursor", "delete", "orders", "billing")["deleted"] is True
    assert shop.json("cursor", "list", "orders") == []
    assert "there is no cursor" in shop.refused("cursor", "delete", "orders", "billing")


@pytest.mark.slow
def test_a_cursor_may_begin_anywhere(shop: Shop) -> None:
    def position(name: str, start: str) -> object:
        words = ("--start", start, "--kind", "compacted")
        return shop.json("cursor", "create", "orders", name, *words)["position"]

    assert position("a", "latest") == {"0": 3}
    assert position("b", "0:1") == {"0": 1}
    assert position("c", "2") == {"0": 2}
    assert position("d", "2020-01-01") == {"0": 0}
    assert [row["pinned_bytes"] for row in shop.json("cursor", "list", "orders")] == [0, 0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("create", "orders", "x", "--kind", "quick"), 2),
        (("create", "orders", "x", "--start", "somewhere"), 1),
        (("create", "orders", "x", "--start", "0:99"), 1),
        (("create", "orders", "x", "--start", "4:0"), 1),
        (("create", "orders", "x", "--max-lag-rows", "-1"), 2),
        (("create", "orders", "x", "--idle-expiry", "soon"), 1),
        (("create", "orders", "x", "--max-lag-rows", "9" * 30), 2),
        (("create", "orders", "x", "--start", f"0:{'9' * 30}"), 2),
        (("create", "orders", "\udcff"), 2),
        (("create", "orders", ""), 1),
        (("create", "orders", "there"), 1),
        (("commit", "orders", "nobody", "--to", "latest"), 1),
        (("commit", "orders", "there"), 2),
        (("commit", "orders", "there", "--to", "0:99"), 1),
        (("reset", "orders", "nobody", "--to", "earliest"), 1),
    ],
)
def test_a_cursor_that_can_not_be_is_refused(shop: Shop, words: tuple[str, ...], code: int) -> None:
    shop.run("cursor", "create", "orders", "there")
    assert shop.refused("cursor", *words, code=code)
    assert [row["cursor"] for row in shop.json("cursor", "list", "orders")] == ["there"]


@pytest.mark.slow
def test_one_that_falls_too_far_behind_is_overdue_and_warned_of(shop: Shop) -> None:
    # given a cursor that may be two rows behind
    words = ("--start", "latest", "--max-lag-rows", "2", "--max-lag-ms", "600000")
    shop.run("cursor", "create", "orders", "slow", *words)
    # when it is three behind
    shop.run("append", "orders", "-", stdin="id\no-4\no-5\no-6\n")
    # then it holds nothing, and everybody says so
    [row] = shop.json("cursor", "list", "orders")
    assert (row["overdue"], row["pinned_bytes"], row["lag_rows"]) == (True, 0, 3)
    assert (row["max_lag_rows"], row["max_lag_ms"]) == (2, 600_000)
    assert "is overdue" in row["warning"]
    assert "2 rows, 10.0 min" in shop.run("cursor", "list", "orders")
    assert "warning: cursor slow is overdue" in shop.run("table", "show", "orders")
    assert "warning: cursor slow of orders is overdue" in shop.run("status")
    assert "overdue" in shop.refused("cursor", "commit", "orders", "slow", "--to", "latest")
    # until it is reset
    assert shop.json("cursor", "reset", "orders", "slow", "--to", "latest")["overdue"] is False
    assert "warning" not in shop.run("status")


@pytest.mark.slow
def test_one_whose_reader_stays_away_expires_and_says_so(shop: Shop) -> None:
    # given a cursor with an expiry, which `explain` names
    made = shop.json("cursor", "create", "orders", "nightly", "--idle-expiry", "7 days")
    assert (made["idle_expiry_ms"], made["expired"]) == (604_800_000, False)
    assert "7.0 d" in shop.run("cursor", "list", "orders")
    assert "cursor.idle_expiry is 7 days, so it expires in 7.0 d" in shop.run("explain", "orders")
    # and one whose reader is away for longer than it may be
    shop.run("cursor", "create", "orders", "gone", "--idle-expiry", "1 ms")

    def expired() -> bool:
        shop.run("append", "orders", "-", stdin="id\no-4\n")
        rows = {row["cursor"]: row for row in shop.json("cursor", "list", "orders")}
        return bool(rows["gone"]["expired"])

    eventually(expired)  # the time of two calls may be the same millisecond
    # then that one holds nothing, and its reader hears why
    rows = {row["cursor"]: row for row in shop.json("cursor", "list", "orders")}
    assert (rows["gone"]["expired"], rows["gone"]["overdue"], rows["gone"]["pinned_bytes"]) == (
        True,
        True,
        0,
    )
    assert rows["nightly"]["pinned_bytes"] > 0
    said = shop.refused("cursor", "commit", "orders", "gone", "--to", "latest")
    assert "cursor 'gone' expired: it was idle for 1 ms" in said
    assert shop.json("cursor", "reset", "orders", "gone", "--to", "latest")["expired"] is False


def test_how_long_a_reader_may_stay_away_is_set_and_ended_later(shop: Shop) -> None:
    # given a cursor that holds until it is deleted
    shop.run("cursor", "create", "orders", "nightly")

    def renew(time: str) -> str:
        return shop.run("cursor", "renew", "orders", "nightly", "--idle-expiry", time)

    # when it is to expire
    assert renew("36 hours") == (
        "cursor nightly of table orders expires when it is idle for 36 hours; it stands at 0:0,"
        " 3 rows behind\n"
    )
    words = ("cursor", "renew", "orders", "nightly", "--idle-expiry")
    assert shop.json(*words, "7 days")["idle_expiry_ms"] == 604_800_000
    assert "cursor.idle_expiry is 7 days" in shop.run("explain", "orders")
    # when it is not to expire any more
    assert "nightly of table orders never expires; it stands at 0:0" in renew("0 s")
    [row] = shop.json("cursor", "list", "orders")
    assert (row["idle_expiry_ms"], row["lag_rows"]) == (None, 3)
    # and what can't be is refused
    assert "idle_expiry can't be 'soon'" in shop.refused(*words, "soon")
    assert "there is no cursor" in shop.refused(
        "cursor", "renew", "orders", "nobody", "--idle-expiry", "1 day"
    )
    shop.refused("cursor", "renew", "orders", "nightly", code=2)


@pytest.mark.slow
def test_a_cursor_that_lets_rows_wait_is_warned_of(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given two cursors, one of which has seen everything
    shop.run("cursor", "create", "orders", "idle", "--start", "latest")
    shop.run("cursor", "create", "orders", "slow")
    # when much time has passed, as far as the limit goes
    monkeypatch.setattr(cursor, "WAITING_MS_MAX", -1)
    monkeypatch.setattr("lowmark.node.status.WAITING_MS_MAX", -1)
    rows = {row["cursor"]: row["warning"] for row in shop.json("cursor", "list", "orders")}
    # then only the one for which rows wait is named
    assert "has let rows wait for 0.0 hours" in rows["slow"]


# -- the low watermark --------------------------------------------------------------------------


@pytest.mark.slow
def test_how_long_the_past_stays_exact_is_shown_and_altered(shop: Shop) -> None:
    assert shop.json("watermark", "history") == {"history": "10 minutes", "history_ms": 600_000}
    assert "exact for 1 day" in shop.run("watermark", "history", "24 hours")
    assert shop.json("watermark", "history")["history_ms"] == 86_400_000
    assert "length of time" in shop.refused("watermark", "history", "soon")
    # and a directory that no process has open says where the watermark would be by that
    goal_ms = shop.json("status")["watermark"]["goal_ms"]
    assert goal_ms < time.time() * 1_000 - 86_000_000
    # and a table keeps its own past for longer
    shop.run("table", "alter", "orders", "--set", "history=7 days")
    assert "7 days (history)" in shop.json("explain", "orders")["kept_because"]


@pytest.mark.slow
def test_the_watermark_is_shown_and_moved(shop: Shop) -> None:
    found = shop.json("watermark")
    assert found["watermark"] is None
    assert found["holders"] == []
    assert "Nothing holds it." in shop.run("watermark")
    # when it is moved to a time
    moment = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="milliseconds")
    moved = shop.json("watermark", "advance", "--to", moment)
    assert moved["after"] == moved["wanted"] == moment.replace("+00:00", "Z")
    # then it is there, and never goes back
    assert shop.json("watermark")["watermark"] == moved["after"]
    back = shop.json("watermark", "advance", "--to", "2020-01-01")
    assert back["after"] == moved["after"]
    # and without a time it goes where it should be
    assert shop.json("watermark", "advance")["after"] > moved["after"]
    assert "Nothing held it back." in shop.run("watermark", "advance")
    assert "is in the future" in shop.refused("watermark", "advance", "--to", "2999-01-01")
    assert "is not a time" in shop.refused("watermark", "advance", "--to", "noon")


def test_whoever_holds_the_watermark_is_named(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared(shop, monkeypatch) as database:
        # given somebody who reads the table as it was a moment ago
        with database["orders"].read(as_of="now"):
            found = shop.json("watermark")
            [holder] = found["holders"]
            assert "orders" in holder["why"]
            assert holder["holder"] in shop.run("watermark")
            # when the watermark should pass that
            moved = shop.json("watermark", "advance", "--to", "now")
            # then it stops there, and it is said who held it
            assert moved["after"] == holder["time"]
            assert [one["holder"] for one in moved["held_by"]] == [holder["holder"]]
            assert holder["holder"] in shop.run("watermark", "advance", "--to", "now")
        assert shop.json("watermark", "advance", "--to", "now")["held_by"] == []


def test_the_directory_may_be_named_before_advance(shop: Shop) -> None:
    words = ["watermark", "--data", str(shop.data), "--json", "advance"]
    assert json.loads(CliRunner().invoke(app, words).stdout)["held_by"] == []


def test_sizes_and_times_are_for_people() -> None:
    assert [bytes_text(size) for size in (0, 1023, 1024, 3 << 20, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "3.0 MiB",
        "5,120.0 GiB",
    ]
    assert [times_text(ms) for ms in (-1, 500, 90_000, 7_200_000, 172_800_000)] == [
        "0.0 s",
        "0.5 s",
        "1.5 min",
        "2.0 h",
        "2.0 d",
    ]
