"""Many worlds of a few hundred events each; see `walk`.

`LOWMARK_SIM_SEEDS=5000 pytest tests/raft/test_random_walk.py` runs more of them, `SEED=17` one.
"""

from __future__ import annotations

import os

import pytest

from raft.walk import Walk

STEPS = 800
SEEDS = (
    [int(os.environ["SEED"])]
    if "SEED" in os.environ
    else list(range(int(os.environ.get("LOWMARK_SIM_SEEDS", "100"))))
)
SEEDS_PER_TEST = 10


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS[::SEEDS_PER_TEST])
def test_a_cluster_keeps_its_promises_whatever_happens(first: int) -> None:
    for seed in SEEDS[SEEDS.index(first) :][:SEEDS_PER_TEST]:
        walk = Walk(seed)
        try:
            walk.run(STEPS)
            assert walk.settle(), "no leader, or somebody does not follow"
        except Exception as error:
            error.add_note(f"seed {seed}: SEED={seed} pytest tests/raft/test_random_walk.py")
            raise
