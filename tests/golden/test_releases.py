"""A directory of every release opens, gives the same answers, and takes rows and compaction.

From 0.1.0 on, bytes on disk change only with a version: this is where a change without one shows.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

import lowmark
from golden.answers import answers_of, rows_of

HERE = Path(__file__).parent
RELEASES = sorted(path.name.removesuffix(".tar.gz") for path in HERE.glob("*.tar.gz"))


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, object]]:
    with tarfile.open(HERE / f"{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data", json.loads((HERE / f"{request.param}.json").read_text())


def test_there_is_a_directory_of_this_release() -> None:
    # On the way to the next one (`.dev0`), that of the last one is the newest.
    assert "0.1.0" in RELEASES
    assert lowmark.__version__ in RELEASES or lowmark.__version__.endswith(".dev0")


@pytest.mark.slow
def test_a_release_s_directory_gives_the_answers_that_it_gave(
    release: tuple[Path, dict[str, object]],
) -> None:
    # given a directory that a killed process of that release has left
    data, answers = release
    # when it is opened, closed and opened again
    for _ in range(2):
        with lowmark.open(data, create=False) as db:
            # then every way to ask gives the same
            assert json.loads(json.dumps(answers_of(db), default=str)) == answers


@pytest.mark.slow
def test_a_release_s_directory_takes_rows_and_is_compacted(
    release: tuple[Path, dict[str, object]],
) -> None:
    data, answers = release
    with lowmark.open(data, create=False) as db:
        orders = db.table("orders")
        # when rows come and all of it is compacted
        orders.append([{"id": 200, "state": "of a later release"}])
        db.advance_watermark("now")
        assert orders.compact(engine="local").state == "done"
        # then what was there is there, with what came
        now = rows_of(orders.read(as_of=orders.snapshot().time), "id")
        assert [row for row in now if row["id"] != 200] == answers["now"]
        assert orders.get(200) == {
            "id": 200,
            "state": "of a later release",
            "amount": None,
            "note": "none",
        }
        assert not any(verdict.problems for verdict in orders.verify_ledgers())
