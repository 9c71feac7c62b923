"""One Spark session for all tests of a process that need one: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lowmark.spark import SparkRunner, open_session
from lowmark.spark.archive import SWITCH
from spark.jobs import ON_WORKERS


@pytest.fixture(scope="session")
def shared() -> Iterator[SparkRunner]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(SWITCH, "off")  # a test leaves nothing in the user's cache
        runner = SparkRunner(open_session("local[2]", config=ON_WORKERS), owns=True)
    yield runner
    runner.close()
