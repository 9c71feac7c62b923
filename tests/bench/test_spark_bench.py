"""Peers of `lowmark bench spark`: what is said of one that is missing, and rows that agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from benchmarks.compact_peers import find_peer
from benchmarks.figure import PeerMissing
from benchmarks.kafka_peer import PACKAGES, KafkaMissing, find_kafka, kafka_folder
from benchmarks.spark_workload import COLUMNS, PIECE, pieces_of, rows_of


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(PeerMissing, match="no_such_lake is left out"):
        find_peer("no_such_lake")


def test_kafka_is_found_when_all_of_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a cache without it, then the error says what is missing and how it is made
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    needed = [Path("env", "bin", "python"), *(Path(name, "jars") for name in PACKAGES)]
    for path in needed:
        with pytest.raises(KafkaMissing) as missing:
            find_kafka()
        assert str(kafka_folder() / path) in missing.value.message
        assert "python -m benchmarks.kafka_peer" in missing.value.one_line()
        # when that is made, then the next one is missing, and in the end nothing
        (kafka_folder() / path).mkdir(parents=True)
    assert find_kafka().folder == kafka_folder()


def test_both_sides_of_an_upsert_make_the_same_rows() -> None:
    ids = np.random.default_rng(3).choice(1_000, 10, replace=False)
    one, other = rows_of(ids, seed=3), rows_of(ids, seed=3)
    assert one.equals(other)
    assert one.column_names == list(COLUMNS)
    assert pc.count_distinct(one.column("id")).as_py() == 10
    # and other values each time
    assert not one.column("count").equals(rows_of(ids, seed=4).column("count"))


def test_pieces_are_all_keys_once() -> None:
    pieces = list(pieces_of(range(0, 3 * PIECE, 2)))
    assert [key for piece in pieces for key in (piece[0], piece[-1])] == [
        0,
        2 * PIECE - 2,
        2 * PIECE,
        3 * PIECE - 2,
    ]
