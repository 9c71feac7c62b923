"""Segments of the metastore that hold next to nothing: every run of compaction closes the WAL, and
so adds one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import lowmark
from eventually import eventually
from inside import backend_of
from lowmark.log.segments import SegmentRef


@pytest.mark.slow
def test_the_metastore_has_few_segments_however_often_the_wal_was_closed(tmp_path: Path) -> None:
    rolls = 120
    with lowmark.open(tmp_path) as db:
        embedded = backend_of(db)
        metastore, log = embedded.node.cluster.metastore, embedded.node.log
        state = metastore.group.log.state

        def segments() -> list[SegmentRef]:
            return embedded.ask_now(lambda: list(state.segments))

        # given a write or two between any two of them, as of a run of compaction
        for number in range(rolls):
            key, value = b"test.%d" % (number % 7), b"%d" % number
            embedded.ask(lambda key=key, value=value: metastore.put(key, value))  # type: ignore[misc]
            last = embedded.ask_now(lambda: metastore.group.applied)
            embedded.ask_now(log.roll)
            eventually(lambda last=last: any(one.last >= last for one in segments()))  # type: ignore[misc]
        # then there are not as many segments: those below the snapshot become one
        eventually(lambda: len(segments()) <= 64)
        assert embedded.ask_now(lambda: metastore.group.log.row.snapshot_index) > 0
        for number in range(7):
            entry = embedded.ask(lambda number=number: metastore.get(b"test.%d" % number))  # type: ignore[misc]
            assert entry is not None
            assert int(bytes(entry.value)) >= rolls - 7
    with lowmark.open(tmp_path) as db:
        metastore = backend_of(db).node.cluster.metastore
        found = backend_of(db).ask(lambda: metastore.range(prefix=b"test."))
        assert len(found.entries) == 7
