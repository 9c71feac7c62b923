"""Ledgers in an object store: the same runs, readers, sweeps and proofs, over S3's protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from compaction.world import World
from lowmark.errors import LedgersUnseen
from lowmark.ledger.claim import check_claim
from lowmark.node import Settings
from lowmark.node.settings import LedgerSettings
from lowmark.runtime import DiskFailed, FileMissing
from lowmark.runtime.store import Store

BUCKET = "lowmark"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    fs.S3FileSystem(
        access_key="k",
        secret_key="s",
        region="us-east-1",
        scheme="http",
        endpoint_override=f"{host}:{port}",
        allow_bucket_creation=True,
    ).create_dir(BUCKET)
    yield f"{host}:{port}"
    server.stop()


def location(endpoint: str, folder: str) -> str:
    options = f"endpoint_override={endpoint}&scheme=http&region=us-east-1"
    return f"s3://k:s@{BUCKET}/{folder}?{options}"


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
    assert store.url("a/b").startswith(f"s3://k:s@{BUCKET}/empty/a/b?endpoint_override=")
    # when the bucket is not there
    nowhere = Store(location(endpoint, "x").replace(BUCKET, "no-such-bucket"))
    with pytest.raises((DiskFailed, FileMissing)):
        nowhere.write("one", b"1")
