"""What people and accidents do to a table that is compacted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from compaction.world import Stopped, World
from inside import backend_of
from lowmark.catalog import SetTableOptions
from lowmark.compaction import runner as running
from lowmark.ledger import Pointer, RunRecord, pointer_key
from lowmark.ledger.records import CLAIM_PREFIX, POINTER_PREFIX, RUN_PREFIX
from lowmark.metastore import Put, Remove
from lowmark.upkeep.upkeep import Look

__all__ = [
    "STEPS",
    "at_step",
    "flip",
    "keys_left",
    "look_after",
    "put_pointer",
    "remove_pointer",
    "run_aside",
    "set_options",
    "stopped_within_work",
]

STEPS = (
    "note the run",
    "hold partition 0",
    "carry out the work",
    "publish partition 0",
    "adopt partition 0",
    "trim partition 0",
    "note the end",
    "sweep",
)
"""Of a run over one partition, in their order."""


def set_options(world: World, **options: str | int | None) -> None:
    """Change options of the table; None takes one back to its default."""
    world.db.execute([SetTableOptions(table="t", options=options)])


def look_after(world: World) -> Look:
    """Let upkeep look once: watermark, retention, and what is left of dropped tables."""
    embedded = backend_of(world.db)
    upkeep = embedded.node.upkeep
    assert upkeep is not None
    return embedded.ask(upkeep.tick)


def keys_left(world: World) -> list[bytes]:
    """All that the metastore knows of ledgers, runs and claims."""
    backend = backend_of(world.db)
    found: list[bytes] = []
    for prefix in (POINTER_PREFIX, RUN_PREFIX, CLAIM_PREFIX):
        found += [entry.key for entry in backend.range(prefix)]
    return found


def put_pointer(world: World, pointer: Pointer) -> None:
    """What the metastore says was published, put there by somebody who should not have."""
    key, value = pointer_key(world.table.descriptor.id, 0), msgspec.json.encode(pointer)
    backend_of(world.db).write([Put(key, value)])


def remove_pointer(world: World) -> None:
    """A metastore that knows of no ledger: a backup from before the first run, say."""
    key = pointer_key(world.table.descriptor.id, 0)
    backend_of(world.db).write([Remove(key)])


def at_step(step: str, act: Callable[[], object]) -> Callable[[str], None]:
    """For `compact(step=...)`: do something once, right before a step is made."""
    done = False

    def told(name: str) -> None:
        nonlocal done
        if name == step and not done:
            done = True
            act()

    return told


def flip(path: Path) -> None:
    """One bit in the middle of a file is wrong from now on; a second time makes it right again."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def stopped_within_work(world: World, monkeypatch: pytest.MonkeyPatch, *, nth: int) -> bool:
    """A run whose process ends when its work has read or written for the nth time; False if there
    was less to do. The database is closed at that moment and opened again.
    """
    world.settle()
    count = 0

    def check(_: object) -> None:
        nonlocal count
        count += 1
        if count == nth:
            world.db.close()
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(running._ThisProcess, "check", check)
        try:
            world.table.compact(engine="local")
        except Stopped:
            world.reopen()
            return True
    return False


@contextmanager
def run_aside(world: World, *, until: str) -> Iterator[Callable[[], RunRecord | BaseException]]:
    """A run on a thread of its own that stands still before a step until the block asks for its
    end: what it came to, or how it failed.
    """
    world.settle()
    reached, go_on = threading.Event(), threading.Event()
    outcome: list[RunRecord | BaseException] = []

    def wait() -> None:
        reached.set()
        assert go_on.wait(60)

    def run() -> None:
        try:
            outcome.append(world.table.compact(engine="local", step=at_step(until, wait)))
        except BaseException as error:
            outcome.append(error)
        finally:
            reached.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert reached.wait(60)

    def end() -> RunRecord | BaseException:
        go_on.set()
        thread.join(60)
        assert not thread.is_alive()
        return outcome[0]

    try:
        yield end
    finally:
        end()
