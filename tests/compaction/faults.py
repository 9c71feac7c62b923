"""Faults at the edge: every call that a run makes to change what is stored, one by one.

What the thread that makes the run does is counted, and nothing else: the log and the metastore
write on another one, as they do without any run.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compaction.life import crash_image
from compaction.world import Stopped, World
from lowmark.ledger import RunRecord
from lowmark.runtime import store as store_module
from lowmark.runtime.store import Store
from sim.mutants import replaced

__all__ = ["Calls", "calls_of_a_run", "killed_at_call", "killed_before_step", "store_calls"]

Hook = Callable[[str], None]


class Calls:
    """What was called so far, and which names no sync has made durable yet."""

    def __init__(self, hook: Hook) -> None:
        self.made: list[str] = []
        self.paths: list[str] = []
        """Of each call; some below the store's root, some absolute."""
        self.unsettled: set[str] = set()
        self._hook = hook
        self._thread = threading.get_ident()

    def tell(self, name: str, path: str) -> bool:
        """Before a call is made; says whether it counts."""
        if threading.get_ident() != self._thread:
            return False
        self.made.append(name)
        self.paths.append(path)
        self._hook(name)
        return True


@contextmanager
def store_calls(hook: Hook) -> Iterator[Calls]:
    """Tell of every call that changes a store, before it is made, while this is open."""
    calls = Calls(hook)
    sync, rename = store_module._sync, os.replace
    create, delete, make_folder = Store.create, Store.delete, Store._make_folder

    def told_sync(path: str) -> None:
        mine = calls.tell("sync", path)
        sync(path)
        if mine:
            calls.unsettled -= {one for one in calls.unsettled if os.path.dirname(one) == path}

    def told_rename(source: Any, target: Any) -> None:
        mine = calls.tell("rename", os.fspath(target))
        rename(source, target)
        if mine:
            calls.unsettled.add(os.fspath(target))

    def told_create(self: Store, path: str, **more: Any) -> Any:
        calls.tell("create", path)
        return create(self, path, **more)

    def told_delete(self: Store, path: str) -> None:
        calls.tell("delete", path)
        delete(self, path)

    def told_make_folder(self: Store, folder: str) -> None:
        calls.tell("make folder", folder)
        make_folder(self, folder)

    with (
        replaced(store_module, "_sync", told_sync),
        replaced(os, "replace", told_rename),
        replaced(Store, "create", told_create),
        replaced(Store, "delete", told_delete),
        replaced(Store, "_make_folder", told_make_folder),
    ):
        yield calls


def calls_of_a_run(world: World) -> list[str]:
    """Make a run; gives the calls that it made."""
    world.settle()
    with store_calls(lambda name: None) as calls:
        world.compact()
    return calls.made


def killed_at_call(world: World, number: int, *, loses: bool) -> str:
    """A run whose process was killed before a call to the store was made; gives which.

    If it `loses`, the machine went down as well: of files that were being written a half is there,
    and names are gone that no sync has made durable.
    """
    image = world.path.with_name("image")
    world.settle()

    def hook(name: str) -> None:
        del name
        if len(calls.made) == number:
            crash_image(world.path, image)
            world.db.close()
            raise Stopped

    with store_calls(hook) as calls:
        try:
            world.table.compact(engine="local")
        except Stopped:
            pass
        else:
            raise AssertionError(f"there was no call {number}")
    if loses:
        _lose(world.path, image, calls.unsettled)
    _move(world, image)
    return calls.made[-1]


def _lose(path: Path, image: Path, unsettled: set[str]) -> None:
    for name in unsettled:
        (image / Path(name).relative_to(path)).unlink(missing_ok=True)
    for half in (image / "ledgers").rglob("*.tmp"):
        os.truncate(half, half.stat().st_size // 2)


def killed_before_step(world: World, number: int, *, resume: str | None = None) -> RunRecord | None:
    """A run whose process was killed before its nth step; gives its record, if there is one."""
    image = world.path.with_name("image")
    world.settle()
    told: list[str] = []

    def step(name: str) -> None:
        told.append(name)
        if len(told) == number:
            crash_image(world.path, image)
            world.db.close()
            raise Stopped

    known = {one.run for one in world.table.runs()}
    try:
        world.table.compact(engine="local", resume=resume, step=step)
    except Stopped:
        pass
    else:
        raise AssertionError(f"there was no step {number}: {told}")
    _move(world, image)
    return next((one for one in world.table.runs() if one.run not in known), None)


def _move(world: World, image: Path) -> None:
    """On with what was left."""
    world.db.close()
    shutil.rmtree(world.path)
    image.rename(world.path)
    world.reopen()
