"""The page of faults names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_fault_has_a_test_that_is_there() -> None:
    # given the rows of all tables of the page
    page = (ROOT / "docs" / "track-record.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    faults = [row for row in rows if not row.startswith("| what could happen")]
    assert len(faults) > 30
    # then each of them ends with a test, which is in its file
    for fault in faults:
        named = re.search(r"`(tests/[\w/.]+?\.py)(?:::(\w+))?` \|$", fault)
        assert named, fault
        text = (ROOT / named[1]).read_text()
        assert f"def {named[2] or 'test_'}" in text, fault
