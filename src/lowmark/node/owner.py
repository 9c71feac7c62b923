"""Which process has a data directory open, and where it answers others of this machine.

The process that has the lock is the owner. It listens on a Unix socket, or, run by `lowmark serve`,
at the address that it was given, and says in the lock file where. A socket's name in the file
system is no claim: a server that starts takes over the name of a live one without a word, and one
that ends late removes the name of its successor. So no name is used twice, and only the owner makes
or removes any. In order:

    1. the lock is taken                      other processes wait for an address in the lock file
    2. names that dead owners left are gone   none of them is in a lock file any more
    3. the socket is bound, by a new name     no other process knows of it
    4. the address is in the lock file        others come in
    ...
    5. the endpoint is closed                 others are refused, and look into the lock file again
    6. the lock goes, and the note with it    one of the others takes it

A crash at any step leaves a name at most, for the next owner's step 2.

While guests hold something (readers, runs), the owner says so in the lock file, and says it again
every now and then. The next owner can't know what they hold until they are back. So it gives them
a time: until it is over, or all are back, it cuts nothing, sweeps nothing, and, if one of them held
history (a reader as of a time), leaves the low watermark where it is. Nothing else that guests hold
keeps the watermark while their owner lives, so nothing else does then. What says so stays in the
lock file from one owner to the next, for as long as it counts:

    1. a guest is about to hold something     nothing is held yet
    2. the lock file says so                  a crash from here on leaves that to the next owner
    3. it holds it                            the guest hears of it
    ...
    4. it holds nothing any more, and the     the next owner waits for no guest
       lock file says so, a moment later

The folder of the socket can be entered by its user alone (mode 0700), for the socket's own mode
follows the umask. It is `endpoint/` in the data directory, unless the path is too long for a
socket: then it is a folder of the user's in `XDG_RUNTIME_DIR` or the temporary folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import tempfile

import msgspec

from lowmark.errors import Rejected
from lowmark.log import files
from lowmark.version import __version__

SCHEME = "unix:"
HELD_MS_MAX = 120_000
"""No owner waits longer for guests of another, whatever the clocks say."""
GUESTS_MAX = 64
"""As many are named in the lock file; if there are more, none is."""
_PATH_MAX = 107
_PLAIN = re.compile(r"[A-Za-z0-9/._+-]+")
"""Bytes that a path of a Unix socket may have."""


class Owner(msgspec.Struct, frozen=True):
    """What an owner says of itself in the lock file."""

    pid: int
    host: str
    release: str
    address: str
    """Where it answers processes of this machine; empty while it starts."""
    settings: dict[str, str] = {}
    """Those that are not as usual."""
    alone: str = ""
    """Why it lets no other process in, if it does not."""
    held_until_ms: int = 0
    """Guests may come back until then (milliseconds since 1970) to what they hold; 0: they hold
    nothing."""
    guests: list[int] = []
    """The sessions of those that hold something; empty if they are too many to be named."""
    history: bool = True
    """Whether one of them may hold history; of an earlier release, that is not known."""
    boot: str = ""
    """Which start of the machine it is of: no guest outlives it."""
    serves: bool = False
    """Whether it is a node that is served (`lowmark serve`): when it is gone, guests go on at
    another node or wait for it, and do not take its place, for other nodes may know it."""

    @staticmethod
    def here(
        address: str,
        settings: dict[str, str],
        *,
        alone: str = "",
        awaited: Awaited | None = None,
        serves: bool = False,
    ) -> Owner:
        """This process."""
        return Owner(
            pid=os.getpid(),
            host=os.uname().nodename,
            release=__version__,
            address=address,
            settings=settings,
            alone=alone,
            held_until_ms=0 if awaited is None else awaited.until_ms,
            guests=[] if awaited is None else sorted(awaited.guests or ()),
            history=awaited is not None and awaited.history,
            boot=_boot(),
            serves=serves,
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, release {self.release} of Lowmark"

    def is_of_here(self) -> bool:
        """Whether its process number is one of this machine (and this container)."""
        return self.host == os.uname().nodename

    def note(self) -> bytes:
        """As it stands in the lock file."""
        return msgspec.json.encode(self)

    @staticmethod
    def noted(note: bytes) -> Owner | None:
        """From a lock file; None if its holder has not said, or not yet, or half of it."""
        try:
            return msgspec.json.decode(note, type=Owner)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None


class Awaited(msgspec.Struct, frozen=True):
    """Guests that hold something, or did with the owner before."""

    until_ms: int
    """They may come back until then."""
    guests: frozenset[int] | None
    """Their sessions; None: they are not known, or too many."""
    history: bool = True
    """Whether one of them may hold history, which the low watermark must not pass."""

    @staticmethod
    def of(until_ms: int, guests: frozenset[int], *, history: bool) -> Awaited | None:
        """Guests by their sessions, if there are any."""
        if not guests:
            return None
        return Awaited(until_ms, guests if len(guests) <= GUESTS_MAX else None, history)

    def without(self, guest: int) -> Awaited | None:
        """When one of them is back."""
        if self.guests is None:
            return self
        return Awaited.of(self.until_ms, self.guests - {guest}, history=self.history)

    def and_also(self, other: Awaited | None) -> Awaited:
        """Those of both."""
        if other is None:
            return self
        until_ms = max(self.until_ms, other.until_ms)
        history = self.history or other.history
        if self.guests is None or other.guests is None:
            return Awaited(until_ms, None, history)
        return Awaited.of(until_ms, self.guests | other.guests, history=history) or self


def awaited_after(left: bytes, now_ms: int) -> Awaited | None:
    """The guests of the owner before, by what it left, that may come back."""
    before = Owner.noted(left)
    if before is None or before.boot != _boot() or before.held_until_ms <= now_ms:
        return None
    until_ms = min(before.held_until_ms, now_ms + HELD_MS_MAX)
    return Awaited(until_ms, frozenset(before.guests) or None, before.history)


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def is_plain_path(path: str) -> bool:
    """Whether a path is the same in a URI: Flight cuts off what comes behind `#` and `?`, and
    refuses other characters.
    """
    return _PLAIN.fullmatch(path) is not None


def _may_be_used(path: str) -> bool:
    return len(os.fsencode(path)) <= _PATH_MAX and is_plain_path(path)


def address_token() -> str:
    """The name of a socket, drawn at random."""
    return f"{secrets.token_hex(4)}.sock"


def new_address(data: str) -> str:
    """An address for the owner of a directory that no process had before it.

    Only for the process that has the lock: names of earlier owners are removed.
    """
    folder, prefix = os.path.join(os.path.abspath(data), files.ENDPOINT), ""
    name = address_token()
    if not _may_be_used(os.path.join(folder, name)):
        home = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        folder = os.path.join(home, f"lowmark-{os.getuid()}")
        # Several directories have their sockets here: each removes no names but its own.
        prefix = hashlib.blake2b(os.fsencode(os.path.realpath(data)), digest_size=8).hexdigest()
        name = f"{prefix}-{name}"
        if not _may_be_used(os.path.join(folder, name)):
            raise Rejected(
                f"there is no place for a socket of {data}: {folder} is too long a path, or has"
                " other characters than letters, digits and ._-+",
                hint="Set XDG_RUNTIME_DIR or TMPDIR to a folder with a short and plain path.",
            )
    _make_private(folder)
    for left in os.listdir(folder):
        if left.startswith(prefix):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, left))
    return SCHEME + os.path.join(folder, name)


def _make_private(folder: str) -> None:
    """Make a folder that no other user can enter, or see that it is one."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Rejected(
            f"{folder} is not a folder of this user's, and sockets are made in none else",
            hint="Remove it, or set XDG_RUNTIME_DIR to a folder of your own.",
        )
    if found.st_mode & 0o077:
        os.chmod(folder, 0o700)


def remove_address(address: str) -> None:
    """Remove the name of a socket that this process made; it may be gone."""
    with contextlib.suppress(OSError):
        os.unlink(address.removeprefix(SCHEME))
