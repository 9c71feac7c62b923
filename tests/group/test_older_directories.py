"""Directories that are older than what other nodes have seen of them: images that were put back."""

from __future__ import annotations

from group.cluster import Cluster, Member
from group.kv import Row, put
from lowmark.runtime.sim import SimDisk


def image_of(member: Member) -> SimDisk:
    """A copy of the directory of a node that is stopped, or dies just now."""
    return member.disk.image()


def put_back(member: Member, image: SimDisk) -> None:
    """Put an earlier image in the place of a directory; its node is down."""
    assert not member.up
    member.disk = image.image()


def wait_hellos(cluster: Cluster, *numbers: int) -> None:
    """Until these nodes have kept each other's starts."""

    def known(one: int, other: int) -> bool:
        here, there = cluster[one].here.starts, cluster[other].here.starts
        return here.known(other) == there.own

    cluster.run_until(
        lambda: all(known(one, other) for one in numbers for other in numbers if one != other)
    )


def rows_at(cluster: Cluster, number: int) -> dict[str, Row]:
    return cluster[number].machine.rows


def rolled_back(cluster: Cluster) -> None:
    """Rows are acknowledged by 1 and 2 alone; then 1 is down, and 2 has an older directory."""
    cluster.propose(put("before", b"x"))
    cluster.wait_even()
    cluster[2].stop()
    image = image_of(cluster[2])
    cluster[2].start()
    wait_hellos(cluster, 1, 2, 3)
    cluster[3].stop()
    cluster.propose(*(put(f"k{n}", b"acknowledged") for n in range(20)))
    cluster.wait_even(1, 2)
    cluster[2].stop()
    put_back(cluster[2], image)
    cluster[1].stop()
    cluster[2].start()
    cluster[3].start()


def test_an_older_directory_elects_no_leader_that_lacks_what_was_acknowledged() -> None:
    # given rows that two of three have, one of them down, and the other with an older directory
    cluster = Cluster()
    rolled_back(cluster)
    # when it and the third, which lacks them, are up for long
    cluster.run_for(10_000)
    # then they elect no leader, and it says why
    assert cluster.leader() is None
    assert "older" in cluster[2].here.older_words
    assert cluster[2].group().in_doubt
    assert "majority without it (1, 3)" in cluster[2].group().status().silent
    # and when the first is back, no row is lost
    cluster[1].start()
    cluster.wait_even()
    assert len(rows_at(cluster, 1)) == 21
    assert rows_at(cluster, 2).keys() == rows_at(cluster, 3).keys() == rows_at(cluster, 1).keys()


def test_an_older_copy_is_made_good_from_the_others_and_votes_again() -> None:
    cluster = Cluster()
    rolled_back(cluster)
    cluster[1].start()

    def back() -> bool:
        leader = cluster.leader()
        if leader is None:
            return False
        members = leader.group().members()
        return members.voters == {1, 2, 3} and members.incarnation(2) > 0

    cluster.run_until(back)
    cluster.wait_even()
    # then it has kept what it had, and got only the rest
    assert not cluster[2].group().waits
    # and can lead
    cluster[2].here.settle()
    cluster.run_until(lambda: not cluster[2].here.older_words)
    cluster.make_leader(2)
    cluster.propose(put("after", b"x"))
    assert len(rows_at(cluster, 2)) == 22
