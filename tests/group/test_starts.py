"""Starts that are counted, kept and compared."""

from __future__ import annotations

from random import Random

import pytest

from lowmark.errors import LowmarkError
from lowmark.group.starts import ASIDE, DAMAGED, PATH, Start, Starts, StartsNote, Verdict, judge
from lowmark.log.files import read_note
from lowmark.runtime.sim import SimDisk
from lowmark.runtime.sim.disk import WorldStopped


def starts(disk: SimDisk, *, node: int = 2, seed: int = 1) -> Starts:
    dice = Random(seed)
    return Starts(disk, node=node, draw=lambda: dice.getrandbits(62))


@pytest.mark.parametrize(
    ("claimed", "known", "verdict"),
    [
        (Start(1, 7), None, Verdict.NEW),
        (Start(6, 7), Start(5, 9), Verdict.NEW),
        (Start(9, 7), Start(5, 9), Verdict.NEW),  # starts that no node heard of
        (Start(6, 7), Start(6, 7), Verdict.SAME),
        (Start(6, 7), Start(6, 8), Verdict.OLDER),  # two directories that were one
        (Start(5, 7), Start(6, 7), Verdict.OLDER),
        (Start(0, 0), Start(1, 7), Verdict.OLDER),  # an empty directory of a node that had one
        (Start(6, 9, (7, 8)), Start(6, 8, (7,)), Verdict.NEW),
        (Start(6, 9, (7, 8)), Start(6, 7, (8, 9)), Verdict.SAME),
        (Start(6, 9, (7,)), Start(6, 8, (7,)), Verdict.OLDER),  # two that go on from one start
    ],
)
def test_a_start_is_compared_with_the_last_one_that_is_known(
    claimed: Start, known: Start | None, verdict: Verdict
) -> None:
    assert judge(claimed, known) is verdict


def test_each_process_of_a_directory_counts_once() -> None:
    disk = SimDisk()
    one = starts(disk)
    one.count()
    one.count()
    assert one.own.number == 1
    one.was_heard()
    two = starts(disk, seed=2)
    two.count()
    assert two.own.number == 2
    assert two.own.id != one.own.id
    assert two.own.before == ()


def test_a_start_that_was_not_heard_of_is_followed_by_one_of_the_same_number() -> None:
    # given a start that its node does not know to be heard of, though one node has kept it
    disk = SimDisk()
    one = starts(disk)
    one.count()
    # when the next ones begin
    two, three = starts(disk, seed=2), None
    two.count()
    three = starts(disk, seed=3)
    three.count()
    # then they are known as its successors
    assert three.own.number == 1
    assert three.own.before == (one.own.id, two.own.id)
    assert judge(three.own, one.own) is Verdict.NEW
    # and as those of no other directory's
    assert judge(three.own, Start(1, 5)) is Verdict.OLDER
    # and there is an end to how many are kept
    for seed in range(100):
        starts(disk, seed=seed + 4).count()
    last = starts(disk, seed=200)
    last.count()
    assert len(last.own.before) == 64
    assert judge(last.own, one.own) is Verdict.NEW


def test_what_is_heard_is_kept_over_a_restart_and_never_goes_back() -> None:
    disk = SimDisk()
    one = starts(disk)
    one.count()
    assert one.heard([(1, Start(5, 50)), (3, Start(2, 20))]) == (0, {1, 3})
    before = one.revision
    # what is old, and another start of the same number that its node claims, changes nothing
    assert one.heard([(1, Start(4, 40)), (3, Start(2, 21))], of=3) == (0, set())
    assert one.revision == before
    again = starts(disk)
    assert again.known(1) == Start(5, 50)
    assert again.known(3) == Start(2, 20)
    assert again.known(4) is None


def test_all_starts_of_one_number_are_kept_whichever_node_told_of_them() -> None:
    # given a start of 2 that this node has heard of from it
    one = starts(SimDisk(), node=3)
    one.count()
    one.heard([(2, Start(7, 70))], of=2)
    # when another node knows one that followed, and 2 has none of that
    before = one.revision
    assert one.heard([(2, Start(7, 71))], of=1) == (0, {2})
    assert one.revision > before
    # then a claim has to name both
    known = one.known(2)
    assert judge(Start(7, 72, (70,)), known) is Verdict.OLDER
    assert judge(Start(7, 71, (70,)), known) is Verdict.SAME
    assert judge(Start(7, 72, (70, 71)), known) is Verdict.NEW
    assert judge(Start(8, 80), known) is Verdict.NEW
    # and a claim that is not believed does not count
    assert one.heard([(2, Start(7, 72, (70,)))], of=2) == (0, set())
    assert one.known(2) == known


def test_nodes_come_to_keep_the_same_of_many_starts_of_one_number() -> None:
    # given more starts of one number than any directory can name
    told = [Start(7, 100 - n) for n in range(100)]
    nodes = [starts(SimDisk(), node=3) for _ in range(3)]
    for seed, one in enumerate(nodes):
        one.count()
        Random(seed).shuffle(told)
        for start in told:
            one.heard([(2, start)], of=1)
    found = [one.known(2) for one in nodes]
    # then all keep as many as no directory can name, and have nothing to tell each other
    assert found[0] is not None
    assert found[0] == found[1] == found[2]
    assert len(found[0].ids) == 66
    assert nodes[1].heard([(2, found[0])], of=1) == (0, set())


def test_a_node_hears_of_its_own_later_start_that_its_directory_is_older() -> None:
    disk = SimDisk()
    one = starts(disk)
    one.count()
    own = one.own
    assert one.heard([(2, own)]) == (0, set())
    assert one.heard([(2, Start(own.number, own.id ^ 1))]) == (own.number, set())
    assert one.heard([(2, Start(7, 1)), (2, Start(9, 1))]) == (9, set())


def test_a_start_above_all_that_is_known_follows_when_copies_are_in_doubt() -> None:
    disk = SimDisk()
    one = starts(disk)
    one.count()
    one.is_older_than(7)
    assert one.lost == 7
    one.note_lost()
    # a later process knows it, and has not another start yet that others would believe
    two = starts(disk, seed=2)
    two.count()
    assert two.lost == 7
    two.begin_anew()
    assert two.own.number == 8
    assert (two.lost, two.unsettled, two.older_than) == (0, True, 7)
    two.settle()
    two.all_is_well()
    three = starts(disk)
    assert (three.lost, three.unsettled, three.older_than) == (0, False, 0)


def test_a_disk_that_fails_does_not_let_an_older_directory_speak() -> None:
    disk = SimDisk()
    one = starts(disk)
    one.count()
    one.is_older_than(7)
    disk.fail_next("rename", PATH)
    with pytest.raises(LowmarkError):
        one.note_lost()
    assert one.lost == 7
    one.note_lost()
    assert starts(disk).lost == 7


def test_a_damaged_note_is_put_aside_and_counting_begins_anew() -> None:
    # given a directory that was started often
    disk = SimDisk()
    for _ in range(3):
        one = starts(disk)
        one.count()
        one.was_heard()
    disk.flip_bit(PATH, 40)
    # when its note is damaged
    one = starts(disk)
    one.count()
    # then others, who know its start 3, take the directory for older
    assert one.own.number == 1
    assert judge(one.own, Start(3, 1)) is Verdict.OLDER
    assert disk.stat(DAMAGED) is not None


def test_a_directory_of_a_release_before_begins_at_one() -> None:
    one = starts(SimDisk())
    assert one.own == Start(0, 0)
    assert one.lost == 0
    one.count()
    assert judge(one.own, None) is Verdict.NEW


STEPS = ["count", "heard", "lost", "anew", "settle"]


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_disk_call_leaves_the_note_as_it_was_or_as_it_is_to_be(step: str) -> None:
    def prepared() -> tuple[SimDisk, Starts]:
        disk = SimDisk()
        one = starts(disk)
        one.count()
        one.heard([(1, Start(5, 50))])
        if step in {"anew", "settle"}:
            one.is_older_than(7)
            one.note_lost()
        if step == "settle":
            one.begin_anew()
        two = starts(disk, seed=2)
        if step != "count":
            two.counted = True  # the process goes on
        return disk, two

    def act(one: Starts) -> None:
        match step:
            case "count":
                one.count()
            case "heard":
                one.heard([(1, Start(6, 60)), (3, Start(1, 10))])
            case "lost":
                one.is_older_than(9)
                one.note_lost()
            case "anew":
                one.begin_anew()
            case _:
                one.settle()

    def kept(disk: SimDisk) -> StartsNote:
        return read_note(disk, PATH, StartsNote)

    disk, one = prepared()
    before = kept(disk)
    first = disk.calls
    act(one)
    after, calls = kept(disk), disk.calls - first
    assert before != after
    assert calls > 3
    outcomes = set()
    for at in range(calls):
        disk, one = prepared()
        disk.stop_at_call = disk.calls + at + 1
        with pytest.raises(WorldStopped):
            act(one)
        for image in disk.crash_images(Random(at)):
            left = image.disk
            note = kept(left)
            assert note in (before, after)
            outcomes.add(note == after)
            # and the next process reads it, whatever is left beside it
            next_one = starts(left, seed=3)
            next_one.count()
            assert next_one.own != Start(before.number, before.id)
            assert left.stat(ASIDE) is None
    assert outcomes == {True, False}
