"""`lowmark log`: what people and scripts get, and what the commands leave untouched."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroaring import BitMap64
from typer.testing import CliRunner, Result

from lowmark.cli.app import app
from lowmark.log import Log, LogConfig, SnapshotMeta
from lowmark.runtime import real_runtime

runner = CliRunner()
SEGMENT = "groups/orders-0/0000000000000001.segment"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name in [each for each in os.environ if each.startswith("LOWMARK_")]:
        monkeypatch.delenv(name)
    root, ours = logging.getLogger(), logging.getLogger("lowmark")
    handlers, level = root.handlers[:], ours.level
    yield tmp_path
    root.handlers[:] = handlers
    ours.setLevel(level)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with two groups: three segments, a snapshot, a WAL."""
    path = tmp_path / "data"
    runtime = real_runtime(str(path))
    config = LogConfig(compaction_dead_ratio=1.0, disk_reserved_bytes=0)
    log = Log.open(runtime, config)
    orders, users = log.create_group("orders-0"), log.create_group("users-0")
    for first in (1, 11, 21):
        orders.append(1, [f"order {n}".encode() for n in range(first, first + 10)])
        runtime.loop.run_until(lambda: log.idle)
        log.roll()
        runtime.loop.run_until(lambda: log.idle)
    ended: list[object] = []
    meta = SnapshotMeta(index=20, term=1)
    orders.take_snapshot(meta, [b"state"], BitMap64([3, 15]), ended.append)
    runtime.loop.run_until(lambda: bool(ended) and log.idle)
    assert ended == [None]
    users.append(1, [b"ann", b"bob"])
    runtime.loop.run_until(lambda: log.idle)
    log.close()
    runtime.loop.close()
    return path


def lowmark(*words: object) -> Result:
    return runner.invoke(app, ["log", *map(str, words)])


def snapshot_of(path: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and bytes."""
    return {
        str(p.relative_to(path)): (p.lstat().st_mtime_ns, p.read_bytes())
        for p in sorted(path.rglob("*"))
        if p.is_file()
    }


def flip(path: Path, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)


# -- verify ---------------------------------------------------------------------------------------


def test_an_intact_log_is_verified_with_0_and_one_line(data: Path) -> None:
    result = lowmark("verify", data)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{data}: nothing is wrong, ")
    assert result.stderr == ""


def test_damage_is_listed_with_file_place_and_advice_and_1(data: Path) -> None:
    flip(data / SEGMENT, -40)
    result = lowmark("verify", data)
    assert result.exit_code == 1
    (line,) = [line for line in result.stdout.splitlines() if SEGMENT in line]
    assert line.split()[:2] == ["damage", "orders-0"]
    assert "fails its checksum" in line
    assert "fresh copy" in result.stdout
    assert f"{data}: 1 damage" in result.stdout


def test_findings_as_json_are_one_object(data: Path) -> None:
    (data / "groups/orders-0/0000000000000009.segment.tmp").write_bytes(b"half")
    result = lowmark("verify", data, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["path"], found["ok"]) == (str(data), False)
    (finding,) = found["findings"]
    assert (finding["kind"], finding["group"]) == ("left-over", "orders-0")
    assert finding["path"] == str(data / "groups/orders-0/0000000000000009.segment.tmp")
    intact = lowmark("verify", data / "..", "--json")
    assert intact.exit_code == 2


@pytest.mark.parametrize("command", ["verify", "explain", "dump"])
def test_looking_changes_nothing(data: Path, command: str) -> None:
    # Left-overs and damage are what an eager tool would mend.
    (data / "groups/orders-0/0000000000000009.segment.tmp").write_bytes(b"half")
    (data / "wal/0000000000000099.wal.tmp").write_bytes(b"half")
    flip(data / SEGMENT, -40)
    before = snapshot_of(data)
    lowmark(command, data)
    assert snapshot_of(data) == before


@pytest.mark.parametrize("command", ["verify", "explain", "dump", "compact"])
def test_a_path_that_is_no_log_is_wrong_use_and_is_left_alone(here: Path, command: str) -> None:
    (here / "empty").mkdir()
    (here / "file").write_text("x")
    for name, words in {
        "nowhere": "there is no directory nowhere",
        "file": "there is no directory file",
        "empty": "empty is not a data directory of Lowmark",
    }.items():
        result = lowmark(command, name)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"error: {words}" in result.stderr
    assert sorted(p.name for p in here.rglob("*")) == ["empty", "file"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["verify", "explain", "dump", "compact"])
def test_a_directory_that_another_process_has_open_is_refused_by_name(
    data: Path, command: str
) -> None:
    # given a process that has it open
    code = (
        "import sys; from lowmark.runtime import real_runtime; from lowmark.log import Log\n"
        "log = Log.open(real_runtime(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "open\n"
        # when somebody looks, or wants to change it
        result = lowmark(command, data)
        # then it is refused, and told who
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"{data} is open in another process (process {other.pid})" in result.stderr
        other.stdin.close()


# -- explain --------------------------------------------------------------------------------------


def test_a_log_is_explained_segment_by_segment(data: Path) -> None:
    result = lowmark("explain", data, "--group", "orders-0")
    assert result.exit_code == 0
    assert "2 entries up to the snapshot" in result.stdout
    assert "1 entry is live" in result.stdout
    assert "the newest segment always stays" in result.stdout
    assert "phase 3 would merge" in result.stdout
    assert "users-0" not in result.stdout


def test_an_explanation_as_json_is_one_object(data: Path) -> None:
    found = json.loads(lowmark("explain", data, "--json").stdout)
    orders, users = found["groups"]
    assert (orders["group"], orders["snapshot"]["index"], orders["live_entries"]) == (
        "orders-0",
        20,
        2,
    )
    first = orders["segments"][0]
    assert (first["entries"], first["live_entries"]) == (10, 1)
    assert first["reasons"] == [{"kind": "live", "text": "1 entry is live", "hold": None}]
    assert (first["freed_by"], orders["merges"][0]["sources"]) == ("phase 3", [1, 2])
    assert (users["in_wal_entries"], users["in_wal_bytes"], users["segments"]) == (2, 6, [])
    assert found["unreadable"] == {}


@pytest.mark.parametrize("command", ["explain", "dump", "compact"])
def test_a_group_that_is_not_there_is_wrong_use(data: Path, command: str) -> None:
    result = lowmark(command, data, "--group", "nobody")
    assert result.exit_code == 2
    assert "there is no group nobody" in result.stderr


def test_a_group_that_cannot_be_read_is_told_beside_the_others(data: Path) -> None:
    flip(data / "groups/users-0/group", 5)
    result = lowmark("explain", data)
    assert "orders-0" in result.stdout
    assert "the file fails its checksum" in result.stderr


# -- dump -----------------------------------------------------------------------------------------


def test_a_dump_shows_records_and_entries(data: Path) -> None:
    lines = lowmark("dump", data, "--data").stdout.splitlines()
    assert any("run  users-0  1..2 term 1  6 bytes  annbob" in line for line in lines)
    assert "  3  term 1  7 bytes  ok  order 3" in lines


def test_a_dump_is_limited_and_filtered(data: Path) -> None:
    lines = lowmark("dump", data, "--group", "orders-0", "--limit", 4).stdout.splitlines()
    assert len(lines) == 4
    assert not any("users-0" in line for line in lines)


def test_a_dump_as_json_is_one_object_a_line(data: Path) -> None:
    lines = [json.loads(line) for line in lowmark("dump", data, "--json").stdout.splitlines()]
    assert {line["kind"] for line in lines} == {"wal", "piece", "entry"}
    entry = next(line for line in lines if line["kind"] == "entry")
    assert (entry["index"], entry["term"], entry["ok"]) == (1, 1, True)


def test_a_dump_with_a_bad_entry_ends_with_1(data: Path) -> None:
    flip(data / SEGMENT, -40)
    result = lowmark("dump", data)
    assert result.exit_code == 1
    assert "BAD  PROBLEM:" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", pytest.param("--json", marks=pytest.mark.release)])
def test_a_dump_into_a_closed_pipe_ends_quietly(data: Path, options: str) -> None:
    command = f"{sys.executable} -m lowmark log dump {data} {options} | head -n 1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (result.stdout.count("\n"), result.stderr) == (1, "")


# -- compact --------------------------------------------------------------------------------------


def test_a_log_is_compacted_and_the_run_is_shown_and_kept(data: Path) -> None:
    # when two sparse segments are compacted
    found = json.loads(lowmark("compact", data, "--group", "orders-0", "--json").stdout)
    # then they are one, and what it cost is shown
    (run,) = found["runs"]
    assert (run["group"], run["trigger"], run["result"]) == ("orders-0", "asked", "done")
    assert (run["segments_before"], run["segments_after"]) == (3, 2)
    assert (run["merges"], run["sources"], run["entries_copied"]) == (1, 2, 2)
    assert run["bytes_before"] - run["bytes_after"] == run["bytes_freed"] > 0
    # and the run is on record
    orders = json.loads(lowmark("explain", data, "--json").stdout)["groups"][0]
    assert [(each["trigger"], each["result"]) for each in orders["runs"]] == [("asked", "done")]
    # and nothing is wrong afterwards, and nothing is left to do
    assert lowmark("verify", data).exit_code == 0
    again = lowmark("compact", data)
    assert again.exit_code == 0
    assert "nothing to do" in again.stdout


def test_a_group_in_quarantine_is_not_compacted_and_the_others_are(data: Path) -> None:
    (data / "groups/users-0/quarantine").write_text("a bad disk")
    result = lowmark("compact", data)
    assert result.exit_code == 1
    assert "refused: the group is in quarantine" in result.stdout
    assert "done" in result.stdout


@pytest.mark.parametrize("command", ["verify", "explain", "dump", "compact"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = lowmark(command, "--help")
    assert result.exit_code == 0
    assert f"lowmark log {command} ./data" in " ".join(result.stdout.split())
