"""Commands on a directory whose disk is full but for what is reserved. Each opens it anew.

Reserving more than any disk has makes every disk a full one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.history import settle, settled
from cli.shop import Shop

ROWS = 200


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    shop = settled(tmp_path / "shop", rows=ROWS, keys=50)
    monkeypatch.setenv("LOWMARK_LOG_DISK_RESERVED_BYTES", "1048576GiB")
    return shop


@pytest.mark.slow
def test_a_full_disk_refuses_rows_by_name_and_no_other_command(shop: Shop) -> None:
    # when rows are appended, then they are refused with the directory and the figures
    said = shop.refused("append", "orders", "-", stdin="id,status\nnew,new\n")
    for words in (str(shop.data), "are free", "are reserved", "lowmark compact"):
        assert words in said
    # and everything else goes on
    assert len(shop.lines("orders", "--columns", "id")) == ROWS
    assert shop.json("get", "orders", "o-7")["status"] == "new-157"
    assert "deleted 1 key" in shop.run("delete", "orders", "o-7")
    settle(shop)
    shop.run("cursor", "create", "orders", "c")
    assert shop.json("compact", "orders", "--engine", "local")["state"] == "done"
    shop.run("table", "drop", "orders", "--yes")
    assert shop.json("table", "list") == []
