"""Says at the end what lives went through, of each kind; also when workers lived them."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from sim.lives import OUTDATED

FIGURES = {
    "cluster life": "lives of clusters",
    "older life": "lives of groups with older images put back",
    "replacing life": "lives of clusters whose lost nodes are replaced",
    "metastore life": "lives of metastores",
    "table life": "lives of tables",
    "placement life": "lives of moving partitions",
    "upkeep life": "lives of catalogs that are cut",
    "clock life": "lives with a clock that is wrong by far",
    "damage life": "lives of clusters whose files rot",
}
"""The properties in which tests leave the figures of a life, and what they are figures of."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for figures, of_what in FIGURES.items():
        _sum_up(terminalreporter, figures, of_what)
    outdated = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == OUTDATED
    ]
    if outdated:
        terminalreporter.section("seeds of mutants to be brought up to date (FOUND_BY)")
        for line in outdated:
            terminalreporter.write_line(line)


def _sum_up(terminalreporter: pytest.TerminalReporter, figures: str, of_what: str) -> None:
    total: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") != "call":
                continue
            for name, value in report.user_properties:
                if name == figures:
                    total.update(json.loads(value))
    if not total:
        return
    lives, virtual_s = total.pop("lives"), total.pop("virtual ms") / 1_000
    terminalreporter.section(of_what)
    terminalreporter.write_line(
        f"{lives} lives, {virtual_s:,.0f} s of virtual time, {total.pop('turns'):,} turns,"
        f" {total.pop('operations'):,} operations of clients"
    )
    for what, times in sorted(total.items(), key=lambda one: (-one[1], one[0])):
        terminalreporter.write_line(f"{times:9,}  {what}")
