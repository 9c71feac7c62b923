"""What Spark's workers are sent, and what they say when something fails there."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyspark.serializers import CloudPickleSerializer, read_int
from pyspark.sql.types import StructType
from pyspark.util import handle_worker_exception

from lowmark.client import Database
from lowmark.frames.carrying import HIDE, carried_source, worded
from lowmark.frames.columns import spark_schema
from lowmark.frames.options import Options
from lowmark.frames.reading import TableReader, schema_of
from lowmark.frames.source import LowmarkSource

WITHOUT_US = """
import sys, pickle

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "lowmark":
            raise ModuleNotFoundError("No module named 'lowmark'")

sys.meta_path.insert(0, Gone())
thing = pickle.load(sys.stdin.buffer)
if isinstance(thing, type):
    thing({}).schema()
"""


@pytest.fixture
def reader(db: Database, place: str) -> TableReader:
    db.create_table("t", {"id": "int64"}, key="id", partitions=1).append([{"id": 1}])
    options = Options.read({"path": place, "table": "t"})
    return TableReader(options, spark_schema(schema_of(options)))


def sent(thing: object) -> bytes:
    """As Spark sends it."""
    return CloudPickleSerializer().dumps(thing)  # type: ignore[no-untyped-call,no-any-return]


def test_a_reader_comes_to_a_worker_as_it_is(reader: TableReader) -> None:
    reader._where = pc.field("id") > 0
    there = pickle.loads(sent(reader))  # noqa: S301
    assert type(there) is TableReader
    [part] = there.partitions()
    assert [batch.to_pylist() for batch in there.read(part)] == [[{"id": 1}]]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a reader", "the source"])
def test_a_worker_without_lowmark_says_so_and_what_to_do(reader: TableReader, what: str) -> None:
    # given what a worker is sent
    thing = reader if what == "a reader" else carried_source(LowmarkSource)
    # when one takes it apart whose Python has no Lowmark
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_US],
        input=sent(thing),
        capture_output=True,
        env={"PATH": os.environ["PATH"]},
        check=False,
    )
    # then it names that Python, and the cure
    said = done.stderr.decode()
    assert f"uses {sys.executable}, which can't import Lowmark" in said
    assert 'os.environ["PYSPARK_PYTHON"]' in said
    assert "During handling" not in said


class Asked:
    """What Spark calls."""


@worded
class Failing(Asked):
    def plan(self, place: str) -> StructType:
        return spark_schema(schema_of(Options.read({"path": place, "table": "nix"})))

    def read(self, place: str) -> Iterator[StructType]:
        yield self.plan(place)

    def fail(self) -> None:
        raise ValueError("a fault of ours")


def told(error: BaseException) -> str:
    """What a worker tells Java of an error."""
    told = io.BytesIO()
    handle_worker_exception(error, told)
    told.seek(0)
    read_int(told)  # type: ignore[no-untyped-call]
    return told.read(read_int(told)).decode()  # type: ignore[no-untyped-call]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this were a process of Spark's."""
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_PORT", "1")
    monkeypatch.setenv(HIDE, "")


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("how", ["plan", "read"])
def test_an_error_of_ours_begins_with_its_sentence(db: Database, place: str, how: str) -> None:
    db.create_table("t", {"id": "int64"}, key="id")
    said = ""
    try:
        list(getattr(Failing(), how)(place))
    except Exception as error:
        said = told(error)
    first = said.splitlines()[0]
    assert first.startswith("lowmark.errors.TableUnknown: ")
    assert said.count("nix") == 1
    assert "Traceback" not in said


@pytest.mark.usefixtures("worker")
def test_any_other_error_keeps_its_traceback() -> None:
    said = ""
    try:
        Failing().fail()
    except ValueError as error:
        said = told(error)
    assert said.startswith("Traceback")
    assert "in fail" in said


def test_outside_of_workers_nothing_is_hidden(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(HIDE, raising=False)
    with pytest.raises(Exception, match="no"):
        Failing().plan(str(tmp_path / "nowhere"))
    assert HIDE not in os.environ
