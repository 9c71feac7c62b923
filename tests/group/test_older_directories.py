"""Directories that are older than what other nodes have seen of them: images that were put back."""

from __future__ import annotations

import pytest

from group.cluster import Cluster, Member
from group.kv import Row, put
from lowmark.group.hello import SERVICE
from lowmark.group.starts import ASIDE, PATH
from lowmark.group.wire import Answer, Ask, Item
from lowmark.raft import Append
from lowmark.runtime.sim import SimDisk
from lowmark.runtime.sim.disk import WorldStopped


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


def test_what_one_node_has_heard_the_others_hear_from_it() -> None:
    # given a start of 2 that 1 alone has heard of, while 3 was down
    cluster = Cluster()
    cluster.propose(put("before", b"x"))
    cluster.wait_even()
    cluster[3].stop()
    cluster[2].stop()
    image = image_of(cluster[2])
    cluster[2].start()
    wait_hellos(cluster, 1, 2)
    cluster.propose(put("acknowledged", b"x"))
    cluster.wait_even(1, 2)
    # when 3 comes back while 2 is down, and 1 tells it
    cluster[2].stop()
    cluster.isolate(3)  # of the group it hears nothing: it has its turn before that
    cluster[3].start()
    known = cluster[1].here.starts.known(2)
    cluster.network.loses = lambda _s, _t, item: isinstance(item, Append)
    cluster.heal()
    cluster.run_until(lambda: cluster[3].here.starts.known(2) == known)
    # then it is not led astray by the older directory of 2
    cluster[1].stop()
    cluster.network.loses = None
    put_back(cluster[2], image)
    cluster[2].start()
    cluster.run_for(10_000)
    assert cluster.leader() is None
    cluster[1].start()
    cluster.wait_even()
    assert "acknowledged" in rows_at(cluster, 3)


def test_a_vote_goes_only_to_a_candidate_that_knows_what_the_voter_knows() -> None:
    # given five voters, and a start of 2 that all but 5 know, which is told nothing
    cluster = Cluster(nodes=5)
    wait_hellos(cluster, 1, 2, 3, 4, 5)
    cluster.make_leader(3)
    cluster.propose(put("before", b"x"))
    cluster.wait_even()
    cluster[2].stop()
    image = image_of(cluster[2])
    cluster.network.loses = lambda s, t, item: 5 in {s, t} and isinstance(item, Ask | Answer)
    cluster[2].start()
    wait_hellos(cluster, 1, 2, 3, 4)
    # and a row that 2, 3 and 4 alone have
    cluster.make_leader(3)
    cluster.isolate(1, 5)
    cluster.propose(put("acknowledged", b"x"))
    cluster.wait_even(2, 3, 4)
    # when 3 and 4 are down, 2 has an older directory, and 5 does not hear what 1 knows of it
    for number in (2, 3, 4):
        cluster[number].stop()
    put_back(cluster[2], image)
    cluster.heal()

    def loses(sender: int, to: int, item: Item) -> bool:
        pair = {sender, to}
        return pair == {1, 2} or (pair == {1, 5} and isinstance(item, Ask | Answer))

    cluster.network.loses = loses
    cluster[2].start()
    cluster.run_for(10_000)
    # then 5 believes 2, and is not elected by 2 and 1
    assert not cluster[2].here.older_words
    assert cluster.leader() is None
    cluster.network.loses = None
    for number in (3, 4):
        cluster[number].start()
    cluster.wait_even()
    assert all("acknowledged" in rows_at(cluster, number) for number in cluster.members)


def test_a_start_that_no_other_voter_of_a_majority_has_heard_of_is_not_recognised() -> None:
    # the limit: given a start of 2 that 1 alone has heard of, and 1 is down since
    cluster = Cluster()
    cluster.propose(put("before", b"x"))
    cluster.wait_even()
    cluster[3].stop()
    cluster[2].stop()
    image = image_of(cluster[2])
    cluster[2].start()
    wait_hellos(cluster, 1, 2)
    cluster.propose(put("acknowledged", b"x"))
    cluster.wait_even(1, 2)
    cluster.wait(cluster[1].here.save_commits())
    for number in (1, 2):
        cluster[number].stop()
    put_back(cluster[2], image)
    # when 2 and 3 are a majority
    cluster[2].start()
    cluster[3].start()
    leader = cluster.wait_leader()
    # then they go on without the row
    assert "acknowledged" not in leader.machine.rows
    # and 1, which wrote down what was committed when it stopped, cuts off nothing, and says so
    cluster.make_leader(5 - leader.number)  # in a term in which 1 has no entry
    cluster.propose(put("after", b"x"))
    cluster[1].start()
    cluster.run_until(lambda: cluster[1].group().stopped is not None)
    assert "differs from ours, which is committed" in cluster[1].group().status().stopped
    assert "acknowledged" in cluster[1].machine.rows


def test_an_image_from_after_the_last_start_is_not_recognised() -> None:
    # the limit: an image of a process that all have heard of, and no later start
    cluster = Cluster()
    wait_hellos(cluster, 1, 2, 3)
    cluster.propose(put("before", b"x"))
    cluster.wait_even()
    image = image_of(cluster[2])
    cluster[3].stop()
    cluster.propose(put("acknowledged", b"x"))
    cluster.wait_even(1, 2)
    cluster[2].stop()
    cluster[1].stop()
    put_back(cluster[2], image)
    cluster[2].start()
    cluster[3].start()
    assert "acknowledged" not in cluster.wait_leader().machine.rows


def test_a_backup_of_all_nodes_is_put_back_as_a_whole() -> None:
    # given images of all directories, of one moment
    cluster = Cluster()
    cluster.propose(put("before", b"x"))
    cluster.wait_even()
    wait_hellos(cluster, 1, 2, 3)
    images = {number: image_of(member) for number, member in cluster.members.items()}
    # and nodes that went on, and were started again and again
    for _ in range(2):
        for member in cluster.members.values():
            member.restart()
        cluster.propose(put("later", b"x"))
    # when all images are put back
    for number, member in cluster.members.items():
        member.stop()
        put_back(member, images[number])
    for member in cluster.members.values():
        member.start()
    # then nothing is refused, and the cluster goes on from there
    cluster.propose(put("after", b"x"))
    cluster.wait_even()
    for member in cluster.members.values():
        assert not member.here.older_words
        assert sorted(member.machine.rows) == ["after", "before"]


def test_a_group_that_the_directory_lacks_gets_a_copy_in_doubt() -> None:
    # given a group that was made after the image, and has a row that 1 and 2 acknowledged
    cluster = Cluster()
    wait_hellos(cluster, 1, 2, 3)
    cluster[2].stop()
    image = image_of(cluster[2])
    cluster[2].start()
    wait_hellos(cluster, 1, 2, 3)
    for number in (1, 2, 3):
        cluster[number].create("later", (1, 2, 3))
    cluster.wait_leader("later")
    cluster[3].stop()
    cluster.propose(put("acknowledged", b"x"), name="later")
    # when 2 has the image, 1 is down, and 2 makes its copy as a founder
    cluster[2].stop()
    cluster[1].stop()
    put_back(cluster[2], image)
    cluster[2].start()
    cluster[3].start()
    cluster.run_until(lambda: cluster[2].here.starts.unsettled)
    cluster[2].create("later", (1, 2, 3))
    # then it elects no leader with 3
    cluster.run_for(10_000)
    assert cluster.leader("later") is None
    # and it is made good when 1 is back
    cluster[1].start()
    cluster.wait_even(name="later")
    assert "acknowledged" in cluster[2].machines["later"].rows


def test_an_only_copy_that_is_older_waits_for_an_operator() -> None:
    # given a group that 2 alone has, and an image of it
    cluster = Cluster(group="")
    wait_hellos(cluster, 1, 2, 3)
    cluster[2].create("g", (2,))
    cluster.propose(put("before", b"x"))
    cluster[2].stop()
    image = image_of(cluster[2])
    cluster[2].start()
    wait_hellos(cluster, 1, 2, 3)
    cluster.propose(put("acknowledged", b"x"))
    cluster[2].stop()
    # when the image is put back
    put_back(cluster[2], image)
    cluster[2].start()
    cluster.run_until(lambda: cluster[2].group().in_doubt)
    cluster.run_for(5_000)
    # then it does not go on as if nothing had been
    assert cluster.leader() is None
    assert "the only copy" in cluster[2].group().status().silent
    # but when an operator says so
    cluster[2].here.reset("g", cluster.new_machine(1))
    cluster.wait_leader()
    cluster[2].here.settle()
    cluster.run_until(lambda: not cluster[2].here.older_words)


def test_a_start_that_can_t_be_counted_keeps_its_node_silent_until_it_is() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"x"))
    cluster[3].stop()
    cluster[3].disk.go_bad("unwritable", PATH)
    cluster[3].disk.go_bad("unwritable", ASIDE)
    cluster[3].start()
    sent = cluster.network.watch()
    cluster.run_for(3_000)
    assert "can't be counted" in cluster[3].here.older_words
    assert not any(group == "g" for s in sent if s.sender == 3 for group, _ in s.items)
    cluster[3].disk.heal()
    cluster.wait_even()
    assert not cluster[3].here.older_words


def test_a_node_of_a_release_before_is_believed_without_a_start() -> None:
    # given a node whose calls know nothing of starts
    cluster = Cluster(group="")
    for number in (1, 2):
        cluster[number].create("g", (1, 2, 3))
    old = cluster[3]
    old.here.calls._services.pop(SERVICE)
    old.here.transport.admits = lambda node, boot, address, frame: True
    old.here.hellos.may_vote = lambda node, group, vote: True  # type: ignore[method-assign]
    old.here.hellos.tick = lambda: None  # type: ignore[method-assign]
    old.create("g", (1, 2, 3))
    # then the others elect a leader with it, and it follows
    cluster.wait_even()
    cluster[2].stop()
    cluster.propose(put("a", b"x"))
    cluster.wait_even(1, 3)
    assert cluster[1].here.starts.known(3) is None
    # and when it is upgraded, it counts from one
    old.restart()
    cluster[2].start()
    wait_hellos(cluster, 1, 2, 3)
    cluster.propose(put("b", b"x"))
    cluster.wait_even()


def test_an_older_directory_that_is_started_often_is_older_all_the_same() -> None:
    # given an older directory whose node ends several times before it hears of another one
    cluster = Cluster()
    rolled_back(cluster)
    for _ in range(5):
        cluster[2].crash(killed=True)
        cluster[2].start()
    # then it is told all the same
    cluster.run_for(10_000)
    assert cluster.leader() is None
    assert cluster[2].here.older_words


@pytest.mark.parametrize("at", range(2, 60, 4))
def test_a_crash_while_copies_are_put_in_doubt_is_made_good_by_the_next_start(at: int) -> None:
    # given an older directory whose node loses power at some disk call of its start, and again
    cluster = Cluster()
    rolled_back(cluster)
    node = cluster[2]
    node.crash()
    for again in range(2):
        node.disk.stop_at_call = node.disk.calls + at + again
        try:
            node.start()
            cluster.run_until(lambda: node.clock.crashed, timeout_ms=3_000)
        except (WorldStopped, TimeoutError):
            pass
        node.crash()
        # then it has elected no leader with the third one
        assert cluster.leader() is None
    node.start()
    cluster.run_for(3_000)
    assert cluster.leader() is None
    # and no row is lost when the first one is back
    cluster[1].start()
    cluster.wait_even()
    assert len(rows_at(cluster, 2)) == 21
