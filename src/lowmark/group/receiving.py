"""A member's half of getting a snapshot: ask for it piece by piece, then hand it to the core.

Everything is gathered aside, by the log's installer; until the core has decided to take it, nothing
of the group changes. If the core does not want it any more, or the leader goes away, what was
gathered is thrown away. The same snapshot offered again (by the same leader after a broken
connection, or by the next one) is continued, not begun anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from crc32c import crc32c
from pyroaring import BitMap64

from lowmark.errors import LowmarkError
from lowmark.group.config import GroupConfig
from lowmark.group.errors import MachineTooOld
from lowmark.group.state_record import SnapshotMembers
from lowmark.group.wire import InstallOffer, InstallOver, InstallPiece, InstallWant, Item
from lowmark.log import GroupLog, Installer, InstallRefused, SnapshotMeta
from lowmark.log.snapshots import StateSum
from lowmark.raft import Install, Snapshot

LIVE_BYTES_MAX = 1 << 30
"""Of a live set; it is gathered in memory."""


class Host(Protocol):
    """What receiving asks of its group."""

    name: str
    node: int
    config: GroupConfig

    def send(self, item: Item) -> None: ...
    def now_ms(self) -> int: ...
    @property
    def applied(self) -> int: ...
    @property
    def machine_newest(self) -> int: ...


class Receiving:
    """The snapshot that is being fetched, if any."""

    def __init__(self, host: Host, log: GroupLog, *, whole: Callable[[Install], None]) -> None:
        self._host = host
        self._log = log
        self._whole = whole
        self._offer: InstallOffer | None = None
        self._installer: Installer | None = None
        self._live = bytearray()
        self._asked_bytes = 0
        """Asked for, and not here yet."""
        self._got_bytes = 0
        self._heard_at_ms = 0
        self._asked_at_ms = 0
        self._waiting_for_room = False
        self._complete = False
        self.refused: str = ""
        """Why the last offer was refused."""

    @property
    def busy(self) -> bool:
        """Whether a snapshot is being fetched."""
        return self._installer is not None

    @property
    def got_bytes(self) -> int:
        """How much has come."""
        return self._got_bytes

    # -- fetching -------------------------------------------------------------------------------

    def offered(self, offer: InstallOffer) -> None:
        """A leader has a snapshot for this member."""
        host = self._host
        if self._complete:
            return  # one is being put in force
        if offer.machine_version > host.machine_newest:
            error = MachineTooOld(host.name, needed=offer.machine_version, have=host.machine_newest)
            self._refuse(offer, error.message)
            return
        if offer.live_bytes > LIVE_BYTES_MAX:
            self._refuse(offer, f"a live set of {offer.live_bytes} bytes is too large")
            return
        if self._offer is not None and self._same(self._offer, offer):
            self._offer = offer
            self._ask(rewind=True)
            return
        self.abort()
        members = SnapshotMembers(offer.snapshot.members, offer.last_time).encode()
        snapshot = offer.snapshot
        meta = SnapshotMeta(
            index=snapshot.index,
            term=snapshot.term,
            members=members,
            machine_version=offer.machine_version,
        )
        try:
            self._installer = self._log.begin_install(meta, last_applied=host.applied)
        except LowmarkError as error:
            self._refuse(offer, error.message)
            return
        self._installer.on_room = self._room
        self._offer, self._got_bytes, self.refused = offer, 0, ""
        self._asked_bytes = 0
        self._heard_at_ms = host.now_ms()
        self._ask(rewind=False)

    @staticmethod
    def _same(a: InstallOffer, b: InstallOffer) -> bool:
        return (a.snapshot, a.state_bytes, a.state_checksum, a.live_bytes, a.live_checksum) == (
            b.snapshot,
            b.state_bytes,
            b.state_checksum,
            b.live_bytes,
            b.live_checksum,
        )

    def _refuse(self, offer: InstallOffer, reason: str) -> None:
        self.refused = reason
        self._host.send(
            InstallWant(
                offer.sender, self._host.node, offer.session, 0, 0, 0, 0, 0, refused=reason[:200]
            )
        )

    def _ask(self, *, rewind: bool) -> None:
        offer, installer = self._offer, self._installer
        if offer is None or installer is None:
            return
        self._asked_at_ms = self._host.now_ms()
        window = self._host.config.install_window_bytes
        # Only what has come makes room for more; but after a break nothing is under way.
        more = window if rewind else window - self._asked_bytes
        self._asked_bytes = window
        self._host.send(
            InstallWant(
                offer.sender,
                self._host.node,
                offer.session,
                installer.last_applied,
                installer.previous,
                installer.state_bytes,
                len(self._live),
                more,
                rewind,
            )
        )

    def piece(self, piece: InstallPiece) -> None:
        """A piece has come. One that does not follow is asked for again, with the next tick."""
        offer, installer = self._offer, self._installer
        if offer is None or installer is None or piece.session != offer.session or self._complete:
            return
        try:
            if piece.entries:
                installer.add_entries(piece.previous, piece.entries)
            elif piece.state:
                installer.add_state(piece.at, bytes(piece.state))
            elif piece.at + len(piece.live) > offer.live_bytes:
                raise InstallRefused("more of a live set came than was offered")
            elif piece.at <= len(self._live):
                self._live += piece.live[len(self._live) - piece.at :]
        except InstallRefused:
            if installer.error is not None:
                self.abort()
            return  # a gap, or a repetition: the tick asks again
        except LowmarkError as error:
            self._refuse(offer, error.message)
            self.abort()
            return
        size = len(piece.state) + len(piece.live) + sum(len(e.data) for e in piece.entries)
        self._got_bytes += size
        self._asked_bytes -= max(size, 1)
        self._heard_at_ms = self._host.now_ms()
        if len(self._live) >= offer.live_bytes and installer.state_bytes >= offer.state_bytes:
            self._complete = True
            self._whole(
                Install(
                    self._host.node, offer.sender, offer.term, offer.incarnation, offer.snapshot
                )
            )
        elif self._asked_bytes <= self._host.config.install_window_bytes // 2:
            if installer.has_room:
                self._ask(rewind=False)
            else:
                self._waiting_for_room = True

    def _room(self) -> None:
        if self._waiting_for_room:
            self._waiting_for_room = False
            self._ask(rewind=False)

    def over(self, message: InstallOver) -> None:
        """The sender has given up."""
        if self._offer is not None and self._offer.session == message.session:
            if not self._complete:
                # Kept for a while: the next offer may be of the same snapshot.
                self._heard_at_ms = min(self._heard_at_ms, self._host.now_ms())

    def tick(self) -> None:
        """Ask again if nothing comes; give up if nothing comes for long."""
        if self._installer is None or self._complete:
            return
        now, config = self._host.now_ms(), self._host.config
        if now - self._heard_at_ms >= config.install_stall_ms:
            self.abort()
        elif (
            now - max(self._asked_at_ms, self._heard_at_ms) >= config.install_stall_ms // 4
            and not self._waiting_for_room
        ):
            self._ask(rewind=True)

    # -- the end --------------------------------------------------------------------------------

    def finish(self, snapshot: Snapshot, on_done: Callable[[LowmarkError | None], None]) -> None:
        """The core has taken it: put it in force."""
        offer, installer = self._offer, self._installer
        if offer is None or installer is None or offer.snapshot != snapshot:
            on_done(InstallRefused("the snapshot that was taken is not the one that was fetched"))
            return

        def done(error: LowmarkError | None) -> None:
            self._forget()
            on_done(error)

        if crc32c(self._live) != offer.live_checksum:
            self.abort()
            on_done(InstallRefused("the live set that came has another checksum"))
            return
        try:
            live = BitMap64.deserialize(bytes(self._live))
        except (ValueError, MemoryError):
            self.abort()
            on_done(InstallRefused("the live set that came can't be read"))
            return
        try:
            sums = StateSum(offer.state_bytes, offer.state_checksum)
            installer.finish(live, done, state=sums)
        except LowmarkError as error:
            self.abort()
            on_done(error)

    def abort(self) -> None:
        """Throw away what was fetched."""
        installer = self._installer
        self._forget()
        if installer is not None:
            installer.on_room = lambda: None
            installer.abort()

    def _forget(self) -> None:
        self._offer = self._installer = None
        self._live = bytearray()
        self._complete = False
        self._waiting_for_room = False
