"""Flight clients with none of our code, with TLS and tokens: Go's and pyarrow's."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import lowmark
from lowmark.authority import Authority
from lowmark.client import Database
from lowmark.tokens import drawn
from server.nodes import COLUMNS, Nodes
from server.world import Served

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "flight-go"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("other-clients")]

Go = Callable[..., subprocess.CompletedProcess[str]]


class Closed(Nodes):
    """One node that speaks TLS, and asks for a token."""

    SHARED = ("tls",)

    def __init__(self, path: Path) -> None:
        super().__init__(path, 1, started=0)
        self.authority = Authority.found(str(path / "tls"))
        self.ca = f"{self.authority.folder}/ca.pem"
        self.authority.issue("n0", [self.address(0).rpartition(":")[0]])
        self.more[0] = ["--tls", f"{self.authority.folder}/n0", "--tokens"]
        self.token_file = str(path / "n0" / "admin.token")
        self.start(0)

    @property
    def token(self) -> str:
        return Path(self.token_file).read_text().strip()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    with Closed(tmp_path_factory.mktemp("closed")) as node:
        yield node


@pytest.fixture
def db(node: Closed) -> Iterator[Database]:
    with lowmark.connect(f"lowmark+tls://{node.address(0)}", ca=node.ca, token=node.token) as db:
        yield db


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built from modules that are on this machine."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed")
    program = tmp_path_factory.mktemp("go") / "flight-go"
    built = subprocess.run(
        [go, "build", "-o", str(program), "."],
        cwd=EXAMPLE,
        env={**os.environ, "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"},
        capture_output=True,
        text=True,
        check=False,
    )
    away = ("module lookup disabled", "requires go >= ")
    if any(words in built.stderr for words in away):
        pytest.skip(f"`go mod download` in {EXAMPLE.name} gets what is away: {built.stderr[-300:]}")
    assert built.returncode == 0, built.stderr
    return program


@pytest.fixture
def go(program: Path, node: Closed) -> Go:
    def run(
        *words: str, token_file: str = node.token_file, ca: str = node.ca or ""
    ) -> subprocess.CompletedProcess[str]:
        options = ["-node", node.address(0), "-ca", ca, "-token-file", token_file]
        return subprocess.run(
            [str(program), *options, *words], capture_output=True, text=True, check=False
        )

    return run


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def code(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode, done.stdout) == (1, ""), done
    return done.stderr.partition(":")[0]


@pytest.mark.release  # shorter: the same calls by pyarrow below
def test_go_lists_reads_and_appends_a_million_rows(db: Database, go: Go) -> None:
    table = db.create_table("go", COLUMNS, key="id", partitions=4)
    assert "go 4\n" in said(go("list"))
    assert said(go("append", "go", "1000000")) == "1000000 rows are durable\n"
    # our own client finds each of them once, and so does Go
    rows = pa.concat_tables(pa.Table.from_batches([batch]) for batch in table.read(limit=2_000_000))
    assert rows.num_rows == 1_000_000
    assert sorted(rows["id"].to_pylist()) == list(range(1_000_000))
    assert rows["status"].unique().to_pylist() == ["new"]
    assert said(go("read", "go")) == "1000000 rows in 4 partitions\n"
    # and rows of which one batch is more than one message of a client's default size
    wide = db.create_table("wide", COLUMNS, partitions=1)
    for width in (100, 1_000, 100_000):
        count = 10_000_000 // width
        wide.append(pa.table({"id": range(count), "status": ["x" * width] * count}))
    assert said(go("read", "wide")) == "110100 rows in 1 partitions\n"


@pytest.mark.release  # shorter: the same calls by pyarrow below
def test_go_hears_the_codes_that_the_guide_lists(
    db: Database, go: Go, node: Closed, tmp_path: Path
) -> None:
    other = Authority.found(str(tmp_path / "tls"))
    (tmp_path / "wrong").write_text(drawn().reveal())
    (tmp_path / "none").write_text("lm1_none")
    db.create_table("numbers", {"number": "int64"})
    strangers = [
        ({"token_file": ""}, "Unauthenticated", "TokenMissing"),
        ({"token_file": str(tmp_path / "wrong")}, "Unauthenticated", "TokenUnknown"),
        ({"token_file": str(tmp_path / "none")}, "Unauthenticated", "TokenMalformed"),
        # (this one is Go's own: no call has reached the node)
        (
            {"ca": f"{other.folder}/ca.pem"},
            "Unavailable",
            "certificate signed by unknown authority",
        ),
    ]
    for words in (["list"], ["read", "orders"], ["append", "orders", "10"]):
        # a client that shows no token, or one that is wrong, is told so before anything else
        for shown, refused_by, why in strangers:
            refused = go(*words, **shown)
            assert code(refused) == refused_by
            assert why in refused.stderr
            assert node.token not in refused.stderr
    for words in (["read", "nowhere"], ["append", "nowhere", "10"]):
        unknown = go(*words)
        assert code(unknown) == "NotFound", unknown.stderr
        assert "TableUnknown: there is no table nowhere" in unknown.stderr
    unfit = go("append", "numbers", "10")
    assert code(unfit) == "InvalidArgument"
    assert "ColumnRefused" in unfit.stderr


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority.found(str(tmp_path / "tls"))
    authority.issue("n0", ["127.0.0.1"])
    return authority


@pytest.fixture
def served(tmp_path: Path, authority: Authority) -> Iterator[Served]:
    with Served(tmp_path / "data", tls=f"{authority.folder}/n0", tokens=True) as served:
        yield served


def test_pyarrow_lists_reads_and_appends_with_tls_and_a_token(
    served: Served, authority: Authority
) -> None:
    table = served.db.create_table("arrow", COLUMNS, key="id", partitions=2)
    roots = Path(authority.folder, "ca.pem").read_bytes()
    token = served.db.tokens.create("arrow").token
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
    where = flight.FlightDescriptor.for_path("arrow")
    rows = pa.table({"id": range(1_000), "status": ["new"] * 1_000})
    url = served.address.replace("lowmark", "grpc")
    with flight.FlightClient(url, tls_root_certs=roots) as client:
        assert b"arrow" in [one.descriptor.path[0] for one in client.list_flights(b"", options)]
        writer, answers = client.do_put(where, rows.schema, options)
        for batch in rows.to_batches(max_chunksize=100):
            writer.write_batch(batch)
            assert answers.read() is not None
        writer.close()
        assert sum(batch.num_rows for batch in table.read(limit=1_000)) == 1_000
        info = client.get_flight_info(where, options)
        parts = [client.do_get(one.ticket, options).read_all() for one in info.endpoints]
        assert sorted(pa.concat_tables(parts)["id"].to_pylist()) == list(range(1_000))
        # a wrong table, a missing and a wrong token, a wrong authority
        with pytest.raises(pa.ArrowKeyError, match="TableUnknown"):
            client.get_flight_info(flight.FlightDescriptor.for_path("nowhere"), options)
        with pytest.raises(flight.FlightUnauthenticatedError, match="TokenMissing"):
            client.get_flight_info(where)
        wrong = [(b"authorization", f"Bearer {drawn().reveal()}".encode())]
        with pytest.raises(flight.FlightUnauthenticatedError, match="TokenUnknown"):
            client.get_flight_info(where, flight.FlightCallOptions(headers=wrong))
    other = Authority.found(f"{authority.folder}-other")
    with (
        flight.FlightClient(
            url, tls_root_certs=Path(other.folder, "ca.pem").read_bytes()
        ) as stranger,
        pytest.raises(flight.FlightUnavailableError),
    ):
        stranger.get_flight_info(where, options)
