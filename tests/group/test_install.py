"""Giving a snapshot to a member that is too far behind: pieces, windows, and every way to fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from group.cluster import FAST, TINY_LOG, Cluster, Member
from group.kv import delete, put, value_of
from lowmark.group import GroupConfig
from lowmark.group.wire import InstallOffer, InstallOver, InstallPiece, InstallWant, Item

CONFIG = replace(
    FAST, install_piece_bytes=2_000, install_window_bytes=8_000, install_stall_ms=3_000
)


def size_of(piece: InstallPiece) -> int:
    return len(piece.state) + len(piece.live) + sum(len(e.data) for e in piece.entries)


class Watch:
    """What is sent of snapshots, as it is sent."""

    def __init__(self, cluster: Cluster) -> None:
        self.offers: list[InstallOffer] = []
        self.wants: list[InstallWant] = []
        self.pieces: list[InstallPiece] = []
        self.overs: list[InstallOver] = []
        self.times: list[float] = []
        self._cluster = cluster
        cluster.network.on_sent = self._sent

    def _sent(self, sent: object) -> None:
        for _, item in sent.items:  # type: ignore[attr-defined]
            match item:
                case InstallOffer():
                    self.offers.append(item)
                case InstallWant():
                    self.wants.append(item)
                case InstallPiece():
                    self.pieces.append(item)
                    self.times.append(self._cluster.now_ms)
                case InstallOver():
                    self.overs.append(item)
                case _:
                    pass

    @property
    def bytes(self) -> int:
        return sum(map(size_of, self.pieces))

    @property
    def entries(self) -> list[int]:
        return [entry.index for piece in self.pieces for entry in piece.entries]


def behind(
    config: GroupConfig = CONFIG, *, seed: int = 1, keys: int = 60, value_bytes: int = 500
) -> Cluster:
    """Node 3 has the first commands and is cut off; the others have gone on to a snapshot."""
    cluster = Cluster(seed, config=config, log_config=TINY_LOG)
    cluster.make_leader(1)
    cluster.propose(put("first", b"1"), put("k0", b"old"))
    cluster.wait_even()
    cluster.isolate(3)
    for i in range(keys):
        cluster.propose(put(f"k{i}", b"%03d" % i + b"x" * value_bytes), put("x", b"-"))
    cluster.propose(delete("x"))
    snapshot(cluster, 1)
    snapshot(cluster, 2)
    return cluster


def snapshot(cluster: Cluster, number: int) -> None:
    group = cluster[number].group()
    cluster.wait_even(number)
    wanted = group.applied
    group.snapshot()
    cluster.run_until(lambda: group.status().snapshot_index >= wanted)


def check_caught_up(cluster: Cluster) -> None:
    cluster.wait_even()
    rows = cluster.wait_leader().machine.rows
    for member in cluster.members.values():
        assert member.machine.rows == rows
        for key, row in rows.items():
            command = member.group().read_command(row.index)
            if key.startswith("k"):
                assert value_of(command.data).startswith(b"%03d" % int(key[1:]))
    assert not leftovers(cluster[3])


def leftovers(member: Member) -> list[str]:
    return [path for path in member.disk.tree() if "install" in path]


# -- what is sent ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("receiver", "sent"), [(1_500, [1_777]), (1_100, [1_200, 1_777])])
def test_a_receiver_gets_the_live_entries_that_it_lacks(receiver: int, sent: list[int]) -> None:
    # given live entries 100, 600, 1200 and 1777, and a snapshot at 2000
    cluster = Cluster()
    leader = cluster.make_leader(1)

    def fill(up_to: int) -> None:
        first = leader.group().last_index() + 1
        cluster.propose(
            *(
                put(f"live-{i}" if i in {100, 600, 1_200, 1_777} else "x", b"%d" % i)
                for i in range(first, up_to + 1)
            )
        )
        assert leader.group().last_index() == up_to

    fill(receiver)
    cluster.wait_even()
    # and a member that has applied so much
    cluster.isolate(3)
    fill(1_999)
    cluster.propose(delete("x"))
    snapshot(cluster, 1)
    status = leader.group().status()
    assert (status.snapshot_index, status.live_entries) == (2_000, 4)
    # when it is back
    watch = Watch(cluster)
    cluster.heal()
    cluster.wait_even()
    # then it is sent these, and can read all
    assert watch.entries == sent
    assert cluster[3].group().status().snapshot_index == 2_000
    for member in cluster.members.values():
        assert list(member.machine.live_indexes()) == [100, 600, 1_200, 1_777]
        for i in (100, 600, 1_200, 1_777):
            assert value_of(member.group().read_command(i).data) == b"%d" % i


def test_it_comes_in_pieces_and_no_more_than_was_asked_for_is_under_way() -> None:
    # given pieces of 2,000 bytes and a window of 8,000
    cluster = behind()
    watch = Watch(cluster)
    under_way, most = 0, 0

    def noted(sender: int, to: int, item: Item) -> bool:
        nonlocal under_way
        if isinstance(item, InstallPiece):
            under_way -= size_of(item)
        return False

    cluster.network.loses = noted
    original = watch._sent

    def sent(frame: object) -> None:
        nonlocal under_way, most
        original(frame)
        for _, item in frame.items:  # type: ignore[attr-defined]
            if isinstance(item, InstallPiece):
                under_way += size_of(item)
                most = max(most, under_way)

    cluster.network.on_sent = sent
    cluster.heal()
    check_caught_up(cluster)
    # then it took many pieces, none larger than that, and at most a window at a time
    assert len(watch.pieces) > 15
    assert max(map(size_of, watch.pieces)) <= 2_000
    assert 4_000 < most <= 8_000 + 2_000
    # and entries come before the state, and the state before the live set
    kinds = [0 if p.entries else 1 if p.state else 2 for p in watch.pieces]
    assert kinds == sorted(kinds)
    assert set(kinds) == {0, 1, 2}


@pytest.mark.slow
def test_an_entry_larger_than_a_piece_comes_all_the_same() -> None:
    cluster = behind(replace(CONFIG, install_piece_bytes=100, install_window_bytes=200))
    cluster.heal()
    check_caught_up(cluster)


def test_a_snapshot_without_live_entries_is_installed() -> None:
    cluster = Cluster(config=CONFIG)
    cluster.make_leader(1)
    cluster.propose(put("a", b"x"))
    cluster.wait_even()
    cluster.isolate(3)
    cluster.propose(delete("a"), *(put("b", b"x") for _ in range(10)), delete("b"))
    snapshot(cluster, 1)
    cluster.heal()
    cluster.wait_even()
    assert cluster[3].machine.rows == {}
    assert cluster[3].group().status().snapshot_index == cluster[1].group().status().snapshot_index


@pytest.mark.slow
def test_it_is_no_faster_than_its_limit() -> None:
    # given a limit of 20,000 bytes a second
    cluster = behind(replace(CONFIG, install_bytes_per_s=20_000))
    watch = Watch(cluster)
    cluster.heal()
    check_caught_up(cluster)
    # then it took as long as that, and not much longer
    took_s = (watch.times[-1] - watch.times[0]) / 1_000
    assert watch.bytes / 20_000 * 0.9 <= took_s <= watch.bytes / 20_000 * 1.5
    # though the group served all the time
    assert cluster.propose(put("y", b"1")) == [1]


@pytest.mark.slow
def test_a_limit_below_one_piece_per_stall_time_still_gets_there() -> None:
    # given pieces that are a second apart, and a receiver that gives up after three
    cluster = behind(
        replace(CONFIG, install_bytes_per_s=2_000, install_window_bytes=2_000),
        keys=10,
        value_bytes=800,
    )
    watch = Watch(cluster)
    cluster.heal()
    cluster.run_until(lambda: cluster[3].group().status().snapshot_index > 0)
    assert len({piece.session for piece in watch.pieces}) == 1
    check_caught_up(cluster)


@pytest.mark.slow
def test_a_window_that_takes_longer_than_the_stall_time_is_no_stall() -> None:
    # given a limit at which half a window takes four seconds, and a stall time of three
    config = replace(CONFIG, install_bytes_per_s=5_000, install_window_bytes=40_000)
    cluster = behind(replace(config, install_piece_bytes=500), value_bytes=300)
    watch = Watch(cluster)
    cluster.heal()
    cluster.run_until(lambda: cluster[3].group().status().snapshot_index > 0)
    assert len({piece.session for piece in watch.pieces}) == 1
    assert watch.overs == []


# -- going on after a break -----------------------------------------------------------------------


def run_until_pieces(cluster: Cluster, watch: Watch, share: float, total: int) -> None:
    cluster.run_until(lambda: watch.bytes >= share * total)


def whole_bytes(config: GroupConfig = CONFIG) -> int:
    """How much is sent when nothing goes wrong."""
    cluster = behind(config)
    watch = Watch(cluster)
    cluster.heal()
    check_caught_up(cluster)
    return watch.bytes


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_after_a_cut_connection_it_goes_on_where_it_was(share: float) -> None:
    total = whole_bytes()
    # given an installation in the middle
    cluster = behind()
    watch = Watch(cluster)
    cluster.heal()
    run_until_pieces(cluster, watch, share, total)
    # when the connection breaks for a while
    cluster.isolate(3)
    cluster.run_for(1_000)
    before = watch.bytes
    assert cluster[3].group().status().snapshot_index == 0
    cluster.heal()
    check_caught_up(cluster)
    # then what had arrived is not sent again
    window = CONFIG.install_window_bytes
    assert watch.bytes <= total + 2 * window
    assert watch.bytes - before <= (1 - share) * total + 2 * window


def test_another_leader_goes_on_where_the_first_one_was_if_it_has_the_same_snapshot() -> None:
    total = whole_bytes()
    cluster = behind()
    # Both took it at the same index, of the same state.
    assert cluster[1].group().status().snapshot_index == cluster[2].group().status().snapshot_index
    watch = Watch(cluster)
    cluster.heal()
    run_until_pieces(cluster, watch, 0.6, total)
    cluster[1].crash(killed=True)
    cluster.wait_leader(other_than=1)
    cluster.wait_even(2, 3)
    assert {offer.sender for offer in watch.offers} == {1, 2}
    assert watch.bytes <= total + 3 * CONFIG.install_window_bytes
    cluster[1].start()
    check_caught_up(cluster)


def test_lost_doubled_and_late_pieces_only_cost_time() -> None:
    cluster = behind()
    weather = cluster.network.weather
    weather.drop = weather.duplicate = weather.overtake = 0.05
    cluster.heal()
    check_caught_up(cluster)


def test_a_late_offer_of_an_older_snapshot_does_not_disturb_a_newer_one() -> None:
    # given a member that got one snapshot, and is in the middle of the next
    total = whole_bytes()
    cluster = behind()
    watch = Watch(cluster)
    cluster.heal()
    check_caught_up(cluster)
    old = watch.offers[0]
    cluster.isolate(3)
    cluster.propose(*(put(f"k{i}", b"%03d" % i + b"y" * 500) for i in range(60)))
    snapshot(cluster, 1)
    watch = Watch(cluster)
    cluster.heal()
    run_until_pieces(cluster, watch, 0.5, total)
    # when the first offer comes once more
    cluster[3].group().received(1, old)
    # then nothing has to be sent twice
    assert cluster[3].group()._receives.busy
    check_caught_up(cluster)
    assert watch.bytes <= total + 2 * CONFIG.install_window_bytes


# -- every way to fail ----------------------------------------------------------------------------


class Before:
    """What a receiver was before an installation."""

    def __init__(self, member: Member) -> None:
        status = member.group().status()
        self.applied = status.applied
        self.log = (status.first_index, status.snapshot_index)
        self.rows = dict(member.machine.rows)

    def check(self, member: Member, *, restarted: bool = False) -> None:
        status = member.group().status()
        assert (status.first_index, status.snapshot_index) == self.log
        assert status.last_index >= self.applied
        if not restarted:
            assert status.applied == self.applied
            assert member.machine.rows == self.rows
            for row in self.rows.values():
                member.group().read_command(row.index)


SHARES = [0.0, 0.3, 0.7, 0.99]


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("killed", [True, False])
def test_a_receiver_that_crashes_is_as_it_was_and_catches_up(share: float, killed: bool) -> None:
    total = whole_bytes()
    cluster = behind()
    before, watch = Before(cluster[3]), Watch(cluster)
    cluster.heal()
    run_until_pieces(cluster, watch, share, total)
    cluster[3].crash(killed=killed)
    cluster.isolate(3)
    cluster[3].start()
    before.check(cluster[3], restarted=True)
    assert not leftovers(cluster[3])
    cluster.heal()
    check_caught_up(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
def test_a_sender_that_crashes_leaves_the_receiver_as_it_was(share: float) -> None:
    total = whole_bytes()
    cluster = behind()
    # The other one has no snapshot that could be continued: it has gone on.
    before, watch = Before(cluster[3]), Watch(cluster)
    cluster.network.heal()
    run_until_pieces(cluster, watch, share, total)
    cluster[1].crash()
    cluster.isolate(3)
    cluster.run_for(CONFIG.install_stall_ms + 1_000)
    if cluster[3].group().status().snapshot_index == 0:
        before.check(cluster[3])
        assert not leftovers(cluster[3])
    cluster.heal()
    cluster[1].start()
    check_caught_up(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
def test_a_connection_that_stays_cut_ends_it_on_both_sides(share: float) -> None:
    total = whole_bytes()
    cluster = behind()
    before, watch = Before(cluster[3]), Watch(cluster)
    cluster.heal()
    run_until_pieces(cluster, watch, share, total)
    cluster.isolate(3)
    cluster.run_for(CONFIG.install_stall_ms + 1_000)
    # then the leader holds nothing for it any more, and the receiver has cleared up
    assert cluster[1].group().progress()[3].state.value != "snapshot"
    assert not cluster[1].group().log.state.holds
    if cluster[3].group().status().snapshot_index == 0:
        before.check(cluster[3])
        assert not leftovers(cluster[3])
    cluster.heal()
    check_caught_up(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
def test_a_new_leader_in_the_middle_brings_it_to_an_end(share: float) -> None:
    total = whole_bytes()
    cluster = behind()
    # and its snapshot is another one
    cluster.isolate(3)
    cluster.propose(put("k1", b"001 newer"))
    snapshot(cluster, 2)
    watch = Watch(cluster)
    cluster.heal()
    run_until_pieces(cluster, watch, share, total)
    cluster.make_leader(2)
    check_caught_up(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
def test_a_newer_snapshot_in_the_middle_brings_it_to_an_end(share: float) -> None:
    total = whole_bytes()
    cluster = behind()
    watch = Watch(cluster)
    cluster.heal()
    run_until_pieces(cluster, watch, share, total)
    # when most of what is being sent dies, and a newer snapshot says so
    cluster.propose(*(put(f"k{i}", b"%03d" % i + b"y" * 100) for i in range(60)))
    snapshot(cluster, 1)
    # then it is sent to its end, from what was held for it, or begun anew
    check_caught_up(cluster)


FAULTS: dict[str, Callable[[Member], None]] = {
    "a segment can't be made": lambda m: m.disk.fail_next("create", "installing/"),
    "the folder can't be made": lambda m: m.disk.fail_next("mkdir", "installing"),
    "no space": lambda m: m.disk.fail_next("space", "installing/"),
    "a write fails": lambda m: m.disk.fail_next("write", "installing/"),
    "a sync fails": lambda m: m.disk.fail_next("datasync", "installing/"),
    "a folder's sync fails": lambda m: m.disk.fail_next("sync_dir", "installing"),
    "the rename fails": lambda m: m.disk.fail_next("rename", "installed"),
    "it can't be linked in": lambda m: m.disk.fail_next("link", "groups/g/"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_receiver_whose_disk_fails_is_as_it_was_and_catches_up_later(fault: str) -> None:
    cluster = behind()
    before = Before(cluster[3])
    seen: list[bool] = []
    FAULTS[fault](cluster[3])
    group = cluster[3].group()
    cluster.heal()

    def look() -> bool:
        if not seen and not cluster[3].disk._faults:
            seen.append(True)
            if group.status().snapshot_index == 0:
                before.check(cluster[3])
        return bool(seen)

    cluster.run_until(look)
    check_caught_up(cluster)
    assert not group.status().stopped


@pytest.mark.slow
def test_a_full_disk_at_the_receiver_refuses_by_name_and_it_catches_up_with_room() -> None:
    cluster = behind()
    before = Before(cluster[3])
    disk = cluster[3].disk
    disk.capacity_bytes = disk._used_bytes + 8_000
    watch = Watch(cluster)
    cluster.heal()
    cluster.run_for(10_000)
    # then it is not tried with every heartbeat,
    assert 10 <= len(watch.offers) <= 40
    # it is as it was, and the others serve
    before.check(cluster[3])
    assert cluster.propose(put("y", b"1")) == [1]
    disk.capacity_bytes = None
    check_caught_up(cluster)


def test_a_refusal_is_told_to_the_sender_by_name() -> None:
    cluster = behind()
    group = cluster[3].group()
    watch = Watch(cluster)
    # given a receiver that does not know the version of the machine
    cluster[3].machine.newest_version = 0
    cluster.heal()
    cluster.run_until(lambda: bool(watch.wants))
    assert "needs version 1" in watch.wants[0].refused
    assert "needs version 1" in group.status().install_refused
    assert cluster[1].group().status().peers[1].node == 3
    # when it does
    cluster[3].machine.newest_version = 1
    check_caught_up(cluster)
    assert group.status().install_refused == ""


# -- stalls ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_receiver_that_never_answers_is_given_up_and_tried_again() -> None:
    # given a receiver that answers heartbeats, but whose wants are lost
    cluster = behind()
    watch = Watch(cluster)
    lost = 0

    def loses(sender: int, to: int, item: Item) -> bool:
        nonlocal lost
        lost += isinstance(item, InstallWant)
        return isinstance(item, InstallWant)

    cluster.network.loses = loses
    cluster.heal()
    cluster.run_for(4 * CONFIG.install_stall_ms)
    # then the leader gives up, and offers it again: it does not wait for ever
    assert len({offer.session for offer in watch.offers}) >= 2
    assert watch.overs
    cluster.network.loses = None
    check_caught_up(cluster)


@pytest.mark.slow
def test_a_sender_that_falls_silent_is_given_up_by_the_receiver() -> None:
    cluster = behind()
    watch = Watch(cluster)
    before = Before(cluster[3])

    def loses(sender: int, to: int, item: Item) -> bool:
        return isinstance(item, InstallPiece) and len(watch.pieces) > 8

    cluster.network.loses = loses
    cluster.heal()
    cluster.run_until(lambda: cluster[3].group()._receives.busy)
    cluster.run_until(lambda: not cluster[3].group()._receives.busy)
    before.check(cluster[3])
    cluster.network.loses = None
    check_caught_up(cluster)


def test_a_member_whose_snapshot_is_lost_on_the_way_does_not_stay_in_that_state() -> None:
    # given that the very offer is lost, and so are all repetitions for a while
    cluster = behind()

    def loses(sender: int, to: int, item: Item) -> bool:
        return isinstance(item, InstallOffer)

    cluster.network.loses = loses
    cluster.heal()
    cluster.run_for(500)
    assert cluster[1].group().progress()[3].state.value == "snapshot"
    cluster.network.loses = None
    check_caught_up(cluster)
    cluster.run_for(100)
    assert cluster[1].group().progress()[3].state.value == "replicate"


# -- what it means for others ---------------------------------------------------------------------


def test_the_progress_of_an_installation_can_be_watched() -> None:
    cluster = behind(replace(CONFIG, install_bytes_per_s=20_000))
    cluster.heal()
    leader = cluster[1]
    cluster.run_until(lambda: leader.group().progress()[3].state.value == "snapshot")
    seen = []
    for _ in range(10):
        cluster.run_for(100)
        (peer,) = (p for p in leader.group().status().peers if p.node == 3)
        seen.append(peer.installing_bytes)
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
    check_caught_up(cluster)


def test_a_member_that_was_installed_to_starts_again_from_there() -> None:
    cluster = behind()
    cluster.heal()
    check_caught_up(cluster)
    cluster[3].crash()
    cluster[3].start()
    check_caught_up(cluster)
    cluster.make_leader(3)
    assert cluster.propose(put("y", b"1")) == [1]


def test_entries_that_nobody_else_has_do_not_survive_an_installation() -> None:
    # given a leader that is cut off with entries that nobody else has
    cluster = Cluster(config=CONFIG, log_config=TINY_LOG)
    cluster.make_leader(3)
    cluster.propose(put("k0", b"000"))
    cluster.wait_even()
    cluster.isolate(3)
    for i in range(30):
        cluster[3].group().propose(put(f"lost-{i}", b"x"))
    cluster.run_for(50)
    assert cluster[3].group().status().last_index > 30
    # when the others go on far beyond, and take snapshots
    cluster.wait_leader(other_than=3)
    cluster.propose(*(put(f"k{i}", b"%03d" % i) for i in range(50)))
    for number in (1, 2):
        snapshot(cluster, number)
    cluster.heal()
    # then it has what they have, and nothing of its own
    check_caught_up(cluster)
    assert not [key for key in cluster[3].machine.rows if key.startswith("lost")]
    cluster[3].crash()
    cluster[3].start()
    check_caught_up(cluster)
