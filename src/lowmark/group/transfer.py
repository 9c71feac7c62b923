"""A snapshot on its way from the leader to a member: both halves.

The leader offers it, then sends what is asked for. The receiver drives: it says what it has, and
how much it is ready to take (a window); so nothing is sent that was not asked for, a slow receiver
slows the sender down, and after a broken connection it goes on where it was. Pieces take turns with
all else that the node sends to members that catch up (`throttle`). First come live entries
that the receiver lacks, in log order, then the state, then the live set.

The member asks for it piece by piece, then hands it to the core. Everything is gathered aside, by
the log's installer; until the core has decided to take it, nothing of the group changes. If the
core does not want it any more, or the leader goes away, what was gathered is thrown away. The same
snapshot offered again (by the same leader after a broken connection, or by the next one) is
continued, not begun anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c
from pyroaring import BitMap64

from lowmark.errors import LowmarkError
from lowmark.group.errors import MachineTooOld
from lowmark.group.storage import SnapshotMembers
from lowmark.group.throttle import Throttle
from lowmark.group.wire import InstallOffer, InstallOver, InstallPiece, InstallWant, item_bytes
from lowmark.log import GroupLog, Installer, InstallRefused, SnapshotMeta, SnapshotSender
from lowmark.log.snapshots import StateSum
from lowmark.raft import Install, Snapshot
from lowmark.runtime import DiskFull

if TYPE_CHECKING:
    from lowmark.group.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class SendProgress:
    """How far the sending of a snapshot is."""

    index: int
    sent_bytes: int
    sent_entries: int
    total_entries: int
    total_state_bytes: int
    bytes_left: int
    """Of live entries that are not read yet, by the average of those that are."""


class _Send:
    """One snapshot, on its way to one member."""

    def __init__(self, to: int, session: int, install: Install, live: bytes, now_ms: int) -> None:
        self.to = to
        self.session = session
        self.install = install
        self.live = live
        self.sender: SnapshotSender | None = None
        self.state_at = 0
        self.live_at = 0
        self.entries_over = False
        self.credit = 0
        self.sent_bytes = 0
        self.sent_entries = 0
        self.total_entries = 0
        self.heard_at_ms = now_ms
        self.offered_at_ms = now_ms
        self.piece_at_ms = now_ms
        """When a piece was last sent."""
        self.waiting = False
        """Whether it waits for its turn."""

    def bytes_left(self) -> int:
        if self.sender is None:
            return 0
        left = self.sender.state_bytes - self.state_at + len(self.live) - self.live_at
        if self.sent_entries and not self.entries_over:
            entries = max(0, self.total_entries - self.sent_entries)
            left += self.sent_bytes * entries // self.sent_entries
        return left

    def close(self) -> None:
        if self.sender is not None:
            self.sender.close()
            self.sender = None


class Sends:
    """All snapshots that this member is sending, at most one to each other."""

    def __init__(
        self,
        host: Group,
        log: GroupLog,
        throttle: Throttle,
        *,
        answers: Callable[[int], bool],
        failed: Callable[[int], None],
    ) -> None:
        self._host = host
        self._log = log
        self._throttle = throttle
        self._answers = answers
        self._failed = failed
        self._sends: dict[int, _Send] = {}
        self._refused_until_ms: dict[int, int] = {}
        """A member that has just refused one would refuse the next one, too."""
        self.refusals: dict[int, str] = {}
        """Why members refused the last one that they were offered."""

    def start(self, install: Install) -> None:
        """The core wants a member to have a snapshot."""
        self.stop(install.to)
        if self._host.now_ms() < self._refused_until_ms.get(install.to, 0):
            self._failed(install.to)  # the core will ask again
            return
        current = self._log.snapshot
        newer = current is None or current.meta.index != install.snapshot.index
        if current is None or current.live is None or newer:
            self._failed(install.to)  # a newer one has come: the core will ask for that
            return
        session = self._host.draw_session()
        live = current.live.serialize()
        send = _Send(install.to, session, install, live, self._host.now_ms())
        send.total_entries = len(current.live)
        self._sends[install.to] = send
        self._offer(send)

    def _offer(self, send: _Send) -> None:
        current = self._log.snapshot
        if current is None or current.meta.index != send.install.snapshot.index:
            if send.sender is None:
                self._give_up(send, "a newer snapshot has replaced it")
            return
        install, meta = send.install, current.meta
        send.offered_at_ms = self._host.now_ms()
        try:
            if send.sender is None:
                # Everything is asked for in the answer; until then only the sums are needed.
                send.sender = self._log.open_sender(f"node {send.to}", last_applied=meta.index)
        except LowmarkError as error:
            self._give_up(send, error.message)
            return
        self._host.send(
            InstallOffer(
                send.to,
                self._host.node,
                send.session,
                install.term,
                install.incarnation,
                install.snapshot,
                meta.machine_version,
                SnapshotMembers.decode(meta.members).last_time,
                send.total_entries,
                len(send.live),
                send.sender.state_sum.length,
                send.sender.state_sum.checksum,
                crc32c(send.live),
            )
        )

    def wanted(self, want: InstallWant) -> None:
        """A member says what it has and how much more it takes."""
        send = self._sends.get(want.sender)
        if send is None or send.session != want.session:
            over = InstallOver(want.sender, self._host.node, want.session, "it is not being sent")
            self._host.send(over)
            return
        send.heard_at_ms = self._host.now_ms()
        if want.refused:
            rest_ms = self._host.config.install_stall_ms // 10
            self._refused_until_ms[send.to] = self._host.now_ms() + rest_ms
            self.refusals[send.to] = want.refused
            self._give_up(send, want.refused)
            return
        self.refusals.pop(send.to, None)
        try:
            if want.rewind or (send.credit == 0 and send.sent_bytes == 0):
                self._rewind(send, want)
                send.credit = 0
        except LowmarkError as error:
            self._give_up(send, error.message)
            return
        send.credit += want.window_bytes
        self._pump(send)

    def _rewind(self, send: _Send, want: InstallWant) -> None:
        send.close()
        current = self._log.snapshot
        if current is None or current.meta.index != send.install.snapshot.index:
            raise LowmarkError("a newer snapshot has replaced it")
        send.sender = self._log.open_sender(f"node {send.to}", last_applied=want.last_applied)
        send.sender.go_on_after(want.previous)
        send.entries_over = False
        send.state_at, send.live_at = want.state_at, want.live_at

    def _pump(self, send: _Send) -> None:
        if send.sender is not None and send.credit > 0 and not send.waiting:
            send.waiting = True
            self._throttle.wait(lambda: self._turn(send))

    def _turn(self, send: _Send) -> int:
        """Send the next piece; say how much the node's budget pays for it."""
        send.waiting = False
        if self._sends.get(send.to) is not send or send.sender is None or send.credit <= 0:
            return 0
        piece = self._next_piece(send, send.sender)
        if piece is None:
            return 0
        size = len(piece.state) + len(piece.live) + sum(len(e.data) for e in piece.entries)
        send.credit -= max(size, 1)
        send.sent_bytes += size
        send.sent_entries += len(piece.entries)
        send.piece_at_ms = self._host.now_ms()
        self._host.send(piece)
        # Not now: this piece shall be on its way while the next one is read, and whatever else the
        # loop has to do comes between them.
        self._host.later(0, lambda: self._pump(send))
        return item_bytes(piece)

    def _next_piece(self, send: _Send, sender: SnapshotSender) -> InstallPiece | None:
        size = self._throttle.piece_bytes(self._host.config.install_piece_bytes)
        to, node, session = send.to, self._host.node, send.session
        try:
            if not send.entries_over:
                previous, entries = sender.entries(bytes_max=size)
                if entries:
                    return InstallPiece(to, node, session, previous, entries, 0, b"", b"")
                send.entries_over = True
            if send.state_at < sender.state_bytes:
                at, chunk = send.state_at, sender.state(send.state_at, size)
                send.state_at += len(chunk)
                return InstallPiece(to, node, session, 0, [], at, chunk, b"")
        except LowmarkError as error:
            self._give_up(send, error.message)
            return None
        if send.live_at < len(send.live):
            at = send.live_at
            chunk = send.live[at : at + size]
            send.live_at += len(chunk)
            return InstallPiece(to, node, session, 0, [], at, b"", chunk)
        return None

    def _give_up(self, send: _Send, reason: str) -> None:
        self.stop(send.to)
        self._host.send(InstallOver(send.to, self._host.node, send.session, reason))
        self._failed(send.to)

    def stop(self, to: int) -> None:
        """The member has the snapshot, or needs it no more."""
        send = self._sends.pop(to, None)
        if send is not None:
            send.close()

    def stop_all(self) -> None:
        """Another member leads."""
        for to in list(self._sends):
            self.stop(to)
        self.refusals.clear()

    def tick(self) -> None:
        """Offer again what nobody answered; give up what makes no progress."""
        now, config = self._host.now_ms(), self._host.config
        for send in list(self._sends.values()):
            if now - send.heard_at_ms >= config.install_stall_ms and not self.waits(send.to):
                self._give_up(send, "the receiver says nothing")
            elif send.sent_bytes == 0 and now - send.offered_at_ms >= config.election_ms:
                self._offer(send)
            elif send.waiting and now - send.piece_at_ms >= config.install_stall_ms // 8:
                # One without anything in it: its receiver shall not take the wait for a stall.
                send.piece_at_ms = now
                send.credit -= 1
                node, session = self._host.node, send.session
                self._host.send(InstallPiece(send.to, node, session, 0, [], 0, b"", b""))

    def waits(self, to: int) -> bool:
        """Whether only the node's budget holds a snapshot to a member up.

        The receiver may have said nothing for long, because it has not got yet what it asked for;
        but it answers heartbeats.
        """
        send = self._sends.get(to)
        return send is not None and send.waiting and self._answers(to)

    def progress(self, to: int) -> SendProgress | None:
        """How far the snapshot to a member is."""
        send = self._sends.get(to)
        if send is None:
            return None
        return SendProgress(
            index=send.install.snapshot.index,
            sent_bytes=send.sent_bytes,
            sent_entries=send.sent_entries,
            total_entries=send.total_entries,
            total_state_bytes=send.sender.state_bytes if send.sender is not None else 0,
            bytes_left=send.bytes_left(),
        )


LIVE_BYTES_MAX = 1 << 30
"""Of a live set; it is gathered in memory."""


class Receives:
    """The snapshot that is being fetched, if any."""

    def __init__(self, host: Group, log: GroupLog, *, whole: Callable[[Install], None]) -> None:
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
        self.disk_full = False
        """Whether it was for want of space; until one is begun, or entries are written."""

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
            self._refuse(offer, error)
            return
        if offer.live_bytes > LIVE_BYTES_MAX:
            what = f"a live set of {offer.live_bytes} bytes is too large"
            self._refuse(offer, InstallRefused(what))
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
            self._refuse(offer, error)
            return
        self._installer.on_room = self._room
        self._offer, self._got_bytes, self.refused = offer, 0, ""
        self.disk_full = False
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

    def _refuse(self, offer: InstallOffer, error: LowmarkError) -> None:
        self.refused = error.message
        self.disk_full = isinstance(error, DiskFull)
        to, reason = offer.sender, error.message[:200]
        self._host.send(
            InstallWant(to, self._host.node, offer.session, 0, 0, 0, 0, 0, refused=reason)
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
            self._refuse(offer, error)
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
                    self._host.node,
                    offer.sender,
                    offer.term,
                    offer.incarnation,
                    offer.snapshot,
                    self._host.raft.core.lineage,
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
            self.disk_full = isinstance(error, DiskFull)
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
