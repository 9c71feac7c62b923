"""Says at the end what the lives of clusters went through; also when workers lived them."""

from __future__ import annotations

import json
from collections import Counter

import pytest

FIGURES = "cluster life"
"""The property in which a test leaves the figures of a life."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") != "call":
                continue
            for name, value in report.user_properties:
                if name == FIGURES:
                    total.update(json.loads(value))
    if not total:
        return
    lives, virtual_s = total.pop("lives"), total.pop("virtual ms") / 1_000
    terminalreporter.section("lives of clusters")
    terminalreporter.write_line(
        f"{lives} lives, {virtual_s:,.0f} s of virtual time, {total.pop('turns'):,} turns,"
        f" {total.pop('operations'):,} operations of clients"
    )
    for what, times in sorted(total.items(), key=lambda one: (-one[1], one[0])):
        terminalreporter.write_line(f"{times:9,}  {what}")
