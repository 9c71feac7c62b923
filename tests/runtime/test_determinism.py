"""One seed gives one trace, in any process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ONE_WORLD = Path(__file__).with_name("one_world.py")


def story(seed: int, *, hash_seed: int, objects: int) -> str:
    """What a fresh process makes of a seed.

    `objects` are allocated before, so that addresses, and with them any order by `id()`, differ.
    """
    return subprocess.run(
        [sys.executable, str(ONE_WORLD), str(seed), str(objects)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.slow
def test_one_seed_gives_one_trace_in_fresh_processes() -> None:
    first = story(17, hash_seed=1, objects=0)
    assert first == story(17, hash_seed=2, objects=12_345)
    # and it was no empty story
    assert int(first.splitlines()[1]) > 50
    assert "the network is cut" in first
    assert "names kept" in first


@pytest.mark.slow
def test_another_seed_gives_another_trace() -> None:
    stories = {story(seed, hash_seed=1, objects=0).splitlines()[0] for seed in (17, 18, 19)}
    assert len(stories) == 3
