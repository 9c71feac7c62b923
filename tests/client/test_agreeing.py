"""A table that was made just now: its members have not agreed yet on what they all know."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import lowmark
from lowmark.client import agreeing
from lowmark.client.cursors import Cursors
from lowmark.client.staging import Stage
from lowmark.table import Bind, Drop, MembersBehind, RenewCursor


class New:
    """A database whose members need some time: they refuse what only newer ones know."""

    def __init__(self, backend: Any, *, refusals: int) -> None:
        self._backend = backend
        self.left = refusals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def propose(self, table: int, commands: Mapping[int, Any], **more: Any) -> Any:
        newer = any(isinstance(one, Bind | Drop | RenewCursor) for one in commands.values())
        if newer and self.left:
            self.left -= 1
            raise MembersBehind
        return self._backend.propose(table, commands, **more)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreeing, "_RETRY_S", 0.0)


def test_a_cursor_with_an_expiry_waits_until_the_members_of_its_table_agree(tmp_path: Path) -> None:
    with lowmark.open(tmp_path / "db") as db:
        table = db.create_table("t", {"id": "int64"}, key="id")
        # given members that agree only after a while
        new: Any = New(db.backend, refusals=3)
        cursors = Cursors(new, table.descriptor)
        # then a cursor is made, and renewed, when they have
        assert cursors.create("c", idle_expiry="7 days").idle_expiry_ms == 7 * 86_400_000
        new.left = 3
        assert cursors.renew("c", idle_expiry="1 day").idle_expiry_ms == 86_400_000
        # and rows are staged
        new.left = 3
        Stage(new, table.descriptor, lambda _: iter(()), number=1)._check()
        assert new.left == 0
        # but who won't wait hears of it, and nothing has changed
        new.left = 1
        with pytest.raises(MembersBehind):
            cursors.renew("c", idle_expiry="2 days", patience_s=0)
        assert cursors.get("c").idle_expiry_ms == 86_400_000
