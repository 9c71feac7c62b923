"""A store that is killed, suspended, slow, full, or refuses our keys: nothing is lost by it."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters.processes import Children
from ledger.stores import KEY, SECRET, RealStore, location, with_real_store
from ledger.test_object_store import FarWorld
from lowmark.errors import LowmarkError, Unavailable

pytestmark = [with_real_store, pytest.mark.release]
KEYS = 40
SMALL_BYTES = 16 << 20


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with Children(tmp_path) as children:
        yield children


@pytest.fixture
def store(children: Children, tmp_path: Path) -> RealStore:
    return RealStore(children, tmp_path / "store")


@contextlib.contextmanager
def world_at(store: RealStore, path: Path) -> Iterator[FarWorld]:
    with FarWorld(path / "data", location(store.endpoint, "shop")) as world:
        write(world, 0)
        world.compact(verify=True)
        yield world


def write(world: FarWorld, turn: int) -> None:
    world.write(*[(f"k{number}", turn) for number in range(KEYS)])
    world.write(*[(f"k{number}", None) for number in range(turn % 5, KEYS, 5)])


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of its own, in memory."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_BYTES}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can't be mounted here: that takes root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def steps_of_a_run(world: FarWorld) -> list[str]:
    seen: list[str] = []
    write(world, 1)
    world.settle()
    world.table.compact(engine="local", step=seen.append)
    return list(dict.fromkeys(seen))


def test_a_store_that_is_killed_at_any_step_of_a_run_loses_nothing(
    store: RealStore, tmp_path: Path
) -> None:
    # given a table whose ledger is in a store
    with world_at(store, tmp_path) as world:
        for turn, step in enumerate(steps_of_a_run(world), start=2):
            write(world, turn)
            world.settle()

            def kill(name: str, wanted: str = step) -> None:
                if name == wanted:
                    store.kill()

            # when the store is killed before a step, then the run ends by name, or is done already
            with contextlib.suppress(Unavailable):
                world.table.compact(engine="local", step=kill)
            # and rows that were not compacted are there, and new ones are taken
            world.write(("meanwhile", turn))
            # and when it is back, all is there, the next run goes on, and nothing is left over
            store.start()
            world.check()
            world.compact(verify=True)
            world.check()
            world.check_tidy()


def test_a_store_that_answers_nothing_for_a_while_delays_a_run_or_ends_it_by_name(
    store: RealStore, tmp_path: Path
) -> None:
    with world_at(store, tmp_path) as world:
        write(world, 1)
        world.settle()
        outcome: list[object] = []

        def run() -> None:
            try:
                outcome.append(world.table.compact(engine="local").state)
            except LowmarkError as error:
                outcome.append(error)

        # when it takes connections and answers nothing, for as long as Arrow waits and longer
        thread = threading.Thread(target=run)
        with store.suspended():
            thread.start()
            thread.join(timeout=25)
        thread.join(timeout=300)
        assert not thread.is_alive()
        # then the run is done in the end, or ends with the store's name
        assert outcome == ["done"] or isinstance(outcome[0], Unavailable), outcome
        world.check()
        world.compact(verify=True)
        world.check()
        world.check_tidy()


def test_a_slow_store_is_waited_for(store: RealStore, tmp_path: Path) -> None:
    with world_at(store, tmp_path) as world:
        write(world, 1)
        over = threading.Event()

        def slow() -> None:
            while not over.is_set():
                with store.suspended():
                    over.wait(0.2)
                over.wait(0.02)

        # given a store that has a tenth of its time for us
        pulse = threading.Thread(target=slow)
        pulse.start()
        try:
            world.compact(verify=True)
            world.check()
        finally:
            over.set()
            pulse.join()


def test_a_store_that_refuses_our_keys_is_told_and_nothing_is_removed(
    store: RealStore, tmp_path: Path
) -> None:
    with world_at(store, tmp_path) as world:
        write(world, 1)
        world.settle()
        before = world.files()
        # given a store whose keys have changed
        store.kill()
        store.start(secret="another")
        # when a run needs it, then it hears so, with a hint about credentials and not the disk
        with pytest.raises(Unavailable) as refused:
            world.table.compact(engine="local")
        assert "credentials" in str(refused.value.hint)
        assert SECRET not in str(refused.value)
        # and rows go on being written
        world.write(("meanwhile", 1))
        # and with the right keys all is there
        store.kill()
        store.start()
        assert before <= world.files()
        world.check()
        world.compact(verify=True)
        world.check()


def test_a_full_store_ends_a_run_and_the_next_one_goes_on(
    children: Children, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "small") as disk:
        store = RealStore(children, disk / "store")
        with world_at(store, tmp_path) as world:
            write(world, 1)
            world.settle()
            # given a store without room
            filler = disk / "filler"
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(1 << 16))
            # when a table is compacted, then that ends by name
            with pytest.raises(Unavailable):
                world.table.compact(engine="local")
            # and what was there can be read
            world.check()
            # when there is room again, then it is compacted
            filler.unlink()
            world.compact(verify=True)
            world.check()
            world.check_tidy()


def test_a_process_that_is_killed_in_a_run_leaves_a_store_that_the_next_one_tidies(
    store: RealStore, tmp_path: Path
) -> None:
    with world_at(store, tmp_path) as world:
        for turn, step in enumerate(steps_of_a_run(world), start=2):
            write(world, turn)
            world.stopped_before(step)
            world.compact(verify=True)
            world.check()
            world.check_tidy()
