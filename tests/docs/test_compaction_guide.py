"""What the guide for operators says of compaction is so: options, defaults, times, errors."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer.main

import lowmark
import lowmark.errors
from docs.shown import run_commands
from lowmark import client, ledger, spark
from lowmark.catalog.options import OPTIONS
from lowmark.cli.app import app
from lowmark.client.table import MEMORY_BYTES, Table
from lowmark.compaction import automatic
from lowmark.compaction import holds as run_holds
from lowmark.compaction import records as run_records
from lowmark.ledger import kernel
from lowmark.node.settings import LedgerSettings, load_settings
from lowmark.spark import archive, settings

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guide" / "operate.md").read_text()
[PART] = re.findall(r"^## Compaction\n(.*?)^## ", GUIDE, re.MULTILINE | re.DOTALL)
WORDS = " ".join(PART.split())


def rows(column: str) -> list[list[str]]:
    """The rows of the table whose first column is called this."""
    [found] = re.findall(
        rf"^\| {re.escape(column)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PART, re.MULTILINE
    )
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found.splitlines()]


def commands() -> Any:
    found: Any = typer.main.get_command(app)
    return found.commands


def test_every_option_of_compact_is_listed_with_its_name_in_python() -> None:
    listed = [re.findall(r"--[a-z-]+", row[0]) for row in rows("option of `lowmark compact`")]
    known = {
        option
        for each in commands()["compact"].params
        for option in each.opts
        if option.startswith("--")
    }
    everywhere = {"--data", "--json", "--node", "--ca", "--token-file"}
    assert {option for some in listed for option in some} == known - everywhere
    named = {
        name
        for row in rows("option of `lowmark compact`")
        for name in re.findall(r"`(\w+)", row[1])
    }
    # `here` is only taken to say what it is called now.
    taken = set(Table.compact.__annotations__) - {"return", "progress", "step", "here"}
    assert named == taken


def test_every_command_that_is_named_is_there_with_its_options() -> None:
    named = re.findall(r"`lowmark ([a-z][^`]*)`", PART)
    assert len(named) > 15
    for text in named:
        words = re.findall(r"[a-z]+", text.split(" -")[0])
        command = commands()[words[0]]
        if len(words) > 1 and words[1] in getattr(command, "commands", {}):
            command = command.commands[words[1]]
        known = {option for each in command.params for option in each.opts}
        assert set(re.findall(r"--[a-z-]+", text)) <= known, text
    for name in commands()["ledger"].commands:
        assert f"`lowmark ledger {name}" in PART
    for name in set(commands()["runs"].commands) - {"list"}:
        assert f"`lowmark runs {name}" in PART


def test_the_triggers_and_their_defaults_are_those_of_the_catalog() -> None:
    said = {row[0].strip("`"): row[1] for row in rows("option of the table")}
    assert said == {
        name: OPTIONS[name].default or "none"
        for name in ("dirty_bytes", "dirty_percent", "max_lag_ms", "min_lag_ms", "history")
    }
    assert [row[0].strip("`") for row in rows("`compaction`")] == list(OPTIONS["compaction"].words)
    assert OPTIONS["compaction"].default == "manual"


def test_every_setting_of_ledgers_is_listed_with_its_default() -> None:
    said = {row[0].strip("`"): row[1] for row in rows("name")}
    assert list(said) == [field.name for field in fields(LedgerSettings)]
    given = {f"LOWMARK_LEDGER_{name.upper()}": text for name, text in said.items() if text}
    assert load_settings(environment=given).ledger == LedgerSettings()


def test_the_times_and_sizes_that_are_named_are_those_of_the_code() -> None:
    assert (automatic.LOOK_S, "looks every 5 seconds" in WORDS) == (5.0, True)
    assert (automatic._BACK_OFF_S, automatic._BACK_OFF_S_MAX) == (30.0, 3_600.0)
    assert "for 30 seconds, then for twice as long each time, up to an hour" in WORDS
    assert f"The last {run_records._FINISHED_KEPT} of a table are kept" in WORDS
    assert (run_holds.BACKLOG_LEASE_MS, "over ten minutes after its process is gone" in WORDS) == (
        600_000,
        True,
    )
    assert f"a sample of 1 in {kernel.SAMPLE}" in WORDS
    assert (MEMORY_BYTES, "1 GiB by default" in WORDS) == (1 << 30, True)
    assert (settings.TASK_ATTEMPTS, "process died, four times" in WORDS) == (4, True)
    assert f"`{archive.SWITCH}=off`" in WORDS


def test_the_errors_that_are_named_are_there() -> None:
    named = set(re.findall(r"`([A-Z]\w+)`", PART))
    assert {"LedgerDamaged", "RunUnderWay", "WorkersUnfit", "GapFound"} <= named
    for name in named:
        known = any(hasattr(room, name) for room in (lowmark.errors, client, ledger, spark))
        assert known or name.isupper(), name  # a variable of the environment
    # and of what can be wrong with Spark nothing is left out but a failure of the work itself
    errors = {name for name in spark.__all__ if isinstance(getattr(spark, name), type)}
    assert errors - {"SparkRunner", "SparkNotStarted", "TaskFailed"} <= named


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["here", pytest.param("sh", marks=pytest.mark.release)])
def test_the_commands_work_one_after_another(tmp_path: Path, way: str) -> None:
    # given a shop with some history
    with lowmark.open(tmp_path / "shop") as db:
        orders = db.create_table("orders", {"id": "int64", "v": "string"}, key="id", partitions=2)
        orders.append([{"id": at % 50, "v": f"{at}"} for at in range(500)])
        db.advance_watermark("now")
    # when the guide's commands are run as they stand
    script = "".join(re.findall(r"^```sh\n(.*?)^```", PART, re.MULTILINE | re.DOTALL))
    out, err = run_commands(script, tmp_path, way=way)
    # then all are content, and tell of what was done
    assert out.count("500 rows read → 50 live") == 1
    assert out.count("compacted orders in") == 2
    assert out.count("waits for a worker") == 1
    assert re.search(r"orders: run \S+ done in", err)
