"""A process that renews passes for as long as an application of Spark lasts.

    python -m lowmark.backend.keeper FOLDER

Spark plans a read or a write in a process of Python that ends a moment later, and says to no
process of ours when a read is over: a plan may run again, an hour later. So the driver's passes are
renewed beside it. What plans asks for a pass by a file in a folder that belongs to the application,
named after its Java process; the first one starts this process, which ends when that one has.

    <digest>     a pass to renew, as JSON: nodes, authority, table, right, and whether its plan ends
                 it. Never the pass itself
    lock         held by the keeper of the folder
    log          what it has to say

Whatever is killed: a keeper that died is followed by another one as soon as a plan asks; a Java
process that died ends all of its passes within seconds; if the machine stops, they end in minutes.
A pass that no plan has asked for in a day ends, too.

Each cluster has a thread of its own, so one that hangs delays the passes of no other. What the
keeper says while a cluster is away is one line, and one more when it is back.

The token is that of the environment, as it is for what plans: the one of the moment in which the
keeper first sees a pass, since the file of a token may get another one while the application lasts,
and only its own token renews a pass. If the environment has another token by then, or the token has
ended, nodes refuse to renew the pass. The keeper says so once and leaves it: it ends when its time
is over, and its tasks hear that they need a new plan. If a plan asks for it again, so does the
keeper, by the token of that moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from lowmark.backend import passing
from lowmark.backend.connection import addresses_of
from lowmark.backend.passing import Renewer
from lowmark.backend.remote import RemoteBackend
from lowmark.errors import LowmarkError, Rejected
from lowmark.node.logs import Logging, LogLevel, configure_logging
from lowmark.node.showing import found_secret
from lowmark.tokens import Right, Secret

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
RESTS_S: Final = 24 * 3_600.0
"""A pass that no plan has asked for ends after this."""
PASSES_MAX: Final = 1_000
"""A keeper renews this many; no cluster has more."""
_MODULE: Final = "lowmark.backend.keeper"
_LOCK: Final = "lock"
_LOG: Final = "log"
ENDS_S: Final = 60.0
"""What could not be ended until then ends by itself."""
_CONNECT_S: Final = 10.0
_JAVA: Final = "java"
_LEVELS: Final = 8
_started: Final[list[subprocess.Popen[bytes]]] = []
"""Keepers that this process has started: none is waited for."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One pass to renew, as its file says."""

    digest: str
    nodes: str
    ca: str
    table: int
    right: str
    ends: bool = False
    """Whether its plan ends it before the application does; then it is never made again."""


@dataclass(frozen=True, slots=True)
class Application:
    """A Java process of Spark, which no later one is taken for."""

    pid: int
    began: str
    """When, in ticks since this machine was started."""

    @staticmethod
    def of_this_process() -> Application | None:
        """The one that this process belongs to; None: it is no process of Spark's."""
        pid = os.getppid()
        for _ in range(_LEVELS):
            name, parent, began = _looked_at(pid)
            if name == _JAVA:
                return Application(pid, began)
            if parent < 1:
                return None
            pid = parent
        return None

    @property
    def goes_on(self) -> bool:
        """Whether that process is still there."""
        return _looked_at(self.pid)[2] == self.began

    @property
    def name(self) -> str:
        """Of its folder: never twice on a machine that runs."""
        return f"{self.pid}-{self.began}"


def _looked_at(pid: int) -> tuple[str, int, str]:
    """Name, parent and beginning of a process; of one that is gone, nothing."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "", 0, ""
    name, rest = text[text.index("(") + 1 :].rsplit(")", 1)
    fields = rest.split()
    return ("", 0, "") if fields[0] in {"Z", "X"} else (name, int(fields[1]), fields[19])


# -- what plans -----------------------------------------------------------------------------------


def ask(application: Application, wanted: Kept) -> None:
    """Have a pass renewed as long as the application lasts, or until it is asked for no more."""
    folder = _own_folder() / application.name
    folder.mkdir(mode=0o700, exist_ok=True)
    aside = folder / f".{wanted.digest}.{os.getpid()}"
    aside.write_text(json.dumps(asdict(wanted)))
    aside.rename(folder / wanted.digest)
    with _locked(folder) as free:
        if not free:
            return
    # Two that find it free at the same time start two: the second one ends at once.
    with (folder / _LOG).open("ab") as log:
        started = subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
    _started.append(started)


def forget(application: Application, digest: str) -> None:
    """Renew a pass no more."""
    (_own_folder() / application.name / digest).unlink(missing_ok=True)


def _own_folder() -> Path:
    """A folder that only this user may look into: other users of the machine learn nothing."""
    folder = Path(tempfile.gettempdir()) / f"lowmark-passes-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not folder.is_dir():
        raise Rejected(
            f"{folder} is not a folder of this user alone",
            hint="Remove it, or have $TMPDIR name another folder.",
        )
    return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether this process has the lock of a folder, in here."""
    with (folder / _LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


# -- what renews ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Asked:
    """A pass of which a file asks."""

    at_ns: int
    """When a plan asked for it last."""
    digest: bytes
    renewer: Renewer | None
    """None: its file or the token can't be read."""


class Keeper:
    """Renews what is asked for in one folder."""

    def __init__(self, folder: Path, application: Application) -> None:
        self._folder = folder
        self._application = application
        self._asked: dict[str, _Asked] = {}
        """By the name of the file."""
        self._clusters: dict[tuple[str, str, bytes], _Cluster] = {}
        """By nodes, authority and the digest of the token."""

    def run(self) -> None:
        """Until the application has ended."""
        while self._application.goes_on:
            self.look()
            time.sleep(LOOK_S)
        self.end()

    def look(self) -> None:
        """Take what is new, forget what is over, and end what rests."""
        files = {one.name: one for one in self._folder.iterdir() if _is_digest(one.name)}
        for name in self._asked.keys() - files.keys():
            gone = self._asked.pop(name)
            if gone.renewer is not None:  # its plan ends it
                gone.renewer.forget(gone.digest)
        for name, file in files.items():
            try:
                at_ns = file.stat().st_mtime_ns
            except OSError:
                continue  # it was forgotten just now
            known = self._asked.get(name)
            if known is None or known.at_ns != at_ns:
                self._take(file, at_ns, known)
            if time.time_ns() - at_ns > RESTS_S * 1e9:
                self._end(file)
        used = {asked.renewer for asked in self._asked.values()}
        for place, cluster in list(self._clusters.items()):
            if cluster.renewer not in used and cluster.renewer.idle:  # of a token of before, say
                cluster.close()
                del self._clusters[place]

    def _take(self, file: Path, at_ns: int, known: _Asked | None) -> None:
        """A plan has asked for a pass, for the first time or again."""
        renewer, digest = None if known is None else known.renewer, bytes.fromhex(file.name)
        if renewer is not None and renewer.keeps(digest):
            self._asked[file.name] = _Asked(at_ns, digest, renewer)
            return
        if known is None and len(self._asked) >= PASSES_MAX:
            return
        self._asked[file.name] = asked = _Asked(at_ns, digest, None)
        try:
            wanted, right = _read(file)
            asked.renewer = self._renewer(wanted)
        except (LowmarkError, OSError) as error:
            logger.warning("a pass will not be renewed", extra={"reason": str(error)})
            return
        # It was made, or renewed, no earlier than that: by its plan, or by the keeper before.
        in_s = passing.RENEW_S - (time.time_ns() - at_ns) / 1e9
        asked.renewer.keep(digest, right, wanted.table, in_s=max(0.0, in_s), again=not wanted.ends)

    def _renewer(self, wanted: Kept) -> Renewer:
        secret = found_secret()
        place = wanted.nodes, wanted.ca, b"" if secret is None else secret.digest()
        if place not in self._clusters:
            self._clusters[place] = _Cluster(wanted.nodes, wanted.ca, secret)
        return self._clusters[place].renewer

    def _end(self, file: Path) -> None:
        file.unlink(missing_ok=True)
        asked = self._asked.pop(file.name, None)
        if asked is not None and asked.renewer is not None:
            asked.renewer.end(asked.digest)

    def end(self) -> None:
        """End all of them, also what was asked for a moment ago, and leave nothing behind."""
        self.look()
        for asked in self._asked.values():
            if asked.renewer is not None:
                asked.renewer.end(asked.digest)
        for cluster in self._clusters.values():
            cluster.renewer.close()
        until_s = time.monotonic() + ENDS_S
        for cluster in self._clusters.values():
            cluster.renewer.join(max(0.0, until_s - time.monotonic()))
        for cluster in self._clusters.values():
            cluster.close()
        for file in self._folder.iterdir():
            file.unlink(missing_ok=True)
        self._folder.rmdir()


class _Cluster:
    """The way to one cluster by one token, and what is renewed there."""

    def __init__(self, nodes: str, ca: str, secret: Secret | None) -> None:
        self._nodes = nodes
        self._ca = ca
        self._secret = secret
        self._backend: RemoteBackend | None = None
        self.renewer = Renewer(self._connected)

    def _connected(self) -> RemoteBackend:
        """On the thread that renews: to connect may take long."""
        if self._backend is None:
            first, *also = addresses_of(self._nodes)
            self._backend = RemoteBackend(
                first, also=also, ca=self._ca or None, timeout_s=_CONNECT_S, secret=self._secret
            )
        return self._backend

    def close(self) -> None:
        """Renew nothing more, and end the connection."""
        self.renewer.close()
        if self._backend is not None:
            self._backend.close()


def _read(file: Path) -> tuple[Kept, Right]:
    """What a file asks for."""
    try:
        wanted = Kept(**json.loads(file.read_text()))
        return wanted, Right(wanted.right)
    except (ValueError, TypeError) as error:
        raise Rejected(f"{file.name} asks for no pass: {error}") from error


def _is_digest(name: str) -> bool:
    return len(name) == 64 and set(name) <= set("0123456789abcdef")


def main(folder: Path) -> None:
    """Keep the passes of one folder, unless another process does."""
    configure_logging(Logging(level=LogLevel.INFO))
    pid, _, began = folder.name.partition("-")
    with _locked(folder) as free:
        if free:
            Keeper(folder, Application(int(pid), began)).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
