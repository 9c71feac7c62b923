"""`lowmark catalog` on a log whose snapshot is in parts, from a running node and from its data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from catalog.world import table
from lowmark.catalog import update_log
from lowmark.catalog.history import PartedSnapshot
from lowmark.catalog.serializers import decode
from lowmark.catalog.update_log import PART_PREFIX, update_key
from lowmark.cli.app import app
from node.running import Running

NAMES = [f"t{n}" for n in range(8)]


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["catalog", *words])
    assert result.exit_code == 0, result.output
    return result.output


def check(*where: str) -> None:
    shown = json.loads(run("show", *where, "--json"))
    assert (shown["version"], [one["name"] for one in shown["tables"]]) == (3, [*NAMES, "later"])
    before = json.loads(run("show", "--version", "2", *where, "--json"))
    assert [one["name"] for one in before["tables"]] == NAMES
    rows = json.loads(run("log", *where, "--json"))
    assert [row["version"] for row in rows] == [2, 3]
    assert "all of version 2" in rows[0]["changes"][0]
    assert "created table public.later" in run("diff", "2", "3", *where)


@pytest.mark.slow
def test_what_is_in_parts_is_shown_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_log, "PART_BYTES_MAX", 200)
    with Running(tmp_path, name="n1") as running:
        bridge, catalogs = running.node.bridge, running.node.catalogs
        assert catalogs is not None
        # given a log that begins with a snapshot in parts
        bridge.ask(lambda: catalogs.execute([table(name) for name in NAMES]), timeout_s=10)
        assert bridge.ask(lambda: catalogs.compact(2), timeout_s=10)
        bridge.ask(lambda: catalogs.execute(table("later")), timeout_s=10)
        metastore = catalogs._metastore
        entry = bridge.ask(lambda: metastore.get(update_key(2)), timeout_s=10)
        assert entry is not None
        assert isinstance(decode(entry.value), PartedSnapshot)
        assert len(bridge.ask(lambda: metastore.range(PART_PREFIX), timeout_s=10).entries) > 2
        # then it is shown from the node, and from what that leaves
        check("--node", running.endpoint)
    check("--data", str(tmp_path))
