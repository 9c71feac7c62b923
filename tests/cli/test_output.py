from __future__ import annotations

import json

import pytest

from lowmark.cli.output import Cell, show_error, show_facts, show_table
from lowmark.errors import Rejected

ROWS: list[dict[str, Cell]] = [
    {"segment_name": "001", "live_bytes": 1_048_576, "share": 0.5, "sealed": True, "held_by": None},
    {"segment_name": "[red]2", "live_bytes": 7, "share": 1.0, "sealed": False, "held_by": "backup"},
]


def test_a_table_reads_well(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(ROWS, columns=list(ROWS[0]), as_json=False)
    # Numbers stand right and are grouped; markup in a name is shown, not obeyed.
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "segment name  live bytes  share  sealed  held by",
        "001            1,048,576   0.50  yes     -",
        "[red]2                 7   1.00  no      backup",
    ]


def test_a_table_without_rows_still_has_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    show_table([], columns=["group", "size"], as_json=False)
    assert capsys.readouterr().out.split() == ["group", "size"]


def test_a_table_as_json_is_a_list_of_objects(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(ROWS, columns=["segment_name", "held_by"], as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"segment_name": "001", "held_by": None},
        {"segment_name": "[red]2", "held_by": "backup"},
    ]


def test_a_long_value_is_not_cut_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show_facts({"path": "x" * 500}, as_json=False)
    assert "x" * 500 in capsys.readouterr().out


def test_an_error_with_markup_in_it_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(Rejected("[bold]no[/bold]"), as_json=False)
    assert capsys.readouterr().err == "error: [bold]no[/bold]\n"
