"""In which order a sweep looks up who needs a file: a reader may come, and a ledger be replaced,
between any two of its look-ups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from compaction.world import World, folded
from lowmark.backend.embedded import Embedded
from lowmark.client import Reader
from lowmark.compaction import compactor as compactor_module
from lowmark.compaction import sweep as sweeping
from lowmark.compaction.records import Records
from lowmark.ledger import LedgerLost
from lowmark.runtime.store import Store
from sim.mutants import replaced

LOOK_UPS: dict[str, tuple[Any, str]] = {
    "the files": (Store, "files"),
    "runs": (Records, "runs"),
    "what is adopted": (sweeping, "_adopted"),
    "pointers": (Records, "pointers"),
    "readers": (Embedded, "files_in_use"),
    "what was retired": (Records, "retired"),
}


@contextmanager
def once_after(look_up: str, act: Callable[[], None]) -> Iterator[None]:
    """Something happens right after a look-up was made for the first time."""
    owner, name = LOOK_UPS[look_up]
    original, happened = getattr(owner, name), False

    def look(*given: Any, **more: Any) -> Any:
        nonlocal happened
        found = original(*given, **more)
        if not happened:
            happened = True
            act()
        return found

    with replaced(owner, name, look):
        yield
    assert happened, f"nobody looks up {look_up}"


def read_through_a_sweep(path: Path, look_up: str) -> None:
    """A reader comes within a sweep, and another ledger is adopted right after that."""
    with World(path) as world, ExitStack() as ends:
        world.write(*[(f"k{number}", number) for number in range(10)])
        world.compact()
        world.write(("k1", 100))
        world.settle()
        before, readers = dict(world.model), list[Reader]()

        def replace() -> None:
            readers.append(ends.enter_context(world.table.read(compacted=True)))
            assert world.table.compact(engine="local", rewrite=True).state == "done"

        with once_after(look_up, replace):
            world.table.sweep()
        # then the reader gets everything, from the ledger that it came to
        assert folded(readers[0]) == before
        world.check()


@pytest.mark.parametrize("look_up", LOOK_UPS)
def test_a_sweep_leaves_what_a_reader_takes_between_any_two_of_its_look_ups(
    tmp_path: Path, look_up: str
) -> None:
    read_through_a_sweep(tmp_path / "data", look_up)


def test_a_sweep_that_looks_up_readers_before_what_is_adopted_is_found(tmp_path: Path) -> None:
    original = sweeping.sweep

    def too_early(backend: Embedded, *given: Any, **more: Any) -> list[str]:
        in_use = backend.files_in_use()
        with replaced(backend, "files_in_use", lambda: in_use):
            return original(backend, *given, **more)

    # given a sweep with its look-ups in the wrong order; then a reader loses its files
    with replaced(compactor_module, "sweep", too_early), pytest.raises(LedgerLost):
        read_through_a_sweep(tmp_path / "data", "runs")


class _Ended(Exception):
    """The process of a run is gone."""


def test_a_sweep_at_a_copy_that_is_old_leaves_what_the_others_have_adopted(tmp_path: Path) -> None:
    with World(tmp_path / "data") as world:
        # given a copy that knows of the first ledger only, which a reader keeps
        world.write(*[(f"k{number}", number) for number in range(10)])
        world.compact()
        table, backend = world.table.descriptor.id, world.table._backend
        old = backend.status(table, latest=False)
        with world.table.read(compacted=True) as reader:
            # and a second one that was adopted, and a third that was published and never adopted
            world.write(("k1", 100))
            world.compact()
            world.write(("k2", 200))
            world.settle()

            def die(step: str) -> None:
                if step.startswith("adopt"):
                    raise _Ended

            with pytest.raises(_Ended):
                world.table.compact(engine="local", step=die)
            # when a sweep goes by that copy
            with replaced(Embedded, "status", lambda *given, **more: old):
                world.table.sweep()
            assert folded(reader)
        # then the ledger that is read is there
        world.check()
