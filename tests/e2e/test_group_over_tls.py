"""Three nodes that speak mutual TLS to each other, on real sockets and disks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from group.kv import KvMachine, put
from lowmark.group import Group, GroupConfig, Groups
from lowmark.log import Log
from lowmark.runtime import RealDisk, RealLoop, RealNetwork, TlsFiles, real_runtime
from runtime.certificates import Authority

CONFIG = GroupConfig(tick_ms=20, election_ticks=10)


@pytest.mark.slow
def test_a_group_works_over_tls_and_a_stranger_is_kept_out(tmp_path: Path) -> None:
    # given three nodes whose certificates one authority has signed, and one of another authority
    runtime = real_runtime(str(tmp_path))
    loop = runtime.loop
    assert isinstance(loop, RealLoop)

    def authority(name: str) -> Authority:
        (tmp_path / name).mkdir()
        return Authority(tmp_path / name)

    ours, other = authority("ours"), authority("other")

    def node(number: int, tls: TlsFiles) -> tuple[Log, Groups]:
        folder = tmp_path / f"n{number}"
        folder.mkdir()
        network = RealNetwork(loop, random=Random(number), tls=tls)
        mine = replace(runtime, disk=RealDisk(str(folder)), network=network, random=Random(number))
        log = Log.open(mine)
        return log, Groups(mine, log, node=number, address="127.0.0.1:0", config=CONFIG)

    nodes = {number: node(number, ours.files("127.0.0.1")) for number in (1, 2, 3)}
    nodes[9] = node(9, other.files("127.0.0.1"))
    for _, groups in nodes.values():
        for number, (_, others) in nodes.items():
            if number != groups.node:
                groups.transport.learn(number, others.transport.address)
    found: list[Group] = [
        nodes[number][1].create("g", KvMachine(), members=[1, 2, 3]) for number in (1, 2, 3)
    ]
    stranger = nodes[9][1].create("g", KvMachine(), members=[1, 2, 3, 9])

    # when one of them leads
    loop.run_until(lambda: any(group.ready for group in found))
    leader = next(group for group in found if group.ready)
    answer = leader.propose(put("a", b"1"))
    loop.run_until(lambda: answer.done)

    # then all have what it was given
    assert answer.result() == 1
    loop.run_until(lambda: all(group.read_local("a") is not None for group in found))
    # and the stranger was heard by nobody
    assert not stranger.ready
    assert stranger.read_local("a") is None
    cut = nodes[9][1].transport.last_cut
    loop.run_until(lambda: len(cut) > 0)

    for log, groups in nodes.values():
        groups.close()
        log.close()
    loop.close()
