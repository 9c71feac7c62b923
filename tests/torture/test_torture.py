"""The short torture: one plan of troubles, and what clients wrote down under them.

Each node is in a host of its own, where hosts can be made; else all are on loopback.
"""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from clusters.places import in_hosts
from hosts.hosts import why_none
from torture import nemesis
from torture.check import SHOWN, Row, Verdict, check
from torture.history import Event, calls_of, events_of
from torture.nemesis import TROUBLES
from torture.run import Outcome, torture

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("torture")]

PLAN = ("kill-leader", "cut-two", "pause-leader", "jump-near", "full-disk")
BETWEEN_HOSTS = ("kill-leader", "cut-out", "lossy", "pause-leader", "jump-near", "full-disk")
"""Where packets are lost for real."""


def tortured(folder: Path, plan: Sequence[str]) -> Outcome:
    """What came of a plan."""
    return torture(folder, seed=1, troubles=plan, history=folder / "history", pace_s=0.05)


def tortured_in_hosts(folder: Path, plan: Sequence[str]) -> Outcome:
    """The same by a process of its own: one that goes into a host stays there."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
        return pool.submit(_in_hosts, folder, plan).result()


def _in_hosts(folder: Path, plan: Sequence[str]) -> Outcome:
    (folder / "world").mkdir()
    with in_hosts(folder / "world"):
        return tortured(folder, plan)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    folder = tmp_path_factory.mktemp("torture")
    found = tortured(folder, PLAN) if why_none() else tortured_in_hosts(folder, BETWEEN_HOSTS)
    if not found.violations:
        for number in range(3):
            shutil.rmtree(folder / f"n{number}", ignore_errors=True)
    return found, folder / "history"


def kept_every_row(found: Outcome) -> None:
    assert not found.violations
    # and all of it was done, by all kinds of clients
    assert found.deeds["kill"] == 1
    assert found.deeds["cut"] == 1
    assert found.deeds["pause"] == 1
    assert found.deeds["jump"] == 2
    kinds = ("append", "send", "write", "scan", "read", "snapshot", "as-of", "tail", "poll")
    for f in (*kinds, "commit", "meta-write", "meta-read", "meta-watch"):
        assert found.verdict.calls[f] > 0, f
    assert found.verdict.rows > 100


def test_three_nodes_keep_every_row_whatever_happens_to_one_of_them(
    outcome: tuple[Outcome, Path],
) -> None:
    found, _ = outcome
    kept_every_row(found)
    if not why_none():
        assert found.deeds["lose"] == 1
        assert found.deeds["packet-lost"] > 0


@pytest.mark.release  # between hosts it is done above
def test_three_nodes_keep_every_row_on_loopback(tmp_path: Path) -> None:
    if why_none():
        pytest.skip("it was done on loopback already")
    kept_every_row(tortured(tmp_path, PLAN))


@pytest.mark.release  # some of them are done above
@pytest.mark.timeout(1_200)
def test_three_nodes_keep_every_row_under_every_trouble_between_hosts(tmp_path: Path) -> None:
    if why_none():
        pytest.skip(f"no hosts: {why_none()}")
    plan = (*TROUBLES, *nemesis.OPERATED, *nemesis.BETWEEN_HOSTS)
    found = tortured_in_hosts(tmp_path, plan)
    assert not found.violations
    assert found.troubles == dict.fromkeys(plan, 1)
    assert found.deeds["packet-lost"] > 0


def test_a_history_can_be_read_back(outcome: tuple[Outcome, Path]) -> None:
    _, history = outcome
    for name in ("rows.jsonl", "metastore.jsonl"):
        events = list(events_of(history / name))
        # processes are sequential, and each beginning has at most one end: else this raises
        calls = calls_of(events)
        assert calls
        assert all(call.ended is None or call.ended >= call.began for call in calls)
        assert any(event.process == "nemesis" for event in events)
    meta = calls_of(list(events_of(history / "metastore.jsonl")))
    assert any(call.f == "write" and call.ok and call.revision for call in meta)
    assert any(call.f == "watch" and call.ok and call.revision for call in meta)


# -- that the check would find it ---------------------------------------------------------------


def event(process: int, kind: str, f: str, value: object, time: int, **more: object) -> Event:
    return Event(process, kind, f, value, time, **more)  # type: ignore[arg-type]


def appended(first: int, count: int, *, offset: int, at: int) -> list[Event]:
    asked = {"first": first, "count": count}
    said = {**asked, "parts": [[0, offset, count]]}
    return [event(1, "invoke", "append", asked, at), event(1, "ok", "append", said, at + 1)]


def log_of(*ids: int) -> dict[int, list[Row]]:
    return {0: [Row(key, 0, "c1", 10 + offset) for offset, key in enumerate(ids)]}


def kinds_of(verdict: Verdict) -> set[str]:
    return {kind.partition(" ")[0] for kind in verdict.kinds}


ID = 1_000_000_000
TWO = [*appended(ID, 1, offset=0, at=10), *appended(ID + 1, 1, offset=1, at=20)]
SCAN = [event(4, "invoke", "scan", [[0, 0]], 30)]


def scanned(end: int, *ids: int) -> list[Event]:
    said = {"start": [[0, 0]], "end": [[0, end]], "rows": [[0, 0, list(ids), [0] * len(ids)]]}
    return [*SCAN, event(4, "ok", "scan", said, 40)]


@pytest.mark.parametrize(
    ("events", "log", "kind"),
    [
        (TWO, log_of(ID), {"lost", "place"}),
        (TWO, log_of(ID, ID + 1, ID), {"doubled", "order"}),
        ([*TWO, *scanned(1, ID)], log_of(ID, ID + 1), {"stale"}),
        ([*TWO, *scanned(2, ID, ID + 7)], log_of(ID, ID + 1), {"changed"}),
        ([*TWO, *scanned(2, ID)], log_of(ID, ID + 1), {"hole"}),
        ([*TWO, *scanned(2, ID, ID + 1)], log_of(ID, ID + 1), set()),
    ],
)
def test_the_check_finds_what_is_wrong_with_rows(
    events: list[Event], log: dict[int, list[Row]], kind: set[str]
) -> None:
    assert kinds_of(check(events, [], log)) == kind


@pytest.mark.parametrize(("found", "kind"), [(1, {"stale"}), (2, set()), (3, {"stale"})])
def test_the_check_finds_a_look_up_that_is_stale(found: int, kind: set[str]) -> None:
    log = {0: [Row(-101, seq, "c1", seq) for seq in (1, 2)]}
    events = [
        event(process, kind_of, "write", [-101, seq], 10 * seq + later)
        for seq in (1, 2)
        for process, kind_of, later in ((1, "invoke", 0), (1, "ok", 1))
    ]
    events += [
        event(2, "invoke", "read", [-101, None], 30),
        event(2, "ok", "read", [-101, found], 31),
    ]
    assert kinds_of(check(events, [], log)) == kind


def test_the_check_finds_an_error_though_a_majority_is_up() -> None:
    up = event(0, "info", "majority", True, 1)
    up.process = "nemesis"
    failed = [
        event(2, "invoke", "read", [-101, None], 30),
        event(2, "fail", "read", [-101, None], 31, error="NodeSilent"),
    ]
    assert kinds_of(check([up, *failed], [], {})) == {"error"}
    assert kinds_of(check(failed, [], {})) == set()


def test_each_kind_of_violation_is_shown_however_often_another_one_was_found() -> None:
    # given reads that failed by one error again and again, and once by another one
    up = event(0, "info", "majority", True, 1)
    up.process = "nemesis"
    events = [up]
    for at in range(100):
        why = "Corrupt: a sum" if at == 99 else "TimeInFuture: it is yet to come"
        asked = [-101, None]
        events.append(event(2, "invoke", "read", asked, 10 * at + 10))
        events.append(event(2, "fail", "read", asked, 10 * at + 11, error=why))
    verdict = check(events, [], {})
    # then each has its count, and examples
    assert verdict.kinds == {"error TimeInFuture of read": 99, "error Corrupt of read": 1}
    assert verdict.count == 100
    shown = [one.partition(":")[0] for one in verdict.violations]
    assert shown[0] == "error TimeInFuture of read (1 of 99)"
    assert shown[-1] == "error Corrupt of read (1 of 1)"
    assert len(shown) == SHOWN + 1


@pytest.mark.parametrize(
    "events",
    [
        [event(1, "invoke", "read", None, 1), event(1, "invoke", "read", None, 2)],
        [event(1, "ok", "read", None, 1)],
        [
            event(1, "invoke", "append", None, 1),
            event(1, "info", "append", None, 2),
            event(1, "invoke", "append", None, 3),
        ],
    ],
    ids=["two at once", "an end without a beginning", "on behind an unknown end"],
)
def test_what_is_no_history_is_refused(events: list[Event]) -> None:
    with pytest.raises(ValueError, match=r"process|beginning"):
        calls_of(events)
