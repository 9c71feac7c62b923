"""A process that renews passes for as long as an application of Spark lasts.

    python -m lowmark.backend.keeper FOLDER

Spark plans a read or a write in a process of Python that ends a moment later, and says to no
process of ours when a read is over: a plan may run again, an hour later. So the driver's passes are
renewed beside it. What plans asks for a pass by a file in a folder that belongs to the application,
named after its Java process; the first one starts this process, which ends when that one has.

    <digest>     a pass to renew, as JSON: nodes, authority, table, right. Never the pass itself
    lock         held by the keeper of the folder
    log          what it has to say

Whatever is killed: a keeper that died is followed by another one as soon as a plan asks; a Java
process that died ends all of its passes within seconds; if the machine stops, they end in minutes.
A pass that no plan has asked for in a day ends, too. The token is that of the environment, as it is
for what plans: the one of the moment in which the keeper first sees a pass, since the file of a
token may get another one while the application lasts, and only its own token renews a pass.
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
from lowmark.backend.remote import RemoteBackend
from lowmark.errors import LowmarkError, Rejected
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


class Keeper:
    """Renews what is asked for in one folder."""

    def __init__(self, folder: Path, application: Application) -> None:
        self._folder = folder
        self._application = application
        self._kept: dict[str, tuple[Kept, float]] = {}
        """By digest; and when each is to be renewed."""
        self._secrets: dict[str, Secret | None] = {}
        """By digest: the tokens by which they were made."""
        self._backends: dict[tuple[str, str, bytes], RemoteBackend] = {}

    def run(self) -> None:
        """Until the application has ended."""
        while self._application.goes_on:
            self.look()
            time.sleep(LOOK_S)
        self.end()

    def look(self) -> None:
        """Take what is new, forget what is over, and renew what is due."""
        files = {one.name: one for one in self._folder.iterdir() if _is_digest(one.name)}
        for name in self._kept.keys() - files.keys():
            del self._kept[name], self._secrets[name]
        for name, file in files.items():
            if name not in self._kept and len(self._kept) < PASSES_MAX:
                with contextlib.suppress(LowmarkError, OSError, ValueError, TypeError):
                    wanted = Kept(**json.loads(file.read_text()))
                    self._secrets[name] = found_secret()
                    self._kept[name] = wanted, time.monotonic() + passing.RENEW_S
        for name, (wanted, due_s) in list(self._kept.items()):
            if self._rests(files[name]):
                self._end(wanted)
            elif time.monotonic() >= due_s:
                again_s = self._renew(wanted)
                self._kept[name] = wanted, time.monotonic() + (again_s or RESTS_S)

    def _rests(self, file: Path) -> bool:
        try:
            return time.time() - file.stat().st_mtime > RESTS_S
        except OSError:
            return False  # it was forgotten just now

    def end(self) -> None:
        """End all of them, and leave nothing behind."""
        for wanted, _ in list(self._kept.values()):
            self._end(wanted)
        for backend in self._backends.values():
            backend.close()
        for file in self._folder.iterdir():
            file.unlink(missing_ok=True)
        self._folder.rmdir()

    def _end(self, wanted: Kept) -> None:
        (self._folder / wanted.digest).unlink(missing_ok=True)
        with contextlib.suppress(LowmarkError):
            passing.end(self._backend(wanted), bytes.fromhex(wanted.digest))
        self._kept.pop(wanted.digest, None)
        self._secrets.pop(wanted.digest, None)

    def _renew(self, wanted: Kept) -> float:
        try:
            backend = self._backend(wanted)
        except LowmarkError as error:
            logger.warning("a pass was not renewed", extra={"reason": error.message})
            return passing.AGAIN_S
        digest = bytes.fromhex(wanted.digest)
        return passing.renewed(backend, digest, Right(wanted.right), wanted.table)

    def _backend(self, wanted: Kept) -> RemoteBackend:
        secret = self._secrets[wanted.digest]
        place = wanted.nodes, wanted.ca, b"" if secret is None else secret.digest()
        if place not in self._backends:
            first, *also = addresses_of(wanted.nodes)
            self._backends[place] = RemoteBackend(
                first, also=also, ca=wanted.ca or None, timeout_s=_CONNECT_S, secret=secret
            )
        return self._backends[place]


def _is_digest(name: str) -> bool:
    return len(name) == 64 and set(name) <= set("0123456789abcdef")


def main(folder: Path) -> None:
    """Keep the passes of one folder, unless another process does."""
    pid, _, began = folder.name.partition("-")
    with _locked(folder) as free:
        if free:
            Keeper(folder, Application(int(pid), began)).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
