"""`lowmark worker`, and runs that are left to one: in this process, on a directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.history import settled
from cli.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return settled(tmp_path / "shop")


def events(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_a_worker_makes_the_runs_that_are_left_to_it_and_says_so(shop: Shop) -> None:
    # given a run that waits, and one that was cancelled before a worker came
    first = shop.json("compact", "orders", "--detach", "--verify")
    assert (first["state"], first["engine"]) == ("planned", None)
    assert shop.json("runs", "cancel", first["run"])["state"] == "cancelled"
    said = shop.run("compact", "orders", "--detach")
    (waits, _) = [one["run"] for one in shop.json("runs", "list")]
    assert said.startswith(f"run {waits} waits for a worker")
    # when a worker looks once, then it makes the one that waits
    ready, began, done = events(shop.run("worker", "--engine", "local", "--once", "--json"))
    assert ready == {"event": "ready", "at": str(shop.data)}
    assert (began["event"], began["table"], began["run"]) == ("began", "orders", waits)
    assert (done["event"], done["state"], done["run"]) == ("done", "done", waits)
    assert {one["run"]: one["state"] for one in shop.json("runs", "list")} == {
        waits: "done",
        first["run"]: "cancelled",
    }
    # and it says nothing more on stdout for people: that is on stderr
    again = shop.invoke("worker", "--engine", "local", "--once")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "looks after the tables" in again.stderr


def test_what_a_worker_cannot_do_is_refused_by_name(shop: Shop) -> None:
    assert "--lease can't be 0.5" in shop.refused("worker", "--lease", "0.5", code=2)
    wrong = shop.refused("compact", "orders", "--detach", "--dry-run", code=2)
    assert "--dry-run and --detach exclude each other" in wrong
    assert "takes no engine" in shop.refused("compact", "orders", "--detach", "--engine", "local")
