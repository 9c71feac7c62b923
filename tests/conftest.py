"""Hypothesis profiles: `ci` finds the same thing every time; `long` goes looking, by hand:
`HYPOTHESIS_PROFILE=long make test`.

And Ctrl-C: a suite that was started in the background, or by `nohup`, ignores SIGINT. Every process
that it starts would inherit that, and the tests that interrupt one would wait for ever.
"""

from __future__ import annotations

import os
import signal

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
