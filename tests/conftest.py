"""Hypothesis profiles: `ci` finds the same thing every time; `long` goes looking, by hand:
`HYPOTHESIS_PROFILE=long make test`.

And Ctrl-C: a suite that was started in the background, or by `nohup`, ignores SIGINT. Every process
that it starts would inherit that, and the tests that interrupt one would wait for ever.

And groups: from pytest 9.2 on, pytest-xdist 3.8 does not see which group a test is of, and says
nothing (pytest-xdist issue 1386). Every process would then start a Spark session of its own.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Slow machines must not fail a test, so there is no deadline; pytest-timeout catches what hangs.
settings.register_profile(
    "ci",
    max_examples=100,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long",
    max_examples=5_000,
    stateful_step_count=100,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the name of a test end with its group, by which pytest-xdist tells it, if it does not."""
    if not getattr(config.option, "loadgroup", False):
        return
    item: Any
    for item in items:
        for mark in item.iter_markers("xdist_group"):
            if not item.nodeid.endswith(f"@{mark.args[0]}"):
                item._id = item.id.parse(f"{item.nodeid}@{mark.args[0]}")
