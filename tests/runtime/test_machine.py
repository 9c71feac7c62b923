"""The two ways to build a runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from lowmark.runtime import millis_of, real_runtime
from lowmark.runtime.sim import (
    SimDisk,
    SimLoop,
    SimNetwork,
    sim_runtime,
)


def test_a_real_runtime_is_the_machine(tmp_path: Path) -> None:
    runtime = real_runtime(str(tmp_path / "data"))
    try:
        assert (tmp_path / "data").is_dir()
        runtime.disk.open("a", "create")
        assert (tmp_path / "data" / "a").exists()
        assert abs(millis_of(runtime.clock.now()) - runtime.loop.wall_ms()) < 60_000
        frames: list[object] = []
        endpoint = runtime.network.endpoint(
            "127.0.0.1:0", lambda _, frame: frames.append(frame), lambda *_: None
        )
        endpoint.send(endpoint.address, [b"x"])
        runtime.loop.run_until(lambda: frames == [b"x"])
    finally:
        runtime.loop.close()


def test_two_real_runtimes_draw_different_numbers(tmp_path: Path) -> None:
    drawn = set()
    for _ in range(2):
        runtime = real_runtime(str(tmp_path))
        drawn.add(runtime.random.getrandbits(64))
        runtime.loop.close()
    assert len(drawn) == 2


def test_a_simulated_runtime_hangs_together() -> None:
    loop = SimLoop(1)
    runtime = sim_runtime(1, loop=loop)
    assert runtime.loop is loop
    assert isinstance(runtime.network, SimNetwork)
    # its disk writes into the loop's trace, and is stamped with its clock
    before = loop.digest()
    loop.run_for(5)
    runtime.disk.open("a", "create")
    assert loop.digest() != before
    found = runtime.disk.stat("a")
    assert found is not None
    assert found.changed_ms == loop.wall_ms()
    assert millis_of(runtime.clock.now()) == loop.wall_ms()


def test_a_disk_that_outlived_a_crash_goes_on_by_the_new_clock() -> None:
    old = SimDisk()
    old.open("a", "create")
    old.sync_dir("")
    loop = SimLoop(2, start_ms=7_000_000)
    runtime = sim_runtime(2, disk=old.crashed(Random(1)), loop=loop)
    runtime.disk.link("a", "b")
    found = runtime.disk.stat("a")
    assert found is not None
    assert found.changed_ms == 7_000_000


def test_nodes_of_one_world_share_its_loop_and_draw_their_own_numbers() -> None:
    loop = SimLoop(1)
    network = SimNetwork(loop)
    nodes = [sim_runtime(seed, loop=loop, network=network) for seed in (1, 2)]
    assert nodes[0].network is nodes[1].network
    assert nodes[0].random.getrandbits(64) != nodes[1].random.getrandbits(64)
    assert sim_runtime(1).random.getrandbits(64) == Random("node 1").getrandbits(64)


@pytest.mark.slow
def test_a_program_that_uses_lowmark_does_not_load_the_simulation() -> None:
    code = "import sys, lowmark; lowmark.open; print([m for m in sys.modules if '.sim' in m])"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert said == "[]\n"
