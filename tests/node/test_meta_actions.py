"""Pages of the metastore: read at once, and held for whoever asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventually import eventually
from lowmark.metastore import RevisionCompacted
from lowmark.node import actions as limits
from lowmark.node.action import Call
from lowmark.node.messages import HistoryPage, RangeAsk, RangePage
from node.running import QUICK, Running

KEYS = 8


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(limits, "PAGE_ENTRIES_MAX", 3)
    metastore = replace(QUICK.metastore, watch_patience_ms=700)
    with Running(tmp_path, settings=replace(QUICK, metastore=metastore)) as running:
        client = running.client()
        for number in range(KEYS):
            client.put(b"page/%d" % number, b"old %d" % number)
        yield running


def pages(running: Running, **asked: Any) -> Iterator[RangePage]:
    """Page by page as Flight asks for them; a client's connection would take several at once."""
    body = msgspec.json.encode(RangeAsk(prefix=b"page/", **asked))
    action = running.node.server.actions["meta.range"]
    stream = iter(action(body, Call()))
    return (msgspec.json.decode(page, type=RangePage) for page in stream)


def readers(running: Running) -> int:
    metastore = running.node.cluster.metastore
    return running.node.bridge.ask_now(lambda: len(metastore._readers), timeout_s=10)


def overwrite_and_compact(running: Running) -> None:
    """Change everything, and forget what was before, as far as nobody needs it."""
    client, metastore = running.client(), running.node.cluster.metastore
    latest = 0
    for number in range(KEYS):
        latest = client.put(b"page/%d" % number, b"new").revision
    running.node.bridge.ask(metastore.renew_holds, timeout_s=10)
    running.node.bridge.ask(lambda: metastore.compact(latest), timeout_s=10)


def test_a_compaction_between_two_pages_cuts_nobody_off(running: Running) -> None:
    found = pages(running)
    entries = list(next(found).entries)
    assert readers(running) == 1
    overwrite_and_compact(running)
    for page in found:
        entries += page.entries
    assert [entry.value for entry in entries] == [b"old %d" % number for number in range(KEYS)]
    # and when all pages were given, nothing is held any more
    eventually(lambda: readers(running) == 0)


def test_a_client_that_goes_holds_nothing(running: Running) -> None:
    body = msgspec.json.encode(RangeAsk(prefix=b"page/"))
    stream: Any = iter(running.node.server.act("meta.range", Body(body), Call()))
    next(stream)
    assert readers(running) == 1
    stream.close()
    eventually(lambda: readers(running) == 0)


class Body:
    """As Flight gives it."""

    def __init__(self, body: bytes) -> None:
        self.size = len(body)
        self._body = body

    def to_pybytes(self) -> bytes:
        return self._body


@pytest.mark.slow
def test_a_client_that_stands_still_is_not_held_for_long_and_is_told(running: Running) -> None:
    found = pages(running)
    next(found)
    eventually(lambda: readers(running) == 0)
    overwrite_and_compact(running)
    with pytest.raises(RevisionCompacted):
        next(found)


def test_one_page_needs_no_hold(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.node.cluster.metastore, "hold", None)  # it would be called
    assert [len(page.entries) for page in pages(running, limit=3)] == [3]
    assert [len(page.entries) for page in pages(running, limit=2)] == [2]
    monkeypatch.undo()
    assert [len(page.entries) for page in pages(running, limit=5)] == [5]


def test_values_of_a_page_are_read_at_once(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PAGE_ENTRIES_MAX", 100)
    metastore = running.node.cluster.metastore
    client = running.client()
    for number in range(5):
        client.put(b"story", b"%d" % number)
    client.remove(b"story")
    asked: list[int] = []
    read = metastore._values.entries

    def counted(found: Any) -> Any:
        wanted = list(found)
        if any(one.key.startswith((b"page/", b"story")) for one in wanted):  # the node reads, too
            asked.append(len(wanted))
        return read(wanted)

    monkeypatch.setattr(metastore._values, "entries", counted)
    assert [len(page.entries) for page in pages(running)] == [KEYS]
    assert asked == [KEYS]
    asked.clear()
    body = msgspec.json.encode({"key": b"story"})
    stream = iter(running.node.server.actions["meta.history"](body, Call()))
    first = msgspec.json.decode(next(iter(stream)), type=HistoryPage)
    assert [entry.value for entry in first.entries] == [b"0", b"1", b"2", b"3", b"4", None]
    assert asked == [5]
