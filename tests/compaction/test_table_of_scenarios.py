"""The page of scenarios names tests that are there, and leaves no scenario out."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = (HERE / "README.md").read_text()
BUGS = [HERE / "test_bugs.py", HERE / "test_bugs_of_resources.py"]
NUMBERS = [f"P{number}" for number in range(1, 61)] + [f"K{number}" for number in range(1, 16)]
ROW = re.compile(r"^\| (?P<first>[^|]+) \| (?P<what>[^|]+) \| (?P<tests>[^|]+) \|$", re.MULTILINE)
TEST = re.compile(r"`(?P<file>[\w./]+\.py)::(?P<name>\w+)`")
ISSUE = re.compile(r"(?:[A-Z][\w-]+ )?#\d+|[A-Z]+-\d+")


def rows() -> list[tuple[str, str, str]]:
    """The rows of all tables, without their heads."""
    found = [(match["first"], match["what"], match["tests"]) for match in ROW.finditer(PAGE)]
    return [row for row in found if row[2] != "test"]


@cache
def names_in(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_scenario_stands_in_the_page_once_and_in_order() -> None:
    found = [first for first, _, _ in rows() if re.fullmatch(r"[PK]\d+", first)]
    assert found == NUMBERS


def test_every_test_that_the_page_names_is_there() -> None:
    missing = []
    for first, _, tests in rows():
        for match in TEST.finditer(tests):
            path = (HERE / match["file"]).resolve()
            if not path.is_file() or match["name"] not in names_in(path):
                missing.append(f"{first}: {match[0]}")
    assert missing == []


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_names_tests_or_says_why_it_has_none(row: tuple[str, str, str]) -> None:
    first, what, tests = row
    if tests == "none":
        assert what.startswith("does not apply: "), first
    else:
        assert ", ".join(match[0] for match in TEST.finditer(tests)) == tests, first


def test_every_issue_that_a_test_names_is_in_the_page() -> None:
    named = {issue for path in BUGS for issue in ISSUE.findall(path.read_text())}
    assert len(named) > 30
    assert named - set(ISSUE.findall(PAGE)) == set()


def test_every_test_of_a_bug_is_named_in_the_page() -> None:
    named = {match["name"] for match in TEST.finditer(PAGE)}
    told = {name for path in BUGS for name in names_in(path)}
    assert told - named <= {"test_without_a_rate_nobody_waits_and_all_is_counted"}
