"""One budget for all that a node sends to members that catch up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest

from group.cluster import FAST, TINY_LOG, Cluster, Member, Sent
from group.kv import put
from lowmark.errors import Rejected
from lowmark.group import ChangeAnswer, GroupConfig, Stage, Throttle, wire
from lowmark.group.wire import InstallPiece
from lowmark.raft import Append, Heartbeat
from lowmark.runtime.sim import SimLoop

CONFIG = replace(
    FAST,
    near_entries=5,
    near_bytes=100_000,  # more than a group has: what is in the log goes as entries
    install_stall_ms=3_000,
    catch_up_stall_ms=3_000,
)
NAMES = ("a", "b", "c")


# -- the budget by itself -------------------------------------------------------------------------


class Stream:
    """Sends pieces as large as it may, until it has sent so much."""

    def __init__(self, loop: SimLoop, throttle: Throttle, size: int) -> None:
        self.loop, self.throttle, self.left = loop, throttle, size
        self.sent: list[tuple[float, int]] = []
        throttle.wait(self.turn)

    def turn(self) -> int:
        size = min(self.left, self.throttle.piece_bytes(1_000))
        self.left -= size
        self.sent.append((self.loop.elapsed_us() / 1_000, size))
        if self.left:
            self.throttle.wait(self.turn)
        return size


def budget(rate: int) -> tuple[SimLoop, Throttle]:
    loop = SimLoop(1)
    return loop, Throttle(loop.elapsed_us, loop.call_later, bytes_per_s=rate, round_ms=100)


def most_in_a_second(sent: list[tuple[float, int]]) -> int:
    """The most bytes in any stretch of a second."""
    window: deque[tuple[float, int]] = deque()
    most = size = 0
    for at, piece in sorted(sent):
        window.append((at, piece))
        size += piece
        while window[0][0] <= at - 1_000:
            size -= window.popleft()[1]
        most = max(most, size)
    return most


def test_without_a_limit_all_is_sent_at_once() -> None:
    loop, throttle = budget(0)
    streams = [Stream(loop, throttle, 50_000) for _ in range(3)]
    assert [stream.left for stream in streams] == [0, 0, 0]
    assert loop.elapsed_us() == 0


def test_streams_share_the_rate_and_take_turns() -> None:
    loop, throttle = budget(10_000)
    streams = [Stream(loop, throttle, 20_000) for _ in range(3)]
    loop.run_until(lambda: not any(stream.left for stream in streams))
    sent = [one for stream in streams for one in stream.sent]
    assert 5_900 <= loop.elapsed_us() / 1_000 <= 6_100
    assert 9_000 <= most_in_a_second(sent) <= 10_000 + 1_000
    # and each of them was through at about the same time
    assert min(stream.sent[-1][0] for stream in streams) > 5_500
    assert throttle.sent_bytes == 60_000


def test_time_in_which_nothing_was_sent_is_not_saved_up() -> None:
    loop, throttle = budget(10_000)
    loop.run_for(60_000)
    stream = Stream(loop, throttle, 20_000)
    loop.run_until(lambda: not stream.left)
    assert most_in_a_second(stream.sent) <= 11_000


@pytest.mark.parametrize(
    ("rate", "took_ms"), [(0, 0), (100_000, 800), (5_000, 16_000), (1_000, 80_000)]
)
def test_a_new_rate_counts_at_once(rate: int, took_ms: int) -> None:
    # given 100,000 bytes, of which a second took 20,000
    loop, throttle = budget(20_000)
    stream = Stream(loop, throttle, 100_000)
    loop.run_for(1_000)
    assert 19_000 <= 100_000 - stream.left <= 22_100
    throttle.bytes_per_s = rate
    began = loop.elapsed_us() / 1_000
    loop.run_until(lambda: not stream.left, timeout_ms=200_000)
    assert took_ms * 0.95 <= loop.elapsed_us() / 1_000 - began <= took_ms * 1.05 + 1


def test_a_rate_below_zero_is_refused() -> None:
    _, throttle = budget(0)
    with pytest.raises(Rejected):
        throttle.bytes_per_s = -1


# -- groups ---------------------------------------------------------------------------------------


def is_moved(item: object) -> bool:
    return isinstance(item, InstallPiece) or (isinstance(item, Append) and bool(item.entries))


class Moves:
    """What node 1 sends to node 4 of entries and snapshots."""

    def __init__(self, cluster: Cluster) -> None:
        self.sent: list[tuple[float, int]] = []
        self.kinds: set[type] = set()
        cluster.network.on_sent = self._sent

    def _sent(self, sent: Sent) -> None:
        if (sent.sender, sent.to) != (1, 4):
            return
        moved = [item for _, item in sent.items if is_moved(item)]
        if moved:
            self.kinds |= {type(item) for item in moved}
            self.sent.append((sent.at_ms, sum(map(wire.item_bytes, moved))))

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.sent)


def three_groups(config: GroupConfig = CONFIG, *, nodes: int = 3, keys: int = 60) -> Cluster:
    """Three groups that node 1 leads, one with all in a snapshot; node 4 has empty copies."""
    cluster = Cluster(nodes=nodes, spare=4 - nodes, config=config, log_config=TINY_LOG, group="")
    for name in NAMES:
        for number in range(1, nodes + 1):
            cluster[number].create(name, range(1, nodes + 1))
        cluster.make_leader(1, name)
        for i in range(keys):
            cluster.propose(put(f"k{i}", b"x" * 1_000), name=name)
        cluster.wait_even(name=name)
        cluster[4].create(name)
    group = cluster[1].group("c")
    group.snapshot()
    cluster.run_until(lambda: group.status().snapshot_index > keys - 10)
    return cluster


def move(cluster: Cluster) -> None:
    for name in NAMES:
        group = cluster[1].group(name)
        answer = group.change_peers(group.term, 1, [1, 2, 3, 4])
        assert answer is ChangeAnswer.RECEIVED


def moved(cluster: Cluster) -> Callable[[], bool]:
    listeners = [cluster[1].listeners[name] for name in NAMES]
    return lambda: all(listener.committed or listener.errors for listener in listeners)


def check(cluster: Cluster) -> None:
    for name in NAMES:
        assert cluster[1].listeners[name].errors == []
        cluster.wait_even(1, 4, name=name)
        assert cluster[4].machines[name].rows == cluster[1].machines[name].rows


@pytest.mark.slow
def test_three_moves_from_a_node_share_its_limit() -> None:
    cluster = three_groups()
    moves = Moves(cluster)
    cluster[1].here.throttle.bytes_per_s = 20_000
    began = cluster.now_ms
    move(cluster)
    cluster.run_until(moved(cluster))
    # then they took as long as they must, and no second had more
    took_s = (cluster.now_ms - began) / 1_000
    assert moves.kinds == {Append, InstallPiece}
    assert moves.bytes > 180_000
    assert took_s >= moves.bytes / 20_000 * 0.9
    assert took_s <= moves.bytes / 20_000 * 1.2 + 1
    assert most_in_a_second(moves.sent) <= 20_000 * 1.15
    check(cluster)


@pytest.mark.slow
def test_a_limit_that_changes_on_the_way_counts_at_once() -> None:
    cluster = three_groups()
    throttle = cluster[1].here.throttle
    moves = Moves(cluster)
    throttle.bytes_per_s = 40_000
    move(cluster)
    cluster.run_for(1_500)
    # lower
    throttle.bytes_per_s = 4_000
    sent = moves.bytes
    cluster.run_for(5_000)
    assert 12_000 <= moves.bytes - sent <= 4_000 * 5 + 3_000
    # none
    throttle.bytes_per_s = 0
    began = cluster.now_ms
    cluster.run_until(moved(cluster))
    assert cluster.now_ms - began < 1_000
    check(cluster)


@pytest.mark.slow
def test_a_limit_that_is_set_on_the_way_counts_at_once() -> None:
    # given moves that a window of one message slows down
    cluster = three_groups(replace(CONFIG, message_bytes_max=4_000, inflight_bytes_max=4_000))
    throttle = cluster[1].here.throttle
    throttle.bytes_per_s = 200_000
    moves = Moves(cluster)
    move(cluster)
    cluster.run_for(300)
    throttle.bytes_per_s = 5_000
    sent, at = moves.bytes, len(moves.sent)
    cluster.run_for(5_000)
    assert moves.bytes - sent <= 5_000 * 5 + 3_000
    assert most_in_a_second(moves.sent[at:]) <= 5_000 * 1.5
    throttle.bytes_per_s = 0
    cluster.run_until(moved(cluster))
    check(cluster)


@pytest.mark.slow
def test_voters_are_served_as_if_nothing_was_moved() -> None:
    # given how long a command takes
    cluster = three_groups()

    def took_ms() -> float:
        began = cluster.now_ms
        cluster.propose(put("y", b"x" * 3_000), name="a")
        return cluster.now_ms - began

    before = max(took_ms() for _ in range(20))
    # when moves have hardly any budget
    cluster[1].here.throttle.bytes_per_s = 2_000
    move(cluster)
    cluster.run_for(1_000)
    during = [took_ms() for _ in range(20)]
    # then commands take as long, and heartbeats come in time
    assert max(during) <= before * 1.5
    beats = [0]

    def noted(sent: Sent) -> None:
        to_learner = (sent.sender, sent.to) == (1, 4)
        beats[0] += to_learner and any(isinstance(item, Heartbeat) for _, item in sent.items)

    cluster.network.on_sent = noted
    cluster.run_for(1_000)
    assert beats[0] >= 1_000 / FAST.tick_ms * 0.8
    cluster[1].here.throttle.bytes_per_s = 0
    cluster.run_until(moved(cluster))
    check(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [pytest.param(300, marks=pytest.mark.release), 1_500])
def test_a_move_that_is_slowed_down_is_no_stall(rate: int) -> None:
    # given entries that take longer than both stall times, one for each move
    cluster = three_groups(keys=4)
    cluster[1].here.throttle.bytes_per_s = rate
    move(cluster)
    cluster.run_until(moved(cluster), timeout_ms=600_000)
    check(cluster)


@pytest.mark.slow
def test_a_member_that_is_dead_stalls_however_slow_a_move_is() -> None:
    cluster = three_groups()
    cluster[1].here.throttle.bytes_per_s = 1_000
    move(cluster)
    cluster.run_for(2_000)
    cluster[4].crash()
    cluster.run_until(moved(cluster))
    assert all(cluster[1].listeners[name].errors for name in NAMES)


@pytest.mark.slow
def test_a_learner_that_has_all_gets_what_is_new_at_once() -> None:
    # given a learner for good, and a budget that another move uses up
    cluster = three_groups()
    group = cluster[1].group("a")
    group.change_peers(group.term, 1, [1, 2, 3], learners=[4])
    cluster.wait_even(4, name="a")
    cluster[1].here.throttle.bytes_per_s = 2_000
    cluster.propose(put("y", b"1"), name="a")
    cluster.wait_even(4, name="a")
    other = cluster[1].group("b")
    other.change_peers(other.term, 1, [1, 2, 3, 4])
    cluster.run_for(2_000)
    began = cluster.now_ms
    for _ in range(10):
        cluster.propose(put("y", b"x" * 1_000), name="a")
    cluster.wait_even(4, name="a")
    assert cluster.now_ms - began < 500
    assert other.status().stage is Stage.CATCHING_UP


def leading(cluster: Cluster) -> Member:
    cluster[1].here.throttle.bytes_per_s = 5_000
    move(cluster)
    held = cluster[1].group("a")._leadership.held
    cluster.run_until(lambda: held.holds(4))
    return cluster[1]


def test_what_waits_ends_with_leadership_and_the_next_leader_goes_on() -> None:
    cluster = three_groups()
    leader = leading(cluster)
    held = leader.group("a")._leadership.held
    cluster.make_leader(2, "a")
    assert not held.holds(4)
    group = cluster[2].group("a")
    group.change_peers(group.term, 2, [1, 2, 3, 4])
    cluster.run_until(lambda: bool(cluster[2].listeners["a"].committed))
    cluster[1].here.throttle.bytes_per_s = 0
    cluster.run_until(lambda: cluster[4].group("a").applied == group.last_index())
    assert cluster[4].machines["a"].rows == cluster[2].machines["a"].rows


@pytest.mark.slow
def test_what_waits_is_dropped_with_the_learner() -> None:
    cluster = three_groups()
    leader = leading(cluster)
    group = leader.group("a")
    assert group.cancel_change_peers()
    cluster.run_until(lambda: group.status().learners == ())
    assert not group._leadership.held.holds(4)
    # and it may be tried again
    group.change_peers(group.term, 2, [1, 2, 3, 4])
    leader.here.throttle.bytes_per_s = 0
    cluster.run_until(moved(cluster))
    check(cluster)


@pytest.mark.slow
def test_what_waits_for_a_learner_goes_at_once_when_it_is_a_voter() -> None:
    # given a learner that is near as soon as it has what there was when its move began, and new
    # entries that wait for their turn behind that: a minute's worth of the budget
    cluster = three_groups(replace(CONFIG, near_entries=1_000, near_bytes=1 << 20), keys=10)
    cluster[1].here.throttle.bytes_per_s = 3_000
    move(cluster)
    group, listener = cluster[1].group("a"), cluster[1].listeners["a"]
    for i in range(60):
        cluster.propose(put(f"new{i}", b"x" * 1_000), name="a")
    cluster.run_until(lambda: bool(listener.asked))
    assert group._leadership.held.holds(4)
    assert cluster[4].group("a").last_index() < group.last_index() - 40
    # when it is a voter
    sent = cluster.network.watch()
    cluster.run_until(lambda: 4 in group.status().voters)
    # then it has all of it soon, and by what waited: no entry is sent again
    began = cluster.now_ms
    cluster.wait_even(1, 4, name="a")
    assert cluster.now_ms - began < 1_000
    appends = [item for one in sent if one.to == 4 for name, item in one.items if name == "a"]
    entries = [
        entry.index for item in appends if isinstance(item, Append) for entry in item.entries
    ]
    assert entries == list(range(entries[0], group.last_index() + 1))
    cluster[1].here.throttle.bytes_per_s = 0
    cluster.run_until(moved(cluster))
    check(cluster)
