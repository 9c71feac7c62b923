"""What tables are measured against: a bare file, SQLite, PostgreSQL, and memory-mapped Arrow files.

What is done for the peers
    1. Their input is made before the clock starts, in the form that they take fastest; where ours
       is given dicts, SQLite is given the same, and tuples in a variant.
    2. SQLite's table is `WITHOUT ROWID`, which is faster here; its WAL is checkpointed every 10,000
       pages instead of 1,000.
    3. PostgreSQL compares text byte by byte (locale C), and no checkpoint falls into a run, nor
       comes at its end. Its client speaks the protocol by itself, with nothing between the rows and
       the socket; `psql` and the binary format were no faster.
    4. Ids come in ascending order, so that rows are added at the end of their trees.

SQLite comes with Python. PostgreSQL is used if its programs are installed (Debian: `postgresql`),
and no Python package is needed for it; without it, `find_postgres` says so, and its figure is left
out.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyarrow import ipc

from benchmarks.figure import PeerMissing
from benchmarks.table_workload import Row, tuples_of
from clusters.processes import ChildDied, Children, NotInTime, Program
from lowmark.errors import Unavailable

SQLITE_CHECKPOINT_PAGES = 10_000
POSTGRES_FOLDERS = "/usr/lib/postgresql"
"""Where Debian and Ubuntu keep the programs of each version."""
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0


# -- a bare file ------------------------------------------------------------------------------


def write_raw(path: Path, messages: Sequence[pa.Buffer], *, synced_every: int = 1) -> None:
    """Write a message and sync it, again and again; or some before each sync."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        for number, message in enumerate(messages, start=1):
            os.write(fd, message)
            if number % synced_every == 0 or number == len(messages):
                os.fdatasync(fd)
    finally:
        os.close(fd)


# -- SQLite -----------------------------------------------------------------------------------


@contextmanager
def sqlite_opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A database with an empty table; what is committed is durable (WAL, synchronous=FULL)."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA wal_autocheckpoint = {SQLITE_CHECKPOINT_PAGES}")
        db.execute(
            "CREATE TABLE IF NOT EXISTS rows (id TEXT PRIMARY KEY, customer INTEGER,"
            " amount INTEGER, note TEXT) WITHOUT ROWID"
        )
        yield db
    finally:
        db.close()


def sqlite_insert(
    db: sqlite3.Connection, batches: Iterable[Sequence[Row] | Sequence[Mapping[str, Any]]]
) -> None:
    """A transaction per batch, and at the end all of it where it belongs."""
    for batch in batches:
        values = "?, ?, ?, ?" if isinstance(batch[0], tuple) else ":id, :customer, :amount, :note"
        db.execute("BEGIN")
        db.executemany(f"INSERT INTO rows VALUES ({values})", batch)
        db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


# -- Arrow files, mapped into memory ----------------------------------------------------------


class MappedFiles:
    """The same batches, as an Arrow stream in a file per partition."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, number: int, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        """Write one of the files."""
        with ipc.new_stream(self._folder / f"{number}.arrow", schema) as writer:
            for batch in batches:
                writer.write_batch(batch)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for path in sorted(self._folder.glob("*.arrow")):
            with pa.memory_map(str(path)) as mapped:
                yield from ipc.open_stream(mapped)


# -- PostgreSQL -------------------------------------------------------------------------------


def find_postgres() -> Path:
    """The folder with PostgreSQL's programs: the PATH's, else the newest of Debian's."""
    found = [Path(program).resolve().parent for program in [shutil.which("initdb")] if program]
    packaged = (folder / "bin" for folder in Path(POSTGRES_FOLDERS).glob("*"))
    found += sorted(packaged, key=lambda folder: _number(folder.parent.name), reverse=True)
    for folder in found:
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return folder
    raise PeerMissing("PostgreSQL is left out, because it is not installed")


def _number(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return 0.0


def postgres_version() -> str:
    """For people."""
    try:
        program = find_postgres() / "postgres"
    except PeerMissing:
        return "(not installed)"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return said.stdout.removeprefix("postgres (PostgreSQL) ").strip()


def copy_lines(batch: pa.RecordBatch) -> bytes:
    """A batch in COPY's text format; our texts have nothing that must be escaped."""
    return "".join(f"{a}\t{b}\t{c}\t{d}\n" for a, b, c, d in tuples_of(batch)).encode()


class Postgres:
    """A server of our own in `folder`, up inside the `with`, gone after it.

    Settings are PostgreSQL's own, and among them `fsync`, `synchronous_commit` and
    `full_page_writes` are on; only `max_wal_size` and `checkpoint_timeout` are raised. It listens
    on a Unix socket, in a folder of its own because a socket's path must be short, and trusts
    whoever can reach it.

    It refuses to run as root. Then it is run as `nobody`, who must be able to reach `folder`: it
    and the one around it, which are the bench's own, are opened for passing through.
    """

    def __init__(self, folder: Path) -> None:
        self._bin = find_postgres()
        self._folder = folder
        self._data = folder / "postgres"
        self._children = Children(folder)
        self._server: Program | None = None
        self._as: list[str] = []
        self.sockets = Path()
        """Where its socket is, while it is up."""
        self.client: PostgresClient

    def __enter__(self) -> Self:
        self.sockets = Path(tempfile.mkdtemp(prefix="lowmark-pg-"))
        try:
            self._data.mkdir()
            if os.geteuid() == 0:
                self._step_down()
            self._init()
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._end()

    @property
    def pid(self) -> int:
        """The number of its first process."""
        assert self._server is not None
        return self._server.pid

    def _step_down(self) -> None:
        """Have everything run as nobody."""
        program = shutil.which("setpriv")
        if program is None:
            raise PeerMissing(
                "PostgreSQL is left out, because it does not run as root and setpriv is missing",
                hint="Run the bench as another user.",
            )
        nobody = pwd.getpwnam("nobody")
        who = ["--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid), "--clear-groups"]
        # With another user the kernel forgets that the child is to die with us; this keeps it.
        self._as = [program, *who, "--pdeathsig", "keep"]
        for folder in (self._folder, self._folder.parent):
            folder.chmod(folder.stat().st_mode | 0o011)
        for folder in (self._data, self.sockets):
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        if subprocess.run([*self._as, "test", "-w", self._data], check=False).returncode:
            raise PeerMissing(
                "PostgreSQL is left out, because it does not run as root and the user nobody can't"
                f" reach {self._folder.parent}",
                hint="Choose a folder that everybody may pass through with --dir.",
            )

    def _init(self) -> None:
        options = ["--auth=trust", "--username=lowmark", "--encoding=UTF8", "--locale=C"]
        done = subprocess.run(
            [*self._as, self._bin / "initdb", "-D", self._data, *options, "--no-sync"],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it did not say why"])[-1]
            raise PeerMissing(f"PostgreSQL is left out, because initdb failed: {last}")

    def _start(self) -> None:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": self.sockets,
            "fsync": "on",
            "synchronous_commit": "on",
            "max_wal_size": "8GB",
            "checkpoint_timeout": "1h",
        }
        chosen = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._server = self._children.start_program(
            [*self._as, str(self._bin / "postgres"), "-D", str(self._data), *chosen],
            name="postgres-server",
        )

        def answers() -> bool:
            with suppress(OSError, PostgresRefused):
                self.client = PostgresClient(self.sockets / ".s.PGSQL.5432")
                return True
            return False

        self._children.eventually(
            answers, what="an answer from PostgreSQL", deadline_s=START_DEADLINE_S
        )

    def _end(self) -> None:
        # Killed with -9 it would leave a piece of shared memory behind; this ends it at once, too.
        server = self._server
        if server is not None and server.alive:
            os.kill(server.pid, signal.SIGQUIT)
            with suppress(ChildDied, NotInTime):
                self._children.eventually(
                    lambda: not server.alive,
                    what="the end of PostgreSQL",
                    deadline_s=STOP_DEADLINE_S,
                )
        self._children.kill_all()
        shutil.rmtree(self.sockets, ignore_errors=True)


class PostgresRefused(Unavailable):
    """What the server answered instead."""


class PostgresClient:
    """As much of PostgreSQL's protocol (version 3) as it takes to run a statement, and COPY."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(str(path))
            self._from = self._socket.makefile("rb")
            body = struct.pack("!i", 3 << 16) + b"user\0lowmark\0database\0postgres\0\0"
            self._socket.sendall(struct.pack("!i", len(body) + 4) + body)
            self._until(b"Z")
        except BaseException:
            self._socket.close()
            raise

    def run(self, statement: str) -> None:
        """Run a statement, and wait until it is done."""
        self._say(b"Q", statement.encode() + b"\0")
        self._until(b"Z")

    def copy(self, table: str, many: Iterable[Sequence[bytes]]) -> None:
        """A COPY, and with it a transaction, for each: all is durable when this returns."""
        for pieces in many:
            self._say(b"Q", f"COPY {table} FROM STDIN\0".encode())
            self._until(b"G")
            for lines in pieces:
                self._say(b"d", lines)
            self._say(b"c", b"")
            self._until(b"Z")

    def close(self) -> None:
        """Leave."""
        with suppress(OSError):
            self._say(b"X", b"")
        self._from.close()
        self._socket.close()

    def _say(self, kind: bytes, body: bytes) -> None:
        self._socket.sendall(kind + struct.pack("!i", len(body) + 4) + body)

    def _until(self, wanted: bytes) -> None:
        """Hear messages up to that one; an error is raised."""
        while True:
            head = self._from.read(5)
            if len(head) < 5:
                raise PostgresRefused("PostgreSQL hung up")
            kind, length = struct.unpack("!ci", head)
            body = self._from.read(length - 4)
            if kind == b"E":
                said = b", ".join(part[1:] for part in body.split(b"\0") if part[:1] == b"M")
                raise PostgresRefused(f"PostgreSQL said: {said.decode(errors='replace')}")
            if kind == wanted:
                return
