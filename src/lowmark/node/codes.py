"""Which of gRPC's codes a client gets for an error of ours, and how Flight is made to send it.

A client of ours gets the error itself: class, fields and all, as JSON in Flight's `extra_info`. It
asks for that with a header (`HEADER`). Every other client gets a code that its language knows, and
what happened, why, and what to do as text.

Flight sends no `extra_info` with some codes (`_BARE`): they come from Python's own exceptions. So
a client that has asked for the whole error gets it with the code Unknown instead of those.

What may have happened has the code Unknown: no client, and no proxy, repeats a call by itself at
that. Unavailable, at which clients do, says that nothing was done. gRPC has codes that pyarrow
can't send; these stand in for them:

    ResourceExhausted                       Unavailable        try again a moment later
    FailedPrecondition, Aborted,
    AlreadyExists, OutOfRange               InvalidArgument    the call as it stands will not do
    DataLoss                                Internal
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyarrow import flight

from lowmark import fault
from lowmark.errors import LowmarkError
from lowmark.fault import encode_fault
from lowmark.node.messages import HEADER, WHOLE

_TEXT_BYTES_MAX: Final = 1_800
_EXTRA_BYTES_MAX: Final = 2_000
_WHOLE_TEXT_BYTES_MAX: Final = 600
"""All of it travels in headers, the text twice, and gRPC takes 8 KiB of them."""


class Code(enum.StrEnum):
    """gRPC's codes that pyarrow can send, by the names that they have in most languages."""

    NOT_FOUND = "NotFound"
    INVALID_ARGUMENT = "InvalidArgument"
    UNAUTHENTICATED = "Unauthenticated"
    PERMISSION_DENIED = "PermissionDenied"
    UNIMPLEMENTED = "Unimplemented"
    UNAVAILABLE = "Unavailable"
    CANCELLED = "Canceled"
    INTERNAL = "Internal"
    UNKNOWN = "Unknown"


CODES: Final[Mapping[Code, str]] = {
    Code.NOT_FOUND: (
        "ChangesGone CursorUnknown DeletesGone EntryGone FileMissing GapFound GroupUnknown"
        " HoldUnknown NoSuchToken OffsetExpired ReferenceExpired RevisionCompacted RevisionUnknown"
        " TableUnknown TransactionUnknown VersionCompacted VersionUnknown"
    ),
    Code.INVALID_ARGUMENT: "Rejected Conflict",
    Code.UNAUTHENTICATED: "Unauthenticated",
    Code.PERMISSION_DENIED: "BeyondPass PermissionDenied",
    Code.UNIMPLEMENTED: "ActionUnknown IndexNotBuildable ProtocolRefused",
    # Of a `Conflict` or `Rejected`, that nothing was done: another node, or a later time, will do.
    Code.UNAVAILABLE: (
        "Unavailable CatalogBusy Closed NoHandles NodeClosing NotLeader StoreFailed Superseded"
    ),
    Code.CANCELLED: "Cancelled",
    Code.INTERNAL: "LowmarkError Corrupt",
    # What may have happened, at least in part.
    Code.UNKNOWN: (
        "AppendFailed CallLost DiskFailed EpochHalfBound MachineFailed NodeClosed NodeSilent"
        " NotInForce OutcomeUnknown PeerLost SparkGone TaskFailed TaskLost"
    ),
}
"""The classes of errors that have each code, by name: a class that is not here has its parent's.
Names, since many are defined in packages above this one; `tests/node/test_codes.py` holds them to
the classes, and the table in `docs/guide/flight.md` to this one.
"""
_BY_NAME: Final = {name: code for code, names in CODES.items() for name in names.split()}


def code_of(error: LowmarkError) -> Code:
    """The code for an error."""
    kind = type(error)
    found = next(_BY_NAME[one.__name__] for one in kind.__mro__ if one.__name__ in _BY_NAME)
    if found is Code.UNAVAILABLE and kind.__module__ == fault.__name__:
        return Code.UNKNOWN  # of a newer node: whether it may have happened is not known here
    return found


def asks_for_whole(headers: Mapping[str, Sequence[str | bytes]]) -> bool:
    """Whether a client takes an error as JSON, whatever the code."""
    return WHOLE in headers.get(HEADER, ())


class _Bare(Exception):
    """An exception of Python's that pyarrow turns into a code of gRPC's.

    pyarrow would write the traceback into what the client hears, with paths of this machine in it.
    If that fails it writes the name of the class alone: so it is made to fail.
    """

    def __str__(self) -> str:
        return str(self.args[0])  # without the quotes of a KeyError

    @property
    def __cause__(self) -> BaseException | None:
        raise RuntimeError("no traceback is made of it")

    @__cause__.setter
    def __cause__(self, value: BaseException | None) -> None:
        del value


def _bare(code: Code, kind: type[Exception] = Exception) -> type[Exception]:
    return type(code.value, (_Bare, kind), {"__doc__": f"gRPC's {code}."})


_BARE: Final = {
    Code.NOT_FOUND: _bare(Code.NOT_FOUND, KeyError),
    Code.INVALID_ARGUMENT: _bare(Code.INVALID_ARGUMENT, ValueError),
    Code.UNIMPLEMENTED: _bare(Code.UNIMPLEMENTED, NotImplementedError),
}
_RICH: Final[Mapping[Code, Any]] = {
    Code.UNAUTHENTICATED: flight.FlightUnauthenticatedError,
    Code.PERMISSION_DENIED: flight.FlightUnauthorizedError,
    Code.UNAVAILABLE: flight.FlightUnavailableError,
    Code.CANCELLED: flight.FlightCancelledError,
    Code.INTERNAL: flight.FlightInternalError,
    Code.UNKNOWN: flight.FlightServerError,
}
_OF_GET_SCHEMA: Final = {code: _BARE.get(code) or _bare(code) for code in Code}
"""pyarrow looks at none of Flight's own exceptions there: all but the three come as Unknown."""


def flight_error(error: LowmarkError, *, whole: bool, schema: bool = False) -> Exception:
    """An error of ours as Flight carries it; `schema`: as the answer to `GetSchema`."""
    code = code_of(error)
    if schema:
        return _OF_GET_SCHEMA[code](_text(error))
    if not whole and code in _BARE:
        return _BARE[code](_text(error))
    kind, extra = _RICH.get(code, flight.FlightServerError), encode_fault(error)
    text = _line(error.message, _WHOLE_TEXT_BYTES_MAX)
    if not whole:
        text = _text(error)
        extra = extra if len(extra) <= _EXTRA_BYTES_MAX else b""
    failure: Exception = kind(text, extra_info=extra)
    return failure


def _text(error: LowmarkError) -> str:
    """All of it for a reader: the name, what happened, why, and what to do."""
    name = type(error).__name__.removeprefix("_")
    parts = [part.strip().removesuffix(".") for part in (error.message, error.detail, error.hint)]
    return _line(f"{name}: {'. '.join(filter(None, parts))}", _TEXT_BYTES_MAX)


def _line(text: str, bytes_max: int) -> str:
    """As much of a text as has room in a header, where what is not ASCII takes three times that."""
    line, left = " ".join(text.split()), bytes_max
    for at, letter in enumerate(line):
        left -= 1 if " " <= letter <= "~" and letter != "%" else 3 * len(letter.encode())
        if left < 0:
            return line[:at]
    return line
