"""Which files of a ledger are written anew: few, and no row often."""

from __future__ import annotations

import math
import random

import pytest

from lowmark.ledger import EMPTY, LedgerFile
from lowmark.ledger.manifest import digest_text
from lowmark.ledger.policy import FILES_MIN, Fate, fates


def sized(rows: int, dead: int = 0) -> LedgerFile:
    return LedgerFile(
        path="t/f.parquet",
        bytes=rows,
        rows=rows,
        first=0,
        last=rows,
        schema=1,
        checksum=0,
        footer_bytes=0,
        footer_checksum=0,
        chunks="",
        dead_rows=dead,
        digest=digest_text(EMPTY),
    )


@pytest.mark.parametrize(
    ("files", "tail", "expected"),
    [
        ([], 10, []),
        ([(100, 0)], 10, ["keep"]),
        ([(100, 100)], 10, ["drop"]),
        ([(100, 100)], 0, ["drop"]),
        ([(100, 50)], 10, ["keep"]),
        ([(100, 51)], 10, ["rewrite"]),
        ([(100, 0)] * 3, 1_000, ["keep"] * 3),
        ([(100, 0)] * 4, 100, ["merge"] * 4),
        ([(100, 0)] * 4, 0, ["keep"] * 4),
        ([(10_000, 0), (100, 0), (100, 0), (100, 0)], 100, ["keep", "merge", "merge", "merge"]),
        ([(100, 0), (100, 0), (10_000, 0), (9, 0)], 9, ["keep", "keep", "keep", "merge"]),
        ([(100, 100), (100, 0), (100, 0), (100, 0)], 100, ["drop", "keep", "keep", "keep"]),
        ([(100, 90), (100, 0), (100, 0), (100, 0)], 100, ["merge", "merge", "merge", "merge"]),
    ],
)
def test_a_file_is_dropped_rewritten_merged_or_kept(
    files: list[tuple[int, int]], tail: int, expected: list[Fate]
) -> None:
    assert fates([sized(*one) for one in files], tail_rows=tail) == expected


def test_files_that_are_merged_are_the_last_ones() -> None:
    chance = random.Random(5)
    for _ in range(500):
        files = [
            sized(rows, chance.choice([0, 0, rows // 3, rows]))
            for rows in (chance.choice([1, 10, 100, 10_000]) for _ in range(chance.randrange(12)))
        ]
        found = fates(files, tail_rows=chance.choice([0, 1, 50, 10_000]))
        kept = [fate for fate in found if fate != "drop"]
        merged = kept.count("merge")
        assert kept[len(kept) - merged :] == ["merge"] * merged
        # and what is not live at all goes, whatever else is done
        assert [fate == "drop" for fate in found] == [not file.live_rows for file in files]


@pytest.mark.parametrize("step", [1, 100, 7_919])
def test_many_small_runs_leave_few_files_and_write_no_row_often(step: int) -> None:
    # given a ledger that grows by a little with every run, where nothing ever dies
    files: list[int] = []
    written = total = 0
    for run in range(400):
        rows = step if run % 3 else 2 * step
        total += rows
        found = fates([sized(one) for one in files], tail_rows=rows)
        kept = [one for one, fate in zip(files, found, strict=True) if fate == "keep"]
        merged = sum(files) - sum(kept) + rows
        files = [*kept, merged]
        written += merged
        # then there are never many files
        assert len(files) <= FILES_MIN + math.log2(total / step + 1)
    # and each row was written a few times, not once a run
    assert written / total < 4 * math.log2(400)
