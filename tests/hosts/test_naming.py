"""A run of tests elsewhere that has made none of those that it was asked for has tried nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosts.between import named_and_not_made, passes_alone

_TESTS = """
import pytest

def test_made() -> None:
    pass

@pytest.mark.parametrize("way", ["one", "other"])
def test_skipped(way: str) -> None:
    pytest.skip("it takes something that is not here")
"""


@pytest.mark.slow
def test_tests_that_were_all_skipped_do_not_pass(tmp_path: Path) -> None:
    # given tests of which one is skipped, and a file of which all are
    some, none = tmp_path / "test_some.py", tmp_path / "test_none.py"
    some.write_text(_TESTS)
    none.write_text(_TESTS.replace("    pass", '    pytest.skip("not here")'))
    # when a file is named of which one is made, then that passes
    passes_alone(tmp_path, str(some))
    # and of that run, it is told what was not made, though pytest is content with it
    report, made = tmp_path / "report.xml", f"{some}::test_made"
    skipped = [f"{some}::test_skipped", f"{some}::test_skipped[one]", str(none)]
    assert named_and_not_made(report, [made, str(some), "-m", "not release"]) == []
    assert named_and_not_made(report, [made, *skipped]) == skipped
    # and a file that was skipped as a whole does not pass
    with pytest.raises(AssertionError, match=r"none of .*test_none.py was made"):
        passes_alone(tmp_path, str(none))
