"""`lowmark ledger`: look at ledgers, check them, make them again, and set a metastore right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.shop import Shop, shared
from eventually import eventually
from inside import backend_of
from lowmark.client import Database
from lowmark.ledger import pointer_key

A_DAY_MS = "86400000"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A table of two partitions, whose rows may all be compacted at once."""
    settings = tmp_path / "settings.toml"
    settings.write_text("[watermark]\navailability_ms = 0\n[ledger]\ngrace_ms = 0\n")
    monkeypatch.setenv("LOWMARK_SETTINGS", str(settings))
    shop = Shop(tmp_path / "shop").with_orders(partitions=2)
    _append(shop, range(40))
    return shop


def _append(shop: Shop, numbers: range) -> None:
    lines = "".join(f"o-{number},new,{number}\n" for number in numbers)
    shop.run("append", "orders", "-", stdin=f"id,status,amount\n{lines}")


def _compact(shop: Shop, *words: str) -> None:
    def old_enough() -> bool:
        shop.run("watermark", "advance")
        plan = shop.json("compact", "orders", "--engine", "local", "--dry-run")
        return not plan["too_young_rows"]

    eventually(old_enough)
    shop.run("compact", "orders", "--engine", "local", *words)


def _shown(shop: Shop, partition: int = 0) -> dict[str, Any]:
    (one,) = shop.json("ledger", "show", "orders", "--partition", str(partition))
    found: dict[str, Any] = one
    return found


def _verified(shop: Shop, *words: str) -> tuple[int, list[dict[str, Any]]]:
    done = shop.invoke("ledger", "verify", "orders", *words, "--json")
    return done.exit_code, json.loads(done.stdout)


def _flip(path: str, at: int = 8) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 1
    Path(path).write_bytes(bytes(data))


# -- show -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_show_says_what_a_ledger_consists_of(shop: Shop) -> None:
    assert "partition 0 has no ledger" in shop.run("ledger", "show", "orders")
    _compact(shop)
    zero, one = shop.json("ledger", "show", "orders")
    assert (zero["partition"], one["partition"], zero["epoch"]) == (0, 1, 1)
    assert zero["live_rows"] + one["live_rows"] == 40
    assert zero["horizon"] == zero["live_rows"]
    assert (zero["problem"], zero["lost"], zero["retired"]) == (None, [], [])
    # and other programs find the files
    assert Path(zero["manifest"]).is_file()
    assert [Path(file["path"]).stat().st_size for file in zero["files"]] == [
        file["bytes"] for file in zero["files"]
    ]
    # and the indexes of keys beside them
    assert [Path(file["keys_path"]).stat().st_size for file in zero["files"]] == [
        file["keys_bytes"] for file in zero["files"]
    ]
    shown = shop.run("ledger", "show", "orders", "--partition", "1")
    assert one["manifest"] in shown
    assert zero["manifest"] not in shown


@pytest.mark.slow
def test_show_names_a_manifest_that_can_not_be_read(shop: Shop) -> None:
    _compact(shop)
    Path(_shown(shop)["manifest"]).unlink()
    assert "is missing" in _shown(shop)["problem"]
    assert "is missing" in shop.run("ledger", "show", "orders")


@pytest.mark.slow
def test_there_is_no_ledger_of_a_partition_or_a_table_that_is_not_there(shop: Shop) -> None:
    for command in ("show", "verify", "rebuild"):
        assert "no partition 2" in shop.refused("ledger", command, "orders", "--partition", "2")
    for command in ("show", "verify", "rebuild", "reconcile", "sweep"):
        assert "there is no table" in shop.refused("ledger", command, "ordres")


@pytest.mark.parametrize("command", ["show", "verify", "rebuild", "reconcile", "sweep"])
def test_every_command_shows_an_example_and_what_json_has(shop: Shop, command: str) -> None:
    shown = " ".join(shop.run("ledger", command, "--help").split())
    assert f"Example: lowmark ledger {command} orders" in shown
    assert "With --json" in shown


# -- verify ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_verify_reads_everything_and_says_that_it_is_sound(shop: Shop) -> None:
    assert _verified(shop)[0] == 0
    assert "there is no ledger" in shop.run("ledger", "verify", "orders")
    _compact(shop)
    code, found = _verified(shop)
    assert (code, [one["sound"] for one in found]) == (0, [True, True])
    assert sum(one["live_rows"] for one in found) == 40
    assert "2 ledgers: every byte is as it was written" in shop.run("ledger", "verify", "orders")


@pytest.mark.slow
def test_verify_fails_and_names_the_file(shop: Shop) -> None:
    _compact(shop)
    path = _shown(shop)["files"][0]["path"]
    _flip(path)
    code, found = _verified(shop)
    assert (code, [one["sound"] for one in found]) == (1, [False, True])
    (problem,) = found[0]["problems"]
    assert (problem["path"], problem["what"], problem["missing"]) == (path, "rows", False)
    assert "checksum" in problem["why"]
    done = shop.invoke("ledger", "verify", "orders")
    assert done.exit_code == 1
    assert path in done.stdout
    assert "1 ledger of 2 can't be trusted: missing or damaged" in done.stdout
    # and the other partition alone is fine
    assert _verified(shop, "--partition", "1")[0] == 0


# -- rebuild --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rebuild_makes_a_damaged_ledger_again_from_the_backlog(shop: Shop) -> None:
    _compact(shop, "--no-trim")
    rows = sorted(row["id"] for row in shop.lines("orders", "--as-of", "now"))
    Path(_shown(shop)["manifest"]).unlink()
    assert "lowmark ledger rebuild" in shop.refused("read", "orders", "--as-of", "now")
    # a dry run says what would be done, and does nothing
    zero, one = shop.json("ledger", "rebuild", "orders", "--dry-run")
    assert (zero["source"], zero["low"], zero["epoch"]) == ("backlog", 0, None)
    assert one["source"] == "sound"
    assert "would be rebuilt" in shop.run("ledger", "rebuild", "orders", "--dry-run")
    assert _verified(shop)[0] == 1
    # and without it, it is done
    zero, one = shop.json("ledger", "rebuild", "orders")
    assert (zero["source"], zero["epoch"], zero["same"]) == ("backlog", 2, True)
    assert (one["source"], one["epoch"]) == ("sound", 1)
    assert _verified(shop)[0] == 0
    assert sorted(row["id"] for row in shop.lines("orders", "--as-of", "now")) == rows
    assert "nothing to do for orders" in shop.run("ledger", "rebuild", "orders")
    # and the run is noted like any other
    assert shop.json("runs", "orders")[0]["trigger"] == "a ledger is missing or damaged"


@pytest.mark.slow
def test_rebuild_refuses_to_lose_rows_unless_that_is_accepted(shop: Shop) -> None:
    _compact(shop)
    file = _shown(shop)["files"][0]
    Path(file["path"]).unlink()
    said = shop.refused("ledger", "rebuild", "orders")
    words = f"up to {file['live_rows']} rows at offsets {file['first']} to {file['last']}"
    assert words in said
    assert file["path"] in said
    assert "--accept-loss" in said
    assert "would lose" in shop.run("ledger", "rebuild", "orders", "--dry-run")
    assert _verified(shop)[0] == 1
    # when it is accepted
    shown = shop.run("ledger", "rebuild", "orders", "--accept-loss")
    assert f"partition 0 has lost {words}" in shown
    # then the ledger is sound, and says what it lacks
    code, found = _verified(shop)
    assert code == 0
    lost = {"first": file["first"], "last": file["last"], "rows": file["live_rows"]}
    assert found[0]["lost"] == _shown(shop)["lost"] == [lost | {"stale": False}]
    assert words in shop.run("ledger", "show", "orders")
    assert "was rebuilt without" in shop.run("ledger", "verify", "orders")
    # and readers are told
    assert "are lost" in shop.refused("read", "orders", "--as-of", "now")


# -- reconcile ------------------------------------------------------------------------------------


def _put_back(database: Database, table: int, pointer: bytes) -> None:
    """What a backup of the metastore has."""
    embedded = backend_of(database)
    metastore = embedded.node.cluster.metastore
    embedded.ask(lambda: metastore.put(pointer_key(table, 0), pointer))


@pytest.mark.slow
def test_reconcile_sets_a_metastore_that_is_behind(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOWMARK_LEDGER_GRACE_MS", A_DAY_MS)
    _compact(shop)
    with shared(shop, monkeypatch) as database:
        records = database.table("orders")._compactor.records
        table = database.table("orders").descriptor.id
        older = records.pointer(table, 0).pointer
        assert "nothing to do for orders" in shop.run("ledger", "reconcile", "orders")
        _append(shop, range(40, 60))
        _compact(shop)
        adopted = _shown(shop)["epoch"]
        # when a backup is restored, then compaction says what to do
        _put_back(database, table, msgspec.json.encode(older))
        _append(shop, range(60, 80))
        assert "lowmark ledger reconcile" in shop.refused("compact", "orders", "--engine", "local")
        # when that is done, then it tells what it changed, and compaction goes on
        zero, one = shop.json("ledger", "reconcile", "orders")
        assert (zero["state"], zero["before_epoch"], zero["after_epoch"]) == ("changed", 1, adopted)
        assert one["state"] == "same"
        _compact(shop)
        assert _shown(shop)["epoch"] == adopted + 1
        # and it is refused while nobody can read what was adopted
        _put_back(database, table, msgspec.json.encode(older))
        Path(_shown(shop)["manifest"]).unlink()
        assert "lowmark ledger rebuild" in shop.refused("ledger", "reconcile", "orders")


# -- sweep ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sweep_lists_what_nobody_names_and_removes_it(shop: Shop) -> None:
    _compact(shop)
    assert shop.run("ledger", "sweep", "orders") == "nothing to remove\n"
    left = Path(_shown(shop)["manifest"]).with_name("left behind.parquet")
    left.write_bytes(b"nobody names this")
    found = shop.json("ledger", "sweep", "orders", "--dry-run")
    assert (found["table"], found["dry_run"]) == ("orders", True)
    assert [Path(path).name for path in found["files"]] == [left.name]
    assert "1 file would be removed" in shop.run("ledger", "sweep", "orders", "--dry-run")
    assert left.exists()
    shown = shop.run("ledger", "sweep", "orders")
    assert left.name in shown
    assert "1 file was removed" in shown
    assert not left.exists()
    assert shop.json("ledger", "sweep", "orders")["files"] == []
    assert _verified(shop)[0] == 0
