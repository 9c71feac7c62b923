"""In which order the disk is asked for what: a change of the order shows in review.

Two kinds of commands. Those of a log move it on the simulated disk, and print every call that
changes the disk, in order, with its path; calls that only read are not among them. `compact-table`
makes a run of compaction in a real folder, and prints what the run does to the store of ledgers, to
the metastore and to its partition, in order. (What the log does meanwhile is not among it: that is
another thread's story.)

A rename is named by its target. Numbers in names are printed without their zeros, incarnations and
names of runs as words, since they are drawn. Calls that are made several times in a row, on the
same path, are one line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compaction.faults import store_calls
from compaction.world import World as Database
from inside import backend_of
from log.world import World, data_of, finish
from lowmark.log import Entry, SnapshotMeta
from lowmark.metastore import Operation, Put, Remove
from lowmark.runtime.sim import SimDisk, SimLoop
from scenarios.runner import Command, ScenarioBroken
from sim.mutants import replaced

__all__ = ["DiskDriver"]

_INCARNATION = re.compile(r"@[0-9a-f]{32}\b")
_ZEROS = re.compile(r"\b0{4,}(?=[0-9a-f])")


class DiskDriver:
    """Handles the commands of a file."""

    def __init__(self) -> None:
        self._calls: list[str] = []
        self._renamed: set[str] = set()
        self._world: World | None = None
        self._commands: dict[str, Callable[[Command], None]] = {
            "open": self._open,
            "create-group": lambda c: self._create_group(c.word()),
            "delete-group": lambda c: self._delete_group(c.word()),
            "append": self._append,
            "roll-over": self._roll_over,
            "snapshot": self._snapshot,
            "install": self._install,
            "merge": self._merge,
            "restart": self._restart,
            "close": lambda c: self.world.log.close(),
        }

    def __call__(self, command: Command) -> str:
        if command.name == "compact-table":
            return "\n".join(_once(compacted_table(command.input)))
        if command.name not in self._commands:
            raise ScenarioBroken(f"there is no command `{command.name}`")
        quiet = command.flag("quiet")
        self._calls.clear()
        self._commands[command.name](command)
        return "" if quiet else "\n".join(_once(self._calls))

    @property
    def world(self) -> World:
        """The log that is open."""
        if self._world is None:
            raise ScenarioBroken("`open` a log first")
        return self._world

    def _note(self, call: str, path: str) -> None:
        unfinished = path.removesuffix(".tmp")
        match call:
            case "create":
                self._renamed.discard(unfinished)
            case "rename":
                self._renamed.add(path)
            case _ if unfinished in self._renamed:
                path = unfinished  # an open file is known by its first name; here, by its last
            case _:
                pass
        words = {"datasync": "sync", "sync_dir": "sync dir", "rename": "rename to"}
        shown = _ZEROS.sub("", _INCARNATION.sub("@incarnation", path))
        self._calls.append(f"{words.get(call, call)} {shown or '.'}")

    # -- a log ----------------------------------------------------------------------------------

    def _open(self, command: Command) -> None:
        """A new log, with one group `g`."""
        limits: dict[str, Any] = {name: command.number(name) for name in command.options}
        disk = SimDisk()
        disk.before_call = self._note
        self._world = World(disk=disk, **limits)

    def _restart(self, command: Command) -> None:
        """The process is killed, and another one opens the log: what it tidies up. If a call is
        named, the process is killed right before the disk is asked for it.
        """
        before, path = command.text("before"), command.text("path")
        if before:
            self._killed_before(before, path, command.rest())
        old = self.world
        disk = old.disk.killed()
        disk.before_call = self._note
        self._calls.clear()
        loop = SimLoop(old.seed + 1, start_ms=old.loop.wall_ms())
        self._world = World(old.seed + 1, disk=disk, config=old.config, loop=loop)
        self.world.settle()

    def _killed_before(self, call: str, path: str, words: Sequence[str]) -> None:
        acts: Mapping[str, Callable[[], object]] = {
            "roll-over": self.world.roll,
            "merge": self.world.compact,
            "create": lambda: self.world.log.create_group(words[1]),
            "delete": lambda: self._delete_group(words[1]),
        }
        self.world.until(call, path, acts[words[0]])

    def _create_group(self, name: str) -> None:
        self.world.log.create_group(name)

    def _delete_group(self, name: str) -> None:
        """Delete a group, and wait until its files are gone."""
        self.world.log.delete_group(name)
        self.world.settle()

    def _append(self, command: Command) -> None:
        """Append entries to one or several groups at once, and wait until they are written."""
        first, last, size = int(command.word()), int(command.word(1)), command.number("size")
        term = command.number("term", 1)
        groups = command.many("groups") or ("g",)
        for group in groups:
            self.world.put(first, last, term=term, size=size, group=group)
        for group in groups:
            self.world.await_written(last, group=group)
        self.world.settle()

    def _roll_over(self, command: Command) -> None:
        """Close the WAL file, and wait until what it holds is in segments."""
        del command
        self.world.roll()

    def _snapshot(self, command: Command) -> None:
        """Take a snapshot, and let phase 1 go."""
        self.world.snapshot(int(command.word()), command.numbers("live"))

    def _install(self, command: Command) -> None:
        """Take in a snapshot that another node sends: live entries first, then the state."""
        index, applied = int(command.word()), command.number("applied")
        meta = SnapshotMeta(index=index, term=3)
        installer = self.world.group.begin_install(meta, last_applied=applied)
        sent = [Entry(one, 3, data_of(one, 3)) for one in command.numbers("sent")]
        installer.add_entries(applied, sent)
        installer.add_state(0, b"state")
        if command.flag("abort"):
            installer.abort()
        else:
            finish(self.world, installer, command.numbers("live"))
        self.world.settle()

    def _merge(self, command: Command) -> None:
        """Phase 3."""
        del command
        self.world.compact()


def _once(calls: Sequence[str]) -> list[str]:
    """Calls that are repeated become one line."""
    lines = []
    for call, same in groupby(calls):
        times = len(list(same))
        lines.append(call if times == 1 else f"{call} ({times} times)")
    return lines


# -- a run of compaction --------------------------------------------------------------------------


def compacted_table(lines: Sequence[str]) -> list[str]:
    """Carry out `write key=value ...` and `compact`; what the last run did, in order."""
    with TemporaryDirectory() as folder, Database(Path(folder) / "data") as database:
        trace: list[str] = []
        runs: list[str] = []
        for line in lines:
            word, *changes = line.split()
            if word == "compact":
                database.settle()
                trace.clear()
                runs.append(_run(database, trace))
            elif word == "write":
                pairs = [change.partition("=") for change in changes]
                database.write(*[(key, int(value) if value else None) for key, _, value in pairs])
            else:
                raise ScenarioBroken(f"`{word}` is neither `write` nor `compact`")
        database.check()
    text = "\n".join(trace)
    for number, run in enumerate(runs, 1):
        text = re.sub(rf"{run}(-[0-9a-f]{{8}})?", f"run{number}", text)  # and its attempt
    return text.split("\n")


def _run(database: Database, trace: list[str]) -> str:
    """Make a run, and note what it does; gives its name."""
    root = f"{database.path}/ledgers/"

    def hook(name: str) -> None:
        path = calls.paths[-1]
        if name == "make folder" and os.path.isdir(path):
            return  # it is there: nothing is done
        words = {"rename": "rename to", "create": "begin", "make folder": "mkdir"}
        trace.append(f"  {words.get(name, name)} {path.removeprefix(root)}")

    def step(name: str) -> None:
        trace.append(f"{name}:")

    with store_calls(hook) as calls, _told(database, trace):
        return database.table.compact(engine="local", step=step).run


@contextmanager
def _told(database: Database, trace: list[str]) -> Iterator[None]:
    """What a run writes into the metastore, and proposes to its partition."""
    backend = backend_of(database.table)
    write, propose = backend.write, backend.propose

    def told_write(operations: Sequence[Operation], **more: Any) -> Any:
        for operation in operations:
            assert isinstance(operation, Put | Remove)
            what = "put" if isinstance(operation, Put) else "remove"
            seen = ", if it is as it was seen" if more.get("condition") is not None else ""
            trace.append(f"  {what} {operation.key.decode()}{seen}")
        return write(operations, **more)

    def told_propose(table: Any, commands: Mapping[int, Any], **more: Any) -> Any:
        for number, command in commands.items():
            trace.append(f"  propose {type(command).__name__} to partition {number}")
        return propose(table, commands, **more)

    with replaced(backend, "write", told_write), replaced(backend, "propose", told_propose):
        yield
