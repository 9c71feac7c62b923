"""Directories that are older than what other nodes have seen of them: images that were put back."""

from __future__ import annotations

import pytest

from group.cluster import TINY_LOG, Cluster, Member
from group.kv import Row, put
from group.test_incarnations import damage, wait_voter
from lowmark.group.hello import SERVICE, _Peer
from lowmark.group.rejoin import lost_copy, note_lost
from lowmark.group.starts import ASIDE, PATH
from lowmark.group.storage import GroupMeta
from lowmark.group.wire import Answer, Ask, Item, encode
from lowmark.raft import Append, Vote
from lowmark.runtime import Future
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


def wait_idle(cluster: Cluster, number: int) -> None:
    """Until the log of a node has nothing to do, as to delete a group."""
    log = cluster[number].log
    assert log is not None
    cluster.run_until(lambda: log.idle)


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


def test_an_older_directory_begins_anew_once_whoever_tells_it() -> None:
    # given an image that two others know to be older
    cluster = Cluster()
    cluster.propose(put("before", b"x"))
    cluster.wait_even()
    cluster[2].stop()
    image = image_of(cluster[2])
    cluster[2].start()
    wait_hellos(cluster, 1, 2, 3)
    last = cluster[2].here.starts.own.number
    cluster[2].stop()
    put_back(cluster[2], image)
    # when both tell it, and one of the answers comes when its copies are in doubt already
    cluster.network.loses = lambda s, t, item: t == 2 and isinstance(item, Ask)
    cluster[2].start()
    here = cluster[2].here
    begun: list[int] = []
    here.when_begun_anew = lambda: begun.append(here.starts.own.number)
    late: dict[int, Future[bytes]] = {}
    answered = here.hellos._answered

    def slowly(node: int, peer: _Peer, revision: int, answer: Future[bytes]) -> bool:
        if node not in late:
            late[node] = answer
            return False
        return answered(node, peer, revision, answer)

    here.hellos._answered = slowly  # type: ignore[method-assign, assignment]
    cluster.run_until(lambda: len(late) == 2)
    answered(1, here.hellos._peer(1), 1, late[1])
    cluster.run_until(lambda: bool(begun))
    answered(3, here.hellos._peer(3), 1, late[3])
    cluster.network.loses = None
    cluster.run_until(lambda: not cluster[2].group().waits)
    # then it begins anew once
    assert begun == [last + 1]
    assert not here.starts.lost


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


def test_a_start_that_two_nodes_know_by_other_identities_is_known_by_both() -> None:
    # given a start of 2 that 3 has kept, and 2 does not know that it has
    cluster = Cluster()
    cluster.propose(put("before", b"x"))
    cluster.wait_even()
    cluster[2].stop()
    cluster.network.loses = lambda s, t, item: (
        {s, t} == {1, 2} or ((s, t) == (3, 2) and isinstance(item, Answer))
    )
    cluster[2].start()
    own = cluster[2].here.starts.own
    cluster.run_until(lambda: cluster[3].here.starts.known(2) == own)
    cluster[2].crash(killed=True)
    image = image_of(cluster[2])
    # and the next one, of the same number, that 1 alone has heard of from it
    cluster.network.loses = lambda s, t, item: (
        {s, t} == {2, 3} or (3 in {s, t} and isinstance(item, Append))
    )
    cluster[2].start()
    assert cluster[2].here.starts.own.number == own.number
    wait_hellos(cluster, 1, 2)
    cluster.run_until(lambda: cluster[1].here.hellos._peer(3).told >= 2)
    cluster.run_for(1_000)
    # and a row that 1 and 2 have
    cluster[3].stop()
    cluster.network.loses = None
    cluster.propose(put("acknowledged", b"x"))
    cluster.wait_even(1, 2)
    # when 2 has the image, and 1 is down
    cluster[2].stop()
    cluster[1].stop()
    put_back(cluster[2], image)
    cluster[2].start()
    cluster[3].start()
    cluster.run_for(10_000)
    # then 3 knows what 1 has heard of, and elects no leader with 2
    assert cluster.leader() is None
    assert cluster[2].here.older_words
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


@pytest.mark.parametrize("throw_away", ["rebuild", "leave"])
def test_a_copy_in_doubt_that_is_made_anew_or_left_stays_in_doubt(throw_away: str) -> None:
    # given a copy that may have been any incarnation
    cluster = Cluster()
    rolled_back(cluster)
    cluster.run_until(lambda: cluster[2].has() and cluster[2].group().in_doubt)
    # when it is thrown away, and another one is made
    if throw_away == "rebuild":
        cluster.wait(cluster[2].rebuild())
    else:
        cluster[2].here.leave("g")
        wait_idle(cluster, 2)
        cluster[2].here.settle()
        cluster[2].create("g", (1, 2, 3))
    # then that one may have been any, too
    assert cluster[2].group().in_doubt
    cluster.run_for(5_000)
    assert cluster.leader() is None
    # and it is made good
    cluster[1].start()
    cluster.wait_even()
    assert len(rows_at(cluster, 2)) == 21


def test_a_copy_in_quarantine_that_is_older_is_made_anew_in_doubt() -> None:
    # given an image with a copy that is in quarantine
    cluster = Cluster(log_config=TINY_LOG)
    cluster.make_leader(1)
    damage(cluster, cluster[2])
    cluster[2].stop()
    image = image_of(cluster[2])
    # and a later copy of its node, as another incarnation, that has acknowledged a row
    cluster[2].start()
    cluster.wait(cluster[2].rebuild())
    wait_voter(cluster, 2, above=0)
    wait_hellos(cluster, 1, 2, 3)
    cluster[3].stop()
    cluster.propose(put("acknowledged", b"x"))
    cluster.wait_even(1, 2)
    # when the image is put back, and its copy is thrown away
    cluster[2].stop()
    cluster[1].stop()
    put_back(cluster[2], image)
    cluster[2].start()
    cluster[3].start()
    cluster.run_until(lambda: cluster[2].here.starts.unsettled)
    assert cluster[2].group().stopped is not None
    cluster[2].here.settle()
    cluster.wait(cluster[2].rebuild())
    # then the one in its place is in doubt, and gives no vote to 3
    assert cluster[2].group().in_doubt
    cluster.run_for(10_000)
    assert cluster.leader() is None
    cluster[1].start()
    cluster.wait_even()
    assert "acknowledged" in rows_at(cluster, 2)


def test_a_copy_that_can_t_be_read_keeps_its_node_from_nothing_else() -> None:
    # given an image with two groups, one of which can't be read when it is put back
    cluster = Cluster()
    for number in (1, 2, 3):
        cluster[number].create("other", (1, 2, 3))
    for name in ("g", "other"):
        cluster.propose(put("a", b"x"), name=name)
        cluster.wait_even(name=name)
    cluster[2].stop()
    image = image_of(cluster[2])
    cluster[2].start()
    wait_hellos(cluster, 1, 2, 3)
    cluster[2].stop()
    put_back(cluster[2], image)
    away = cluster[2].disk.take_away("groups/other")
    cluster[2].start()
    # when its node has heard that its directory is older
    cluster.run_until(lambda: cluster[2].here.starts.unsettled)
    # then the copy that can be read is made good
    cluster.run_until(lambda: not cluster[2].group().waits)
    cluster.wait_even()
    # and the other one is in doubt when a later start can read it, and is made good then
    cluster[2].here.settle()
    cluster.run_until(lambda: not cluster[2].here.older_words)
    cluster[2].stop()
    cluster[2].disk.put_back("groups/other", away)
    cluster[2].start()
    assert cluster[2].group("other").in_doubt
    cluster.run_until(lambda: not cluster[2].group("other").waits)
    cluster.wait_even(name="other")


def test_a_copy_that_can_be_put_in_doubt_only_later_is_when_it_is_opened() -> None:
    # given a copy whose node noted that it is in doubt, for its record could not be written
    cluster = Cluster()
    cluster.propose(put("a", b"x"))
    cluster.wait_even()
    cluster[3].here.note_doubtful("g")
    # when a later start opens it
    cluster[3].restart()
    # then it says nothing before it was added again, and is no longer in doubt after that
    assert cluster[3].group().in_doubt
    cluster.run_until(lambda: lost_copy(cluster[3].disk, "g") is None)
    cluster[3].restart()
    assert cluster[3].group().in_doubt


def test_a_copy_with_a_damaged_note_is_opened_in_doubt() -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"x"))
    cluster.wait_even()
    cluster[3].here.note_doubtful("g")
    cluster[3].disk.flip_bit("rejoin/g", 40)
    cluster[3].here.note_doubtful("g")  # it says so as it is
    cluster[3].restart()
    assert cluster[3].group().in_doubt
    # and the note goes when the record says it
    cluster.run_until(lambda: cluster[3].disk.stat("rejoin/g") is None)


def test_a_note_of_a_lost_copy_that_is_in_doubt_stays_so() -> None:
    cluster = Cluster(group="")
    here, disk = cluster[1].here, cluster[1].disk
    # given notes of a copy that was left in a later lineage, and of one that its directory lacks
    note_lost(disk, "g", incarnation=3, ask=(2,), lineage=1)
    here.note_doubtful("g")
    found = lost_copy(disk, "g")
    assert found is not None
    assert (found.incarnation, found.ask, found.lineage, found.in_doubt) == (3, (2,), 1, True)
    # when a copy of a still later lineage is thrown away
    note_lost(disk, "g", incarnation=5, ask=(), lineage=2)
    # then what was in doubt is
    found = lost_copy(disk, "g")
    assert found is not None
    assert found.in_doubt


def test_a_copy_whose_first_record_is_on_its_way_is_put_in_doubt_too() -> None:
    # given a copy that is made just when its node hears that its directory is older
    cluster = Cluster(group="")
    wait_hellos(cluster, 1, 2, 3)
    here = cluster[2].here
    made = cluster[2].create("g", (1, 2, 3))
    assert not made.log.meta
    here._is_older(here.starts.own.number + 1)
    # when the node begins anew
    cluster.run_until(lambda: not here.starts.lost)
    # then that copy is in doubt
    assert GroupMeta.decode(made.log.meta).in_doubt
    assert made.in_doubt


def test_a_copy_that_is_left_while_it_is_made_in_doubt_leaves_the_doubt_behind() -> None:
    # given a node that does not know yet which copies its directory lacks
    cluster = Cluster(group="")
    wait_hellos(cluster, 1, 2, 3)
    here = cluster[2].here
    here._is_older(here.starts.own.number + 1)
    cluster.run_until(lambda: here.starts.unsettled)
    # when it makes a copy, and leaves the group before the record of that is durable
    made = cluster[2].create("g", (1, 2, 3))
    assert made.in_doubt
    assert not made.log.meta
    here.leave("g")
    # then the next copy is in doubt, too
    found = lost_copy(cluster[2].disk, "g")
    assert found is not None
    assert found.in_doubt


def test_a_note_that_a_copy_is_in_doubt_goes_only_when_its_reset_is_durable() -> None:
    # given a copy that a note alone says to be in doubt
    cluster = Cluster()
    cluster.propose(put("a", b"x"))
    cluster.wait_even()
    cluster[3].here.note_doubtful("g")
    for member in cluster.members.values():
        member.stop()
    cluster[3].start(opens=False)
    # when an operator has it go on alone, and power is lost at once
    cluster[3].here.reset("g", cluster.new_machine(1))
    assert lost_copy(cluster[3].disk, "g") is not None
    cluster[3].crash()
    cluster[3].start(opens=False)
    cluster[3].here.reset("g", cluster.new_machine(1))
    # then it goes when that is durable
    cluster.wait_leader()
    assert lost_copy(cluster[3].disk, "g") is None


def test_a_start_that_can_t_be_counted_keeps_its_node_silent_until_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster()
    cluster.propose(put("a", b"x"))
    cluster[3].stop()
    cluster[3].disk.go_bad("unwritable", PATH)
    cluster[3].disk.go_bad("unwritable", ASIDE)
    cluster[3].start()
    sent = cluster.network.watch()
    cluster.run_for(3_000)
    assert "can't be counted" in cluster[3].here.older_words
    assert caplog.messages.count("a start can't be counted") == 1  # not with each attempt
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


def test_a_node_that_was_of_a_release_before_is_told_all_when_it_is_upgraded() -> None:
    # given a node of a release before, which was told nothing, for it would have kept nothing
    cluster = Cluster()
    old = cluster[3]
    old.here.calls._services.pop(SERVICE)
    old.here.hellos.tick = lambda: None  # type: ignore[method-assign]
    cluster.run_until(lambda: cluster[1].here.hellos._peer(3).told > 1 << 60)
    # when it is upgraded, and is the first to say hello
    old.restart()
    wait_hellos(cluster, 1, 2, 3)
    # then it is told again: also what others learn from here on
    cluster.run_until(lambda: 0 < cluster[1].here.hellos._peers[3].told < 1 << 60)
    cluster.isolate(2, 3)
    cluster[2].restart()
    cluster.network.loses = lambda s, t, item: {s, t} == {2, 3}
    cluster.heal()
    wait_hellos(cluster, 1, 2)
    own = cluster[2].here.starts.own
    cluster.run_until(lambda: cluster[3].here.starts.known(2) == own)


def test_what_a_process_was_told_does_not_count_for_the_next_one_of_its_node() -> None:
    # given a node that has kept all that 1 knows, and whose next process has lost it
    cluster = Cluster()
    cluster.run_until(
        lambda: cluster[1].here.hellos._peer(3).told == cluster[1].here.starts.revision
    )
    cluster[3].stop()
    cluster[3].disk.unlink(PATH)
    # when that one has said hello, and 1 has not heard that it keeps anything
    cluster.network.loses = lambda s, t, item: (s, t) == (3, 1) and isinstance(item, Answer)
    cluster[3].start()
    boot = cluster[3].here.transport.boot
    cluster.run_until(lambda: cluster[1].here.hellos._peer(3).boot == boot)
    # then no vote goes to it
    vote = Vote(3, 1, 1, 0, 0, 0, pre=False)
    assert not cluster[1].here.hellos.may_vote(3, "g", vote)
    cluster.network.loses = None
    cluster.run_until(lambda: cluster[1].here.hellos.may_vote(3, "g", vote))


def test_what_a_process_said_that_is_gone_is_not_taken_again() -> None:
    # given a frame of a process that ended before its start was known, and the next one is
    cluster = Cluster()
    cluster.propose(put("a", b"x"))
    cluster.wait_even()
    here = cluster[1].here
    gone = here.transport.boot_of(3)
    cluster[3].restart()
    boot = cluster[3].here.transport.boot
    cluster.run_until(lambda: here.hellos._peer(3).boot == boot)
    cluster.run_for(1_000)
    sign = Vote(1, 3, 1, 0, 0, 0, pre=True)
    frame = b"".join(encode(gone, [("g", sign)]))
    assert not here.hellos.admits(3, gone, cluster[3].address, frame)
    assert here.hellos._peer(3).held
    # when the answer is there for which it was held
    boots: set[int] = set()
    cluster.network.on_sent = lambda _: boots.add(here.transport.boot_of(3))
    cluster.run_until(lambda: not here.hellos._peer(3).unanswered)
    cluster.run_for(1_000)
    # then it is dropped, and nothing counts as restarted
    assert boots == {boot}


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
