"""The versions that a node knows, looked at while they change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import pytest

from catalog.making import execute, fresh, orders
from lowmark.catalog import Catalog, DropTable, History
from lowmark.catalog.errors import VersionCompacted, VersionUnknown
from lowmark.formatting import time_text
from lowmark.runtime import millis_of


def versions(count: int) -> list[Catalog]:
    """Dense, from version 1 on."""
    made = [fresh()]
    while len(made) < count:
        command = DropTable(name="orders") if made[-1].tables else orders()
        made.append(execute(made[-1], command))
    return made


class Meanwhile(int):
    """A time; when it is compared for the first time, another thread has its turn."""

    happens: Callable[[], None]
    happened: bool

    def __new__(cls, time: int, happens: Callable[[], None]) -> Self:
        made = super().__new__(cls, time)
        made.happens, made.happened = happens, False
        return made

    def __lt__(self, other: int) -> bool:
        if not self.happened:
            self.happened = True
            self.happens()
        return int(self) < other


@pytest.fixture
def made() -> list[Catalog]:
    return versions(10)


@pytest.fixture
def history(made: list[Catalog]) -> History:
    history = History()
    for one in made[:-1]:
        history.add(one)
    return history


@pytest.mark.parametrize("at", range(9))
@pytest.mark.parametrize("what", ["cut", "add", "begin"])
def test_a_version_is_found_by_its_time_while_another_thread_changes_them(
    history: History, made: list[Catalog], at: int, what: str
) -> None:
    """Times and versions were cut one after the other: a place in one was none in the other."""
    # given a reader that is looking for a time
    changes: dict[str, Callable[[], None]] = {
        "cut": lambda: history.cut(made[5].version),
        "add": lambda: history.add(made[-1]),
        "begin": lambda: history.begin_at(made[-1]),
    }
    time = Meanwhile(made[at].activates_at, changes[what])
    # when they change on the way
    found = history.at(time)
    # then it gets the version that was in force
    assert time.happened
    assert found is made[at]


def test_edges_of_what_is_known_are_named(history: History, made: list[Catalog]) -> None:
    # given a history that was cut
    history.cut(made[5].version)
    # then the first version that is left is the earliest answer, by number and by time
    assert (history.earliest, history.latest, len(history)) == (made[5], made[8], 4)
    assert history.at(made[5].activates_at) is history.version(made[5].version) is made[5]
    assert history.at(made[9].activates_at) is history.version(made[8].version) is made[8]
    since = time_text(millis_of(made[5].activates_at))
    with pytest.raises(VersionCompacted, match=f"in force since {since}"):
        history.at(made[5].activates_at - 1)
    with pytest.raises(VersionCompacted):
        history.version(made[4].version)
    for number in (-1, made[9].version):
        with pytest.raises(VersionUnknown):
            history.version(number)
