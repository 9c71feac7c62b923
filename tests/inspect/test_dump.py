"""`dump` shows what is there, dead or alive, sound or not."""

from __future__ import annotations

import pytest

from log.full_house import content, full_house, rewrite
from log.world import World
from lowmark.inspect import (
    DumpEntry,
    DumpPiece,
    DumpWal,
    dump_log,
)
from lowmark.inspect.dump import preview
from lowmark.runtime import Locked


def test_wal_records_come_first_in_the_order_of_the_files() -> None:
    lines = list(dump_log(full_house(), data=True))
    wal = [line for line in lines if isinstance(line, DumpWal)]
    assert lines[: len(wal)] == wal
    assert [(w.record, w.group, w.first, w.last, w.term, w.bytes) for w in wal[1:5]] == [
        ("meta", "g", 0, 0, 0, 17),
        ("run", "g", 22, 25, 2, 16),
        ("large", "g", 26, 26, 2, 203),
        ("run", "h", 7, 8, 1, 6),
    ]
    assert wal[1].data == "vote of g, second"
    assert wal[2].data == "22@223@224@225@2"


def test_every_entry_of_every_segment_is_shown_overwritten_ones_too() -> None:
    entries = [line for line in dump_log(full_house(), "g") if isinstance(line, DumpEntry)]
    shown = [(e.index, e.term) for e in entries if e.index in {19, 20}]
    assert shown == [(19, 1), (20, 1), (19, 2), (20, 2)]
    assert all(e.ok and e.data is None for e in entries)
    assert [e.index for e in entries if e.place == "large"] == [13]


def test_pieces_say_what_they_stand_for() -> None:
    pieces = [line for line in dump_log(full_house(), "g") if isinstance(line, DumpPiece)]
    says = [(piece.piece, piece.first, piece.last, piece.says) for piece in pieces]
    assert says[1:4] == [
        ("snapshot", 0, 14, "4 live, machine version 0, floor 0:0"),
        ("segment", 2, 9, "stands for 1, 2"),
        ("link", 0, 0, "leads to 0000000000000001.segment"),
    ]


def test_one_group_is_shown_without_the_others() -> None:
    assert {line.group for line in dump_log(full_house(), "h")} == {"h"}


def test_a_bad_entry_is_shown_among_good_neighbours() -> None:
    house = full_house()
    house.flip_bit("groups/g/0000000000000001.segment", 8 * 203)
    entries = [line for line in dump_log(house, "g", data=True) if isinstance(line, DumpEntry)]
    shown = [(e.index, e.ok, e.data) for e in entries[:3]]
    assert shown == [(2, True, "2@1"), (8, False, None), (9, True, "9@1")]
    assert "entry 8 fails its checksum" in entries[1].problem


def test_bad_files_give_a_line_with_their_problem_and_the_rest_follows() -> None:
    house = full_house()
    for path in (
        "wal/0000000000000008.wal",
        "groups/g/0000000000000003.segment",
        "groups/h/group",
        "groups/i/snapshots/000000000000000e-0000000000000001/state",
    ):
        rewrite(house, path, b"nonsense" + content(house, path)[8:])
    problems = [line.problem for line in dump_log(house) if line.problem]
    words = ("not a WAL file", "not a segment", "the file fails its checksum", "not a snapshot")
    assert all(any(word in problem for problem in problems) for word in words), problems
    assert any(line.group == "q" for line in dump_log(house))


def test_a_directory_that_is_open_elsewhere_is_refused() -> None:
    world = World()
    with pytest.raises(Locked):
        list(dump_log(world.disk))


def test_a_preview_is_text_if_it_is_text_and_short_in_any_case() -> None:
    assert preview(b"hello") == "hello"
    assert preview(b"\x00\xff") == "0x00ff"
    assert preview(b"a\nb") == "0x610a62"
    assert preview(b"x" * 100) == "x" * 48 + "…"
    assert preview(b"") == ""
