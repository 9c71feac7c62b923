"""Marks follow what tests took."""

from __future__ import annotations

from pathlib import Path

from slow_marks import marked, times

REPORT = """<testsuites><testsuite>
<testcase classname="tests.log.test_a" name="test_quick[1]" time="0.1"/>
<testcase classname="tests.log.test_a" name="test_quick[2]@group" time="0.4"/>
<testcase classname="tests.log.test_a.TestB" name="test_of_a_class" time="0.01"/>
<testcase classname="tests.log.test_a" name="test_left_out" time="0"><skipped/></testcase>
</testsuite></testsuites>"""

BEFORE = '''"""Of a test."""

from __future__ import annotations

@parametrize("one", [1, 2])
def test_quick(one: int) -> None: ...

class TestB:
    @pytest.mark.slow
    @other
    def test_of_a_class(self) -> None: ...

@pytest.mark.slow
def test_left_out() -> None: ...

@pytest.mark.slow
def test_between() -> None: ...

@pytest.mark.release
def test_of_a_release() -> None: ...
'''


def test_a_report_has_the_longest_case_of_each_test(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert times(tmp_path / "report.xml") == {
        Path("tests/log/test_a.py"): {"test_quick": 0.4, "TestB.test_of_a_class": 0.01}
    }


def test_marks_come_and_go_by_time() -> None:
    took = {
        "test_quick": 0.4,
        "TestB.test_of_a_class": 0.01,
        "test_between": 0.2,
        "test_of_a_release": 9,
    }
    expected = BEFORE.replace("    @pytest.mark.slow\n", "").replace(
        "\n@parametrize", "import pytest\n\n@pytest.mark.slow\n@parametrize"
    )
    assert marked(BEFORE, took) == expected
    # and those of a whole module are left alone
    whole = "pytestmark = [pytest.mark.slow]\n" + BEFORE
    assert marked(whole, took) == whole
