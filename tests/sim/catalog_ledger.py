"""What a whole cluster knows of its catalog, over all nodes and all lives: the judge of lives.

Every node shows what its copy of the update log holds. Of that the ledger makes a catalog of its
own, version by version; every node's versions, every answer and every refusal is held against it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from lowmark.catalog import Catalog, CatalogRefused, Command, Executed, NotInForce, Snapshot
from lowmark.catalog.catalog import EMPTY
from lowmark.catalog.commands import evaluate
from lowmark.catalog.entries import Entry
from lowmark.catalog.errors import CatalogBusy
from lowmark.catalog.history import PartedSnapshot, apply_update
from lowmark.catalog.serializers import decode
from lowmark.errors import LowmarkError, Unavailable
from lowmark.group import Future, OutcomeUnknown
from lowmark.runtime import HybridTime
from sim.catalog_world import bytes_of
from sim.cluster_ledger import Broken, confirm

__all__ = ["Asked", "Ledger", "Looked"]


@dataclass
class Asked:
    """Commands that somebody gave to a node."""

    number: int
    node: int
    commands: tuple[Command, ...]
    token: bytes
    floor: int
    """The newest version that somebody had been told of before."""
    future: Future[Executed]
    died: bool = False
    """Whether the node went away before it answered."""
    ceiling: int = 0
    """The newest version when the answer came."""

    def __str__(self) -> str:
        return f"command {self.number} at node {self.node}: {self.commands}"


@dataclass
class Looked:
    """A look-up by time."""

    node: int
    time: int
    future: Future[Catalog]
    at_least: int = 0
    after: Asked | None = None
    """What somebody had just been refused."""
    calm: bool = False


@dataclass
class Ledger:
    """Every version that was ever made."""

    updates: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    """What stood in the log, and when it was written."""
    entries: dict[int, tuple[Entry, ...]] = field(default_factory=dict)
    catalogs: list[Catalog] = field(default_factory=lambda: [EMPTY])
    tokens: dict[bytes, int] = field(default_factory=dict)
    told_of: int = 0
    """The newest version that anybody was told of."""
    _bytes: dict[int, bytes] = field(default_factory=dict)

    @property
    def latest(self) -> int:
        return len(self.catalogs) - 1

    def bytes_of(self, version: int) -> bytes:
        known = self._bytes.get(version)
        if known is None:
            known = self._bytes[version] = bytes_of(self.catalogs[version])
        return known

    def shown(self, value: bytes, time: int, *, who: str) -> None:
        """A node shows what stands in its log."""
        found = decode(value)
        if isinstance(found, PartedSnapshot):
            confirm(found.version <= self.latest, f"{who} cut at {found.version}: nobody made it")
            whole = self.bytes_of(found.version)
            digest = blake2b(whole, digest_size=16).digest()
            same = (found.length, found.digest) == (len(whole), digest)
            confirm(same, f"{who}: the snapshot of {found.version}, in parts, differs")
            return
        if isinstance(found, Snapshot):
            version = found.catalog.version
            confirm(version <= self.latest, f"{who} cut the log at {version}, which nobody made")
            confirm(value == self.bytes_of(version), f"{who}: the snapshot of {version} differs")
            return
        known = self.updates.get(found.version)
        if known is not None:
            confirm(known == (value, time), f"{who}: version {found.version} was made twice")
            return
        latest = self.catalogs[-1]
        confirm(found.version == latest.version + 1, f"{who}: {found.version} after {self.latest}")
        confirm(
            found.token not in self.tokens,
            f"a command is in version {self.tokens.get(found.token)} and in {found.version}",
        )
        self.updates[found.version] = value, time
        self.entries[found.version] = found.entries
        self.tokens[found.token] = found.version
        self.catalogs.append(apply_update(latest, found, time=HybridTime(time)))
        now = self.catalogs[-1]
        confirm(now.activates_at > latest.activates_at, "versions come into force in order")

    def at(self, time: int) -> int:
        """The version in force at a time."""
        times = [catalog.activates_at for catalog in self.catalogs]
        return bisect_right(times, time) - 1

    # -- at the end -----------------------------------------------------------------------------

    def judge(self, asked: Asked) -> str:
        """Whether what became of commands is what their author was told; gives the outcome."""
        version = self.tokens.get(asked.token)
        if asked.died:
            return "died"
        error = asked.future.error
        if error is None:
            return self._judge_done(asked, asked.future.result(), version)
        match error:
            case CatalogRefused():
                confirm(version is None, f"refused, but it is in version {version}: {asked}")
                confirm(
                    self.justified(asked, error, up_to=asked.ceiling),
                    f"refused for no reason ({error.message}): {asked}",
                )
                return "refused"
            case NotInForce():
                made = version == error.version or (
                    version is None
                    and not evaluate(self.catalogs[error.version], asked.commands).entries
                )
                confirm(made, f"said to be made in {error.version}, not {version}: {asked}")
                return "not in force"
            case OutcomeUnknown():
                return "unknown"
            case CatalogBusy() | Unavailable():
                confirm(version is None, f"{type(error).__name__}, but it is in {version}: {asked}")
                return "busy" if isinstance(error, CatalogBusy) else "unavailable"
            case _:
                raise Broken(f"an error that nobody expects: {error!r}: {asked}")

    def _judge_done(self, asked: Asked, done: Executed, version: int | None) -> str:
        if not any(done.applied):
            confirm(version is None, f"nothing to do, but it is in version {version}: {asked}")
            held = done.catalog.version
            confirm(held >= asked.floor, f"held against {held}, not {asked.floor}: {asked}")
            evaluation = evaluate(self.catalogs[held], asked.commands)
            confirm(not evaluation.entries, f"there was something to do: {asked}")
            return "nothing to do"
        confirm(version is not None, f"it is said to be done, and is in no version: {asked}")
        assert version is not None
        confirm(version > asked.floor, f"made in {version}, not after {asked.floor}: {asked}")
        confirm(done.catalog.version >= version, f"answered with {done.catalog.version}: {asked}")
        evaluation = evaluate(self.catalogs[version - 1], asked.commands)
        confirm(evaluation.applied == done.applied, f"it did something else: {asked}")
        confirm(evaluation.entries == self.entries[version], f"it wrote something else: {asked}")
        return "done"

    def justified(self, asked: Asked, error: LowmarkError, *, up_to: int) -> bool:
        """Whether some version in question refuses the commands, with the same words."""
        return any(
            refusal(self.catalogs[version], asked.commands) == str(error)
            for version in range(asked.floor, up_to + 1)
        )

    def judge_look(self, look: Looked, *, skewed: bool) -> str:
        """Whether a look-up found what was in force, and what its author could count on."""
        if not look.future.done:
            return "died"
        if look.future.error is not None:
            named = isinstance(look.future.error, LowmarkError)
            confirm(named, f"an error that nobody expects: {look.future.error!r}")
            return type(look.future.error).__name__
        version = look.future.result().version
        wanted = self.at(look.time)
        confirm(
            version == wanted,
            f"node {look.node} found version {version} at {look.time}, where {wanted} is in force",
        )
        if skewed:
            return "found"
        confirm(
            version >= look.at_least,
            f"node {look.node} found version {version} after {look.at_least} was said to be done",
        )
        if look.after is not None and look.after.future.error is not None:
            error = look.after.future.error
            confirm(
                self.justified(look.after, error, up_to=version),
                f"node {look.node} found {version}, which does not show why: {error.message}",
            )
        return "found"


def refusal(catalog: Catalog, commands: Sequence[Command]) -> str:
    try:
        evaluate(catalog, commands)
    except CatalogRefused as error:
        return str(error)
    return ""
