"""Why a command was refused, and why bytes can't be read.

Every refused command raises `CatalogRefused`, whatever was wrong with it: it names the object, says
what is wrong and what to change, and has a short word for programs. Nothing was written.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from lowmark.errors import Conflict, Corrupt, Rejected, Unavailable
from lowmark.formatting import time_text
from lowmark.runtime import HybridTime, millis_of

_LAST_MS = 253_402_300_799_000
"""The last second of the year 9999."""


class Reason(StrEnum):
    """Why a command was refused, in a word for programs."""

    NAME = "name"
    """a name that can't be used"""
    EXISTS = "exists"
    """the name is taken"""
    UNKNOWN = "unknown"
    """there is no such object"""
    RESERVED = "reserved"
    """the name belongs to the system"""
    EMPTY = "empty"
    """something is needed where nothing was given"""
    REPEATED = "repeated"
    """the same thing was given twice"""
    LIMIT = "limit"
    """a number outside its range"""
    TYPE = "type"
    """a type that can't be used here, or a change of type that is not a widening"""
    KEY = "key"
    """what a key column may not be, or what may not be done to it"""
    REQUIRED = "required"
    """null where it is not allowed, or no default where one is needed"""
    DEFAULT = "default"
    """a default that does not fit"""
    OPTION = "option"
    """an unknown table option, or a value that it does not take"""
    FILTER = "filter"
    """a node filter that can't be read"""
    IN_USE = "in_use"
    """something else depends on it"""
    STATUS = "status"
    """not in this status of an index"""
    FIXED = "fixed"
    """what is settled when an object is created, and never changes"""


class CatalogRefused(Rejected):
    """A command is wrong as it stands; it changed nothing."""

    def __init__(
        self,
        message: str,
        *,
        reason: Reason,
        about: tuple[str, str],
        detail: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.reason = reason
        self.object_kind, self.object_name = about


class PartitionsFixed(CatalogRefused):
    """A table has as many partitions as it was created with, for good."""

    def __init__(self, table: str, *, wanted: object, partitions: int | None = None) -> None:
        has = "" if partitions is None else f": it was created with {partitions}"
        super().__init__(
            f"table {table} can't get {wanted} partitions{has}",
            reason=Reason.FIXED,
            about=("table", table),
            detail="The partition of a row is the bucket of its key among all partitions of the"
            " table. With another number of partitions most rows belong elsewhere, and Lowmark"
            " moves no rows between partitions.",
            hint=f"Create a table with {wanted} partitions and copy the rows:"
            f' `new = db.create_table("new", old.schema, key=old.key, partitions={wanted})`, then'
            ' `new.append(old.read(as_of="now"))`.',
        )
        self.partitions = partitions


class IndexNotBuildable(CatalogRefused):
    """A new index: no release builds or reads one yet, and a unique one would not be enforced."""

    def __init__(self, index: str, *, table: str) -> None:
        super().__init__(
            f"index {index} of table {table} can't be created",
            reason=Reason.STATUS,
            about=("index", index),
            detail="This release of Lowmark builds no index: no read would use it, and a unique one"
            " would keep no row out. Nothing of the list of commands was done.",
            hint="Leave it out. Rows are looked up by their key (`table.get`); a read takes a"
            " condition on any column (`where`).",
        )


class CatalogUnreadable(Corrupt):
    """Bytes of the catalog are not what was written, or do not fit what came before them."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the catalog can't be read: {what}",
            hint="Stop this node and compare its copy of the metastore with the others.",
        )


class CatalogTooNew(Rejected):
    """A newer release wrote something that this one must not pass over."""

    def __init__(self, what: str, *, found: int, known: int) -> None:
        super().__init__(
            f"the catalog has {what} {found}; this release knows up to {known}",
            detail="A newer release of Lowmark wrote it.",
            hint="Upgrade Lowmark on this node.",
        )
        self.found = found
        self.known = known


class VersionUnknown(Rejected):
    """A version that was not made yet, or that never can be."""

    def __init__(self, version: int, *, latest: int) -> None:
        super().__init__(
            f"version {version} of the catalog is not known here",
            detail=f"The latest one is {latest}.",
            hint="Wait for it, or ask for the latest.",
        )
        self.latest = latest


class VersionCompacted(Conflict):
    """A version, or a time, from before the update log was cut."""

    def __init__(self, wanted: str, *, earliest: int, since: int = 0) -> None:
        super().__init__(
            f"the catalog as of {wanted} was compacted away",
            detail=f"The earliest version left is {earliest}{_since(since)}.",
            hint=f"Ask for version {earliest} or a later one{_of_time(since)}.",
        )
        self.earliest = earliest
        self.since = since
        """From when on that one is in force; 0: not known."""


def _since(time: int) -> str:
    return f", in force since {time_text(millis_of(HybridTime(time)))}" if time else ""


def _of_time(time: int) -> str:
    return ", or for a later time" if time else ""


class CatalogToCome(Rejected):
    """A look-up for a time at which the catalog may still become another one."""

    def __init__(self, *, ahead_ms: int, max_skew_ms: int) -> None:
        super().__init__(
            f"the requested time is {ahead_ms} ms in the future (by this node's clock)",
            detail="Until then, the catalog may change."
            f" Clocks differ by at most {max_skew_ms} ms (clock.max_skew_ms).",
            hint="Ask for the present, or for the latest version.",
        )
        self.ahead_ms = ahead_ms


class CutTooEarly(Unavailable):
    """The version before it may still be in force somewhere, and would be gone."""

    def __init__(self, version: int, *, wait_ms: int) -> None:
        super().__init__(
            f"version {version} of the catalog can't be the earliest one yet:"
            f" it is in force everywhere in {wait_ms} ms",
            hint="Retry then, or cut at an older version.",
        )
        self.wait_ms = wait_ms


class CutRefused(Conflict):
    """What had to hold for the log to be cut did not. Nothing was cut."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"the log was not cut at version {version}: the condition for it does not hold",
            hint="Find out what needs older versions now, then retry.",
        )


class CatalogBusy(Conflict):
    """Other writers were faster, again and again. Nothing was written."""

    def __init__(self, attempts: int) -> None:
        super().__init__(
            f"the catalog changed {attempts} times while a command was being written",
            hint="Retry; or send commands that belong together as one list.",
        )


class NotInForce(Unavailable):
    """A version was written, but by this node's clock it will not be in force for long."""

    def __init__(self, version: int, *, wait_ms: int, due_ms: int | None = None) -> None:
        until = "" if due_ms is None else f" until {_utc(due_ms)}"
        super().__init__(
            f"version {version} of the catalog was written, and is not in force{until}:"
            f" by this node's clock that is in {wait_ms} ms",
            detail="This node's clock is behind the metastore's time: one of the clocks is off.",
            hint="Synchronise the clocks. The change is made: do not repeat it.",
        )
        self.version = version
        self.wait_ms = wait_ms


def _utc(at_ms: int) -> str:
    at = datetime.fromtimestamp(min(at_ms, _LAST_MS) // 1_000, UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")
