"""Which calls may be asked again when their answer is lost: each is in a list, and no other may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from backend.conftest import embedded
from lowmark.backend.operating import BaselineAsk, CompactCatalogAsk, DrainAsk
from lowmark.backend.port import BESIDE, RETRY, Backend, LooksUp, retry_of
from lowmark.client import Database
from lowmark.node.messages import CHANGES, LOOKS, only_looks
from lowmark.server import Server

AT_ONCE = {"check", "close"}
"""They ask nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Server, Database]]:
    with (
        Database(embedded(tmp_path / "data")) as db,
        Server(db, f"unix:{tmp_path}/socket") as server,
    ):
        yield server, db


def calls_of(port: type) -> set[str]:
    return {name for name, call in vars(port).items() if callable(call) and name[0] != "_"}


def test_every_call_has_a_retry_class(served: tuple[Server, Database]) -> None:
    server, _ = served
    # those of the port
    assert set(RETRY) == calls_of(Backend) - AT_ONCE
    # and what clients and nodes ask a server besides
    answered = set(server.endpoint._service._own)
    assert set(BESIDE) == (answered | calls_of(LooksUp)) - set(RETRY)


def test_every_action_either_looks_or_changes_something(served: tuple[Server, Database]) -> None:
    _, db = served
    node = db.backend.node  # type: ignore[attr-defined]
    assert node.operating is not None
    assert set(node.operating._answers) <= set(node.actions)
    # (a node that listens to others has one more)
    assert {*node.actions, "cluster.peer-address"} == LOOKS | CHANGES
    assert not LOOKS & CHANGES


@pytest.mark.parametrize("name", ["operate", "brand_new", ""])
def test_what_no_list_names_is_not_safe_to_ask_again(name: str) -> None:
    assert retry_of(name, ()) == "unknown"
    assert retry_of("operate", (name, b"{}")) == "unknown"
    assert not only_looks(name, b"{}")


def test_an_action_is_safe_only_when_it_is_asked_to_look() -> None:
    asked = {
        "node.drain": (DrainAsk(node="n1", look=True), DrainAsk(node="n1")),
        "zone.baseline": (BaselineAsk(zone="z"), BaselineAsk(zone="z", auto=True)),
        "catalog.compact": (CompactCatalogAsk(dry_run=True), CompactCatalogAsk()),
    }
    for action, (look, change) in asked.items():
        assert retry_of("operate", (action, msgspec.json.encode(look))) == "safe"
        assert retry_of("operate", (action, msgspec.json.encode(change))) == "unknown"
        # and one whose body can't be read is not, either
        assert retry_of("operate", (action, b"[")) == "unknown"
    for action in CHANGES:
        assert retry_of("operate", (action, b"{}")) == "unknown"
    for action in LOOKS:
        assert retry_of("operate", (action, b"{}")) == "safe"
