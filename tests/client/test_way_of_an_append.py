"""How many functions of ours a row goes through before it is in the WAL's hands."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import lowmark

PACKAGE = str(Path(lowmark.__file__).parent)
HOPS_MAX = 22
"""Each function more is a place to look at for a reader, and time for every append."""

HANDED_OVER = (
    ("runtime/real_loop.py", "RealLoop.call_from_thread"),  # from the caller to the loop
    ("group/requests.py", "Requests.propose"),  # to the group
    ("raft/log_view.py", "LogView.append"),  # into the log as consensus has it
    ("raft/node.py", "RaftNode.ready"),  # back, as an order
    ("log/wal.py", "Wal.write"),  # to the WAL
)
"""Where rows change hands. Whatever is on the stack there, they went through."""

NOT_ON_THE_WAY = {"NodeThread.__init__.<locals>.run", "Node.run", "RealLoop.run_until"}
"""The loop's thread stands in these all the time."""


class Way:
    """The functions on the stacks of all threads where rows change hands, in the order met."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str], None] = {}
        self.reached: set[tuple[str, str]] = set()
        self.looks = False

    def look(self, frame: FrameType, event: str, arg: object) -> None:
        """A profiler's function."""
        del arg
        if not self.looks or event != "call":
            return
        here = _name(frame)
        if here not in HANDED_OVER or HANDED_OVER[-1] in self.reached:
            return  # what comes behind the last one is the way of the answer
        self.reached.add(here)
        stack: list[tuple[str, str]] = []
        at: FrameType | None = frame
        while at is not None:
            name = _name(at)
            if name[0] and name[1] not in NOT_ON_THE_WAY:
                stack.append(name)
            at = at.f_back
        self.functions.update(dict.fromkeys(reversed(stack)))


def _name(frame: FrameType) -> tuple[str, str]:
    path, _, file = frame.f_code.co_filename.partition(PACKAGE)
    return ("", "") if path or not file else (file[1:], frame.f_code.co_qualname)


@contextmanager
def profiled(look: object) -> Iterator[None]:
    """Have a profiler's function called in all threads that are started meanwhile, and here."""
    before = threading.getprofile(), sys.getprofile()
    threading.setprofile(look)  # type: ignore[arg-type]
    sys.setprofile(look)  # type: ignore[arg-type]
    try:
        yield
    finally:
        threading.setprofile(before[0])
        sys.setprofile(before[1])


def test_a_row_is_in_the_hands_of_the_wal_after_few_functions(tmp_path: Path) -> None:
    # given a table that rows were appended to before
    ways = [Way() for _ in range(5)]

    def look(frame: FrameType, event: str, arg: object) -> None:
        for way in ways:
            way.look(frame, event, arg)

    with profiled(look), lowmark.open(tmp_path / "data") as db:
        orders = db.create_table("orders", {"id": "int64"}, key="id", partitions=1)
        orders.append([{"id": 0}])
        # when one row is appended; several times, for the loop may have other work meanwhile
        for number, way in enumerate(ways):
            way.looks = True
            orders.append([{"id": number}])
            way.looks = False
    # then it went through few functions, from the call to the WAL
    way = min(ways, key=lambda one: len(one.functions))
    assert way.reached == set(HANDED_OVER)
    assert ("client/table.py", "Table.append") in way.functions
    assert len(way.functions) <= HOPS_MAX, "\n".join(map(":".join, way.functions))
