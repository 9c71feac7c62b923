"""One seed, one life: the whole log repeats itself, disk call by disk call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

LIFE = """
import sys
allocated = [object() for _ in range(int(sys.argv[2]))]
from random import Random
from log.life import LogLife
dice, life, digests = Random(int(sys.argv[1])), LogLife(seed=int(sys.argv[1])), []
for _ in range(60):
    step = life.any_step(dice)
    digests.append(step + " " + life.world.runtime.loop.digest())
print("\\n".join(digests))
"""


def live(seed: int, *, hash_seed: int, allocated: int) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", LIFE, str(seed), str(allocated)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, pytest.param(14, marks=pytest.mark.release)])
def test_one_seed_gives_one_trace_in_any_process(seed: int) -> None:
    # given two fresh processes with other hash seeds and other numbers of objects
    one = live(seed, hash_seed=1, allocated=10)
    other = live(seed, hash_seed=4242, allocated=100_003)
    # then the same things happen at the same virtual times, disk calls included
    assert one == other
    assert len(one.splitlines()) == 60


@pytest.mark.slow
def test_another_seed_gives_another_trace() -> None:
    assert live(3, hash_seed=1, allocated=10) != live(4, hash_seed=1, allocated=10)
