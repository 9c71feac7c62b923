"""A table in a fresh directory; of B scenarios, once with batches and once with single rows. And
at the end, what lives went through.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "data") as one:
        yield one


@pytest.fixture(params=["batched", "row by row"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "data", batched=request.param == "batched") as one:
        yield one


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what lives went through; also when workers lived them."""
    total: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, value in report.user_properties:
                    if name == "compacted life":
                        total.update(json.loads(value))
    if total:
        terminalreporter.section("lives of compacted tables")
        terminalreporter.write_line(f"{total.pop('lives')} lives")
        for what, times in sorted(total.items(), key=lambda one: (-one[1], one[0])):
            terminalreporter.write_line(f"{times:9,}  {what}")
