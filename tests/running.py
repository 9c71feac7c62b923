"""How a run of many tests goes over several processes: in which order, and what is seen of it.

A process takes the next test, or the next group of tests, when it has none left. So the longest
comes first, and the shortest last, that all processes end at about the same time:

    the group `spark`      the longest: all tests that share one Spark session
    all other groups
    modules with tests that are marked `slow`
    the rest

Tests that share a fixture of their module are a group: each process would make it again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

LINES = 20
"""A run shows how far it is in this many lines."""


def group_of(item: pytest.Item) -> str | None:
    """The group of a test, by whichever mark stands last, as its name has it."""
    marks = list(item.iter_markers("xdist_group"))
    return str(marks[-1].args[0]) if marks else None


def shared_in_module(item: Any) -> str | None:
    """The module of a test, if it uses what is made once for all tests of that module."""
    info = getattr(item, "_fixtureinfo", None)
    module = item.nodeid.partition("::")[0]
    for found in info.name2fixturedefs.values() if info is not None else ():
        if any(one.scope == "module" and one.baseid == module for one in found):
            return str(module)
    return None


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests as it stands above."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def rank(item: pytest.Item) -> int:
        group = group_of(item)
        if group is not None:
            return 0 if group == "spark" else 1
        return 2 if item.path in slow else 3

    items.sort(key=rank)


class Runner:
    """In the process that hands out tests: how far the others are."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._began = time.monotonic()
        self._all = self._done = self._failed = 0

    @pytest.hookimpl
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """All processes find the same tests."""
        self._all = len(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, str] | None:
        """No letter for a test: there are lines. The summary has its words all the same."""
        if report.passed:
            return ("passed", "", "") if report.when == "call" else None
        if report.failed and report.when != "call":
            return "error", "", "ERROR"
        return report.outcome, "", report.outcome.upper()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A line for what failed, at once, and one for every twentieth of the run."""
        if report.failed:
            self._failed += 1
            self._say(f"failed: {report.nodeid}")
        if report.when == "teardown" and self._all:
            before, self._done = self._done, self._done + 1
            if before * LINES // self._all < self._done * LINES // self._all:
                self._say(self._line())

    def _line(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        failed = f", {self._failed} failed" if self._failed else ""
        share = 100 * self._done // self._all
        return f"{share:3} %  {self._done:,} of {self._all:,} tests, {minutes}:{seconds:02}{failed}"

    def _say(self, line: str) -> None:
        self._terminal.ensure_newline()
        self._terminal.write_line(line, flush=True)
