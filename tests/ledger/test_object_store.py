"""Ledgers in an object store: the same runs, readers, sweeps and proofs, over S3's protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lowmark
from clusters.processes import Children
from compaction.world import World
from ledger.stores import BUCKET, KEY, SECRET, RealStore, location, mock_store, with_real_store
from lowmark.cli.app import app
from lowmark.errors import LedgersUnseen, Rejected, Unavailable
from lowmark.ledger.claim import check_claim
from lowmark.node import Settings
from lowmark.node.settings import LedgerSettings
from lowmark.runtime import DiskFailed, FileMissing
from lowmark.runtime.store import Store

SECRETS = (KEY, SECRET)


@pytest.fixture(scope="module", params=["mock", pytest.param("real", marks=with_real_store)])
def endpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        # given to Arrow as a user would
        environment.setenv("AWS_ACCESS_KEY_ID", KEY)
        environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        if request.param == "mock":
            yield stack.enter_context(mock_store())
        else:
            folder = tmp_path_factory.mktemp("store")
            yield RealStore(stack.enter_context(Children(folder)), folder / "data").endpoint


class FarWorld(World):
    """A world whose ledgers are in an object store."""

    def __init__(self, path: Path, location: str) -> None:
        self.store = Store(location)
        super().__init__(path)

    @property
    def settings(self) -> Settings:
        place = LedgerSettings(location=self.store.location, grace_ms=0)
        return replace(super().settings, ledger=place)

    def files(self, ending: str = "") -> set[str]:
        found = {one.path for one in self.store.files("") if one.path.endswith(ending)}
        return found - {"database"}


@pytest.mark.slow
def test_a_table_lives_with_its_ledgers_in_an_object_store(tmp_path: Path, endpoint: str) -> None:
    with FarWorld(tmp_path / "data", location(endpoint, "shop")) as world:
        # when it is compacted again and again, rows and deletes
        for turn in range(2):
            world.write(*[(f"k{number}", turn) for number in range(30)])
            world.write(*[(f"k{number}", None) for number in range(turn, 30, 5)])
            run = world.compact(verify=True)
            assert run.rows_live == len(world.model)
            # then every reader finds what it should, and nothing is left but what is needed
            world.check()
            world.check_tidy()
        assert not (world.path / "ledgers").exists()
        assert [verdict.problems for verdict in world.table.verify_ledgers()] == [()]
        # and a run that was interrupted is resumed from what is there
        world.write(("k1", 9), ("new", 1))
        stopped = world.stopped_before("publish partition 0")
        assert world.table.compact(resume=stopped.run).state == "done"
        world.check()
        # and a file that is lost is missed by name, and made again
        (lost, *_) = [one for one in world.needed() if one.endswith(".keys")]
        world.store.delete(lost)
        assert any(verdict.problems for verdict in world.table.verify_ledgers())
        world.table.rebuild_ledger()
        world.check()
        # and all of it is there when it is opened again
        world.reopen()
        world.check()


@pytest.mark.slow
def test_a_store_that_answers_and_lacks_the_ledgers_is_told_from_one_that_does_not(
    endpoint: str,
) -> None:
    store = Store(location(endpoint, "empty"))
    with pytest.raises(FileMissing):
        store.read("database")
    with pytest.raises(LedgersUnseen, match="empty"):
        check_claim(store, "ours")
    # and a path in it is a path in its URL, before what the URL asks for
    assert store.url("a/b").startswith(f"s3://{BUCKET}/empty/a/b?endpoint_override=")
    # when the bucket is not there
    nowhere = Store(location(endpoint, "x").replace(BUCKET, "no-such-bucket"))
    with pytest.raises((DiskFailed, FileMissing)):
        nowhere.write("one", b"1")


def with_credentials(endpoint: str, folder: str) -> Settings:
    """What an earlier release took for a location, and put into the metastore."""
    place = LedgerSettings()
    object.__setattr__(place, "location", location(endpoint, folder, f"{KEY}:{SECRET}@"))
    return Settings(ledger=place)


@pytest.mark.slow
def test_credentials_that_a_database_has_are_shown_nowhere_and_can_be_taken_out(
    tmp_path: Path, endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, shown = str(tmp_path / "data"), location(endpoint, "keys")

    def run(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*words, "--data", data])
        assert done.exit_code == code, done.output
        assert not any(secret in done.output for secret in SECRETS)
        return done.output

    # given a database whose location has credentials in it
    with lowmark.open(data, settings=with_credentials(endpoint, "keys")) as db:
        table = db.create_table("t", {"id": "int64"}, key="id", partitions=1)
        table.append([{"id": 1}])
        db.advance_watermark("now")
        table.compact(engine="local")
        assert db.ledger_location == shown
    # when commands show all that they can, then credentials are nowhere in it
    run("meta", "range")
    run("meta", "range", "--json")
    run("ledger", "show", "t")
    run("status", "--json")
    assert run("ledger", "location").strip() == shown
    # and an open with another place says so without them
    other = Settings(ledger=LedgerSettings(location=location(endpoint, "other")))
    with pytest.raises(Rejected, match="not in s3") as refused:
        lowmark.open(data, settings=other)
    assert not any(secret in str(refused.value) for secret in SECRETS)
    # when the location is given without them, then they are gone
    run("ledger", "location", shown)
    with lowmark.open(data) as db:
        entry = db.backend.get(b"cluster")
        assert entry is not None
        assert not any(secret.encode() in bytes(entry.value) for secret in SECRETS)
        assert db["t"].read(compacted=True).to_pylist() == [{"id": 1, "_change": "upsert"}]
    assert not any(secret in caplog.text for secret in SECRETS)


@pytest.mark.slow
def test_a_place_is_settled_and_the_way_there_is_not(tmp_path: Path, endpoint: str) -> None:
    data = tmp_path / "data"
    settings = Settings(ledger=LedgerSettings(location=location(endpoint, "moves"), grace_ms=0))
    with lowmark.open(data, settings=settings) as db:
        table = db.create_table("t", {"id": "int64"}, key="id", partitions=1)
        table.append([{"id": 1}])
        db.advance_watermark("now")
        table.compact(engine="local")
        # when another place is given, or a way on which the ledgers are not there, it is refused
        with pytest.raises(Rejected, match="are in s3://lowmark/moves"):
            db.set_ledger_location(location(endpoint, "elsewhere"))
        with pytest.raises(Rejected, match="with credentials in it"):
            db.set_ledger_location(location(endpoint, "moves", f"{KEY}:{SECRET}@"))
        other = location(endpoint.replace("127.0.0.1", "localhost"), "moves")
        store = Store(other)
        claim = store.read("database")
        store.delete("database")
        with pytest.raises(LedgersUnseen):
            db.set_ledger_location(other)
    by_settings = Settings(ledger=LedgerSettings(location=other, grace_ms=0))
    with pytest.raises(LedgersUnseen):
        lowmark.open(data, settings=by_settings)
    store.write("database", claim)
    # when this process's settings, or the database's, name another way to it
    with lowmark.open(data, settings=by_settings) as db:
        assert db.ledger_location == other
        assert db["t"].read(compacted=True).to_pylist() == [{"id": 1, "_change": "upsert"}]
    with lowmark.open(data) as db:
        assert db.ledger_location == location(endpoint, "moves")
        db.set_ledger_location(other)
    # then that one is taken
    with lowmark.open(data) as db:
        assert db.ledger_location == other
        assert db["t"].read(compacted=True).to_pylist() == [{"id": 1, "_change": "upsert"}]


# Arrow tries for six seconds before it gives up. The shorter relatives are in test_store.py
# (`test_a_store_that_can_not_be_reached_is_told_by_name`) and test_files.py.
@pytest.mark.release
def test_a_store_that_is_away_stops_what_needs_it_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    data = tmp_path / "data"
    with mock_store() as endpoint:
        place = LedgerSettings(location=location(endpoint, "away"), grace_ms=0)
        with lowmark.open(data, settings=Settings(ledger=place)) as db:
            table = db.create_table("t", {"id": "int64"}, key="id", partitions=1)
            table.append([{"id": 1}])
            db.advance_watermark("now")
            table.compact(engine="local")
            table.append([{"id": 2}])
            db.advance_watermark("now")
    # given that its store is away, then tables are listed, described and written to
    done = CliRunner().invoke(app, ["table", "list", "--data", str(data)])
    assert done.exit_code == 0, done.output
    assert "t" in done.output
    with lowmark.open(data) as db:
        db["t"].append([{"id": 3}])
        # and what needs it fails by name, with a hint that is about the store
        for needs in (
            lambda: db["t"].compact(engine="local"),
            lambda: db["t"].read(compacted=True).to_pylist(),
        ):
            with pytest.raises(Unavailable) as failed:
                needs()
            assert "credentials" in failed.value.hint
            assert "disk" not in failed.value.hint
    # when a new database is founded there, then that is refused at once
    with pytest.raises(Unavailable):
        lowmark.open(tmp_path / "new", settings=Settings(ledger=place))
