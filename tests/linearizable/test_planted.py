"""The judge finds what is planted in a history, by name, and accepts the history itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from linearizable.checking import Found, Missing, build, check
from torture.history import Event, events_of, save
from torture.run import torture

# A history of its own takes half a minute. Its shorter relative is `torture/test_torture.py`, where
# our own check finds the same, in histories of some lines.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.release,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("torture"),
]

PLAN = ("kill-leader", "compact", "cut-two", "alter")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("program"))
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def recorded(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    outcome = torture(folder, seed=3, troubles=PLAN, history=folder / "history", pace_s=0.05)
    assert not outcome.violations
    return folder / "history"


class History:
    """The events of a history, to plant something in."""

    def __init__(self, folder: Path) -> None:
        self.rows = list(events_of(folder / "rows.jsonl"))
        self.metastore = list(events_of(folder / "metastore.jsonl"))

    def save(self, folder: Path) -> Path:
        folder.mkdir()
        save(folder / "rows.jsonl", self.rows)
        save(folder / "metastore.jsonl", self.metastore)
        return folder

    def done(self, f: str, *, metastore: bool = False) -> Iterator[tuple[Event, Event]]:
        """Calls that came out well: how they began and how they ended."""
        begun: dict[int | str, Event] = {}
        for event in self.metastore if metastore else self.rows:
            if event.type == "invoke":
                begun[event.process] = event
            elif event.type == "ok" and event.f == f:
                yield begun[event.process], event

    def without(self, *kinds: str) -> None:
        self.rows = [event for event in self.rows if event.f not in kinds]


@pytest.fixture
def history(recorded: Path) -> History:
    return History(recorded)


def finals(history: History) -> list[Event]:
    return [ended for _, ended in history.done("final")]


def pieces(event: Event, partition: int) -> list[Any]:
    return [one for one in event.value["rows"] if one[0] == partition]


def lose_the_last_row(history: History) -> None:
    for event in finals(history):
        last = pieces(event, 0)[-1]
        last[2].pop()
        last[3].pop()
        event.value["end"][0][1] -= 1
        event.value["times"][0][1].pop()


def lose_a_row_of_a_producer(history: History) -> None:
    begun, _ = next(history.done("send"))
    lost = begun.value["first"]
    for event in history.rows:
        if event.type != "ok" or event.f not in {"scan", "final", "tail", "poll"}:
            continue
        shown = event.value if event.f == "tail" else event.value["rows"]
        for piece in shown:
            piece[2] = [key + 10**12 if key == lost else key for key in piece[2]]


def store_a_row_twice(history: History) -> None:
    for event in finals(history):
        last = pieces(event, 1)[-1]
        last[2].append(last[2][-1])
        last[3].append(last[3][-1])
        event.value["end"][1][1] += 1
        times = event.value["times"][1][1]
        times.append(times[-1])


def store_a_row_twice_within(history: History) -> None:
    """In the place of another one, for each reader."""
    last = pieces(finals(history)[0], 1)[-1]
    at = next(i for i in range(5, len(last[2])) if last[2][i] > 0 and last[2][i - 5] > 0)
    lost, twice = last[2][at], last[2][at - 5]
    for event in history.rows:
        if event.type == "ok" and event.f in {"scan", "final", "tail", "poll"}:
            for piece in event.value if event.f == "tail" else event.value["rows"]:
                piece[2] = [twice if key == lost else key for key in piece[2]]


def swap_offsets(history: History) -> None:
    single: dict[tuple[int, int], Event] = {}
    for _, ended in history.done("append"):
        for part in ended.value["parts"]:
            other = single.setdefault((part[0], part[2]), ended)
            if other is not ended:
                mine = next(one for one in other.value["parts"] if one[0] == part[0])
                mine[1], part[1] = part[1], mine[1]
                return
    raise AssertionError("no two appends of the same length in one partition")


def read_stale(history: History) -> None:
    _swap_read(history, lambda before, now: before is not None and now is not None)


def bring_a_delete_back(history: History) -> None:
    _swap_read(history, lambda before, now: before is not None and now is None)


def _swap_read(history: History, fits: Callable[[int | None, int | None], bool]) -> None:
    """A read gives the value before the last one: that was acknowledged, and nothing was changed
    while it read.
    """
    values: dict[int, list[tuple[int, int | None]]] = {}
    under_way: dict[int, int] = {}
    begun: dict[int | str, tuple[Event, bool]] = {}
    for event in history.rows:
        if event.f == "write":
            key, seq = event.value
            if event.type == "invoke":
                under_way[key] = under_way.get(key, 0) + 1
                for process, (one, _) in list(begun.items()):
                    if one.value[0] == key:
                        begun[process] = (one, False)
            elif event.type == "ok":
                under_way[key] -= 1
                values.setdefault(key, []).append((event.time, seq))
        elif event.f == "read" and event.type == "invoke":
            begun[event.process] = (event, not under_way.get(event.value[0]))
        elif event.f == "read" and event.type == "ok":
            one, alone = begun.pop(event.process)
            known = values.get(one.value[0], [])
            if alone and len(known) > 1 and known[-1][1] == event.value[1]:
                before = known[-2][1]
                if fits(before, known[-1][1]):
                    event.value[1] = before
                    return
    raise AssertionError("no such read")


def read_what_was_never_written(history: History) -> None:
    for _, ended in history.done("read"):
        if ended.value[1] is not None:
            ended.value[1] = 10**6
            return


def scan_stale(history: History) -> None:
    """The last rows are missing, one of them acknowledged before the scan began."""
    acknowledged = [
        (ended.time, part[1] + part[2])
        for _, ended in history.done("append")
        for part in ended.value["parts"]
        if part[0] == 2
    ]
    for begun, ended in history.done("scan"):
        least = max((end for time, end in acknowledged if time < begun.time), default=0)
        last, end = pieces(ended, 2), ended.value["end"][2]
        if last and end[0] == 2 and least > end[1] - 5 and len(last[-1][2]) > 5:
            del last[-1][2][-5:], last[-1][3][-5:]
            end[1] -= 5
            return
    raise AssertionError("no such scan")


def scan_a_row_never_written(history: History) -> None:
    for _, ended in history.done("scan"):
        if ended.value["rows"]:
            ended.value["rows"][0][2][0] = 77 * 10**9
            return


def follow_another_order(history: History) -> None:
    for _, ended in history.done("tail"):
        for piece in ended.value:
            if len(piece[2]) > 1:
                for column in (piece[2], piece[3]):
                    column[0], column[1] = column[1], column[0]
                return


def commit_past_rows(history: History) -> None:
    for begun, ended in history.done("commit"):
        if begun.value[0][1] > 50:
            begun.value[0][1] += 7
            ended.value[0][1] += 7
            return


def stand_past_rows(history: History) -> None:
    for _, ended in history.done("poll"):
        if ended.value["stands"][1][1] > 50:
            ended.value["stands"][1][1] += 7
            return


def forget_a_commit(history: History) -> None:
    for _, ended in history.done("poll"):
        if ended.value["stands"][1][1] > 50 and pieces(ended, 1):
            ended.value["stands"][1][1] = 0
            return


def look_back_at_other_rows(history: History) -> None:
    for _, ended in history.done("as-of"):
        if ended.value["rows"]:
            ended.value["rows"] -= 1
            return


def read_an_old_value_of_the_metastore(history: History) -> None:
    reads = [ended for _, ended in history.done("read", metastore=True)]
    reads[-1].value = next(one.value for one in reads if one.value[0] == reads[-1].value[0])
    assert reads[-1].value[1] != reads[-2].value[1]


def swap_what_was_another_value(history: History) -> None:
    """A swap says that it was not done, and its value is read."""
    read = {ended.value[1] for _, ended in history.done("read", metastore=True)}
    for _, ended in history.done("cas", metastore=True):
        if ended.value["done"] and ended.value["new"] in read:
            ended.value["done"] = False
            return
    raise AssertionError("no such swap")


PLANTED: list[tuple[Callable[[History], None], str]] = [
    (lose_the_last_row, "lists"),
    (lose_a_row_of_a_producer, "lists"),
    (store_a_row_twice, "lists"),
    (store_a_row_twice_within, "lists"),
    (swap_offsets, "lists"),
    (scan_stale, "lists"),
    (scan_a_row_never_written, "lists"),
    (follow_another_order, "lists"),
    (read_stale, "registers"),
    (bring_a_delete_back, "registers"),
    (read_what_was_never_written, "registers"),
    (commit_past_rows, "cursors"),
    (stand_past_rows, "cursors"),
    (forget_a_commit, "cursors"),
    (look_back_at_other_rows, "as-of"),
    (read_an_old_value_of_the_metastore, "metastore"),
    (swap_what_was_another_value, "metastore"),
]


def test_a_history_of_three_nodes_under_faults_is_linearizable(
    program: Path, recorded: Path
) -> None:
    found = check(program, recorded)
    assert (found.code, found.said) == (0, [])
    assert all(one["operations"] > 0 for one in found.models)


@pytest.mark.parametrize(("plant", "model"), PLANTED, ids=lambda one: getattr(one, "__name__", one))
def test_what_is_planted_is_found(
    program: Path,
    history: History,
    tmp_path: Path,
    plant: Callable[[History], None],
    model: str,
) -> None:
    # given a sound history in which one thing is wrong
    plant(history)
    folder = history.save(tmp_path / "planted")
    # then it is refused, and the model says so
    found = check(program, folder)
    assert found.code == 1
    assert found.of(model)["violations"] > 0
    # with a picture beside it, if there was something to search
    if any("see " in line for line in found.said):
        assert list(folder.glob("linearizable-*.html"))


def test_a_write_of_unknown_outcome_may_have_taken_effect_or_not(
    program: Path, history: History, tmp_path: Path
) -> None:
    # given the last change of each client, whose answer was lost
    last = {ended.process: ended for _, ended in history.done("write")}
    for ended in last.values():
        ended.type, ended.value, ended.parts = "info", deepcopy(ended.value), None
    later = {
        event.process
        for event in history.rows
        if event.process in last and event.time > last[event.process].time
    }
    assert not later
    # and changes that no reader has ever seen, asked for when the run began
    first = next(begun for begun, _ in history.done("write"))
    never = [
        Event(5_000 + n, "invoke", "write", [first.value[0], seq], first.time)
        for n, seq in enumerate((10**6, None))
    ]
    at = history.rows.index(first)
    history.rows[at:at] = never
    # then the rows may be there, or not
    found = check(program, history.save(tmp_path / "unknown"))
    assert (found.code, found.said) == (0, [])


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ("registers", ("write", "read")),
        ("lists", ("append", "send", "write", "scan", "final", "tail", "poll", "snapshot")),
        ("cursors", ("poll", "commit")),
        ("as-of", ("as-of", "snapshot")),
    ],
)
def test_a_history_without_operations_of_a_model_has_not_passed(
    program: Path, history: History, tmp_path: Path, model: str, kinds: tuple[str, ...]
) -> None:
    history.without(*kinds)
    found = check(program, history.save(tmp_path / "less"))
    assert found.code != 0
    assert any(f"{model}: nothing was checked" in line for line in found.said)


def test_a_search_that_takes_too_long_has_not_passed(program: Path, recorded: Path) -> None:
    found: Found = check(program, recorded, search_s=1e-9)
    assert found.code == 2
    assert found.of("lists")["unknown"] > 0
    assert any("unknown" in line for line in found.said)


def test_a_history_of_an_older_format_is_refused_by_name(
    program: Path, history: History, tmp_path: Path
) -> None:
    history.without("history")
    found = check(program, history.save(tmp_path / "old"))
    assert found.code == 3
    assert "version 1" in found.error


def test_without_go_the_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(Missing, match="Go is not installed"):
        build(tmp_path)


def test_the_command_fails_with_a_code_of_its_own_where_go_is_missing(tmp_path: Path) -> None:
    code = (
        "import shutil, sys; shutil.which = lambda *_, **__: None\n"
        "from linearizable.run import main; sys.argv = ['linearizable', '--history', '.']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 4
    assert "Go is not installed" in done.stdout
