"""Which files of a ledger are written anew: few, and no row often."""

from __future__ import annotations

import math
import random

import pytest

from lowmark.ledger import LedgerFile
from lowmark.ledger.digest import EMPTY
from lowmark.ledger.manifest import digest_text
from lowmark.ledger.policy import FILES_MIN, Fate, Room, fates

PLENTY = Room(rows=1 << 40, keys_bytes=1 << 40)


def sized(rows: int, dead: int = 0, keys_bytes: int = 0) -> LedgerFile:
    return LedgerFile(
        path="t/f.parquet",
        bytes=rows,
        rows=rows,
        first=0,
        last=rows,
        schema=1,
        keys_bytes=keys_bytes,
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
    assert fates([sized(*one) for one in files], tail_rows=tail, room=PLENTY) == expected


def test_files_that_are_merged_are_the_last_ones() -> None:
    chance = random.Random(5)
    for _ in range(500):
        files = [
            sized(rows, chance.choice([0, 0, rows // 3, rows]))
            for rows in (chance.choice([1, 10, 100, 10_000]) for _ in range(chance.randrange(12)))
        ]
        room = Room(rows=chance.choice([5, 150, 1 << 40]), keys_bytes=1 << 40)
        found = fates(files, tail_rows=chance.choice([0, 1, 50, 10_000]), room=room)
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
        found = fates([sized(one) for one in files], tail_rows=rows, room=PLENTY)
        kept = [one for one, fate in zip(files, found, strict=True) if fate == "keep"]
        merged = sum(files) - sum(kept) + rows
        files = [*kept, merged]
        written += merged
        # then there are never many files
        assert len(files) <= FILES_MIN + math.log2(total / step + 1)
    # and each row was written a few times, not once a run
    assert written / total < 4 * math.log2(400)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([(100, 0)] * 5, ["keep"] * 5),
        ([(50, 0)] * 5, ["keep"] * 5),
        ([(49, 0)] * 5, ["merge"] * 5),
        ([(49, 0)] * 3 + [(100, 0)] + [(9, 0)] * 4, ["keep"] * 4 + ["merge"] * 4),
        ([(49, 0)] * 4 + [(100, 0)] + [(9, 0)] * 3, ["keep"] * 8),
        ([(100, 50)] * 5, ["keep"] * 5),
        ([(100, 51)] * 5, ["merge"] * 5),
        ([(10, 0, 1_000)] * 5, ["keep"] * 5),
        ([(10, 5, 1_000)] * 5, ["keep"] * 5),
        ([(10, 0, 499)] * 5, ["merge"] * 5),
        ([(1_000, 600)] * 5, ["rewrite"] * 5),
    ],
)
def test_what_is_half_as_large_as_fits_is_not_put_together(
    files: list[tuple[int, ...]], expected: list[Fate]
) -> None:
    room = Room(rows=100, keys_bytes=1_000)
    assert fates([sized(*one) for one in files], tail_rows=1_000, room=room) == expected


@pytest.mark.parametrize("step", [150, 1_000, 2_500])
def test_however_large_a_ledger_is_its_full_files_are_written_once(step: int) -> None:
    # given a ledger that grows, by files of up to a thousand rows
    room = Room(rows=1_000, keys_bytes=1 << 40)
    files: list[int] = []
    written = 0
    for run in range(1, 200):
        found = fates([sized(one) for one in files], tail_rows=step, room=room)
        kept = [one for one, fate in zip(files, found, strict=True) if fate == "keep"]
        merged = sum(files) - sum(kept) + step
        files = [*kept, *[1_000] * (merged // 1_000), *([merged % 1_000] if merged % 1_000 else [])]
        written += merged
        # then there are as many as its size needs, about
        assert len(files) <= 2 * run * step / 1_000 + FILES_MIN + 2
    # and no row was written more than a few times, however many runs there were
    assert written < 4 * sum(files)
