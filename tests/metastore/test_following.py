"""What a node follows for as long as it runs: it goes on after any error, and says if it can't."""

from __future__ import annotations

import logging

import pytest

from lowmark.errors import Unavailable
from lowmark.metastore import Event, Metastore
from lowmark.metastore.following import LASTS_MS, RETRY_MS_MAX, Following
from lowmark.runtime import DiskFailed, NoHandles
from metastore.world import World


class Follower:
    """What it was told, and what it found whenever it began."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self.starts: list[dict[bytes, bytes]] = []
        self.events: list[Event] = []
        self.failing = ""

    def follow(self) -> Following:
        return self._metastore.keep_watching(
            prefix=b"t.", start=self._start, on_event=self.events.append, name="things"
        )

    def _start(self) -> None:
        if self.failing:
            raise Unavailable(self.failing)
        page = self._metastore.range_local(b"t.")
        self.starts.append({entry.key: entry.value for entry in page.entries})


def test_what_is_followed_goes_on_from_what_is_there_whatever_ended_its_watch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(nodes=1)
    here = world[1].metastore
    world.wait(here.put(b"t.a", b"1"))
    follower = Follower(here)
    follower.follow()
    world.wait(here.put(b"t.a", b"2"))
    world.run_for(10)
    assert ([*follower.starts], len(follower.events)) == ([{b"t.a": b"1"}], 1)
    # when a value can't be read for a moment, and there is another one meanwhile
    with caplog.at_level(logging.WARNING):
        here._watches.end_all(NoHandles("1.wal", call="read", reason="too many open files"))
    world.wait(here.put(b"t.b", b"3"))
    world.run_for(1_000)
    # then it has found all that is there
    assert follower.starts[1:] == [{b"t.a": b"2", b"t.b": b"3"}]
    # and is told what comes then
    world.wait(here.put(b"t.c", b"4"))
    world.run_for(10)
    assert [change.key for event in follower.events[1:] for change in event.changes] == [b"t.c"]
    # and the log has said so
    said = [one for one in caplog.records if "is not followed for a moment" in one.message]
    assert "things" in {getattr(one, "of", "") for one in said}
    assert "too many open files" in str([getattr(one, "reason", "") for one in said])


def test_revisions_that_were_compacted_away_are_passed_over_at_once() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    follower = Follower(here)
    watch = follower.follow().watch
    assert watch is not None
    world.wait(here.put(b"t.a", b"1"))
    world.wait(here.compact(here.state.latest))
    # given a watch that still needs a revision which was cut away
    watch.position = 1
    world.wait(here.put(b"t.a", b"2"))
    world.run_for(10)
    # then what is there now was taken, and it is no problem
    assert follower.starts[1:] == [{b"t.a": b"1"}]
    assert [change.key for event in follower.events[1:] for change in event.changes] == [b"t.a"]
    assert here.problems == []


def test_what_can_not_be_followed_for_long_is_a_problem_until_it_goes_well_again() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    follower = Follower(here)
    follower.follow()
    # given something that can't be taken, again and again
    follower.failing = "its value is away"
    here._watches.end_all(DiskFailed("1.wal", call="read", reason="Input/output error"))
    world.run_for(LASTS_MS - 1_000)
    assert here.problems == []
    # when that lasts
    world.run_for(2_000)
    # then the node has a problem that names it, and its status shows it
    [problem] = here.problems
    assert "things" in problem
    assert "its value is away" in problem
    assert problem in world[1].here.problem
    # and none any more some time after it has gone well
    follower.failing = ""
    world.run_for(RETRY_MS_MAX + 100)
    assert follower.starts[-1] == {}
    world.run_for(LASTS_MS)
    assert here.problems == []


def test_nothing_is_followed_after_it_was_closed() -> None:
    world = World(nodes=1)
    here = world[1].metastore
    follower = Follower(here)
    following = follower.follow()
    # given one that is about to begin again
    following.fail(Unavailable("not now"))
    # when it is closed
    following.close()
    world.run_for(1_000)
    world.wait(here.put(b"t.a", b"1"))
    # then it never does
    assert (len(follower.starts), follower.events) == (1, [])
    # and it is no problem of its node
    world.run_for(LASTS_MS)
    assert here.problems == []
    assert following not in here._followings
    following.fail(Unavailable("not now"))
    world.run_for(1_000)
    assert len(follower.starts) == 1
