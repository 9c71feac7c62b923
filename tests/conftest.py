"""Hypothesis profiles: `ci` finds the same thing every time; `long` goes looking, by hand:
`HYPOTHESIS_PROFILE=long make test`.
"""

from __future__ import annotations

import os

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
