"""What the guide says of the benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.suites import CATALOG_FIELDS, COMPACT_FIELDS, GROUP_FIELDS, TABLE_FIELDS

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "operate.md"


def test_the_guide_lists_every_figure() -> None:
    [section] = re.findall(r"\n### Figures\n(.*?)\n## ", GUIDE.read_text(), re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert rows == [*GROUP_FIELDS, *CATALOG_FIELDS, *TABLE_FIELDS, *COMPACT_FIELDS]
