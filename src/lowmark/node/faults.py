"""Errors on their way from a node to a client: named, and with what to do next.

What travels is JSON: the class's name, which of the four kinds of error it is (that says what the
caller does next), message, detail, hint, and the numbers and words that the error carries besides.
A class that the client knows comes out as itself; of another one, a class of that name and kind is
made.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from lowmark import errors
from lowmark.errors import Conflict, Corrupt, LowmarkError, Rejected, Unavailable

__all__ = ["Fault", "decode_fault", "encode_fault"]

_KINDS: dict[str, type[LowmarkError]] = {
    kind.__name__: kind for kind in (Rejected, Conflict, Unavailable, Corrupt)
}
_PARTS = ("message", "detail", "hint")
FAULT_BYTES_MAX = 6_000
"""It travels in a header, and gRPC takes 8 KiB of them."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, rename={"class_name": "class"}):
    """An error as it travels."""

    class_name: str
    kind: str
    message: str
    detail: str = ""
    hint: str = ""
    fields: dict[str, int | str] = {}


def encode_fault(error: LowmarkError) -> bytes:
    """An error as it travels; what is too long is cut, the name never."""
    kind = next((name for name, cls in _KINDS.items() if isinstance(error, cls)), "Unavailable")
    fields = {
        key: value for key, value in vars(error).items() if key not in _PARTS and _travels(value)
    }

    def fault(length: int, fields: dict[str, int | str]) -> bytes:
        return msgspec.json.encode(
            Fault(
                class_name=type(error).__name__,
                kind=kind,
                message=error.message[:length],
                detail=error.detail[:length],
                hint=error.hint[:length],
                fields=fields,
            )
        )

    whole = fault(2_000, fields)
    return whole if len(whole) <= FAULT_BYTES_MAX else fault(300, {})


def _travels(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and abs(value) < 1 << 63)


def decode_fault(data: bytes) -> LowmarkError | None:
    """The error that a node sent; None if these bytes are none."""
    try:
        fault = msgspec.json.decode(data, type=Fault)
    except msgspec.MsgspecError:
        return None
    cls = _class_of(fault.class_name, fault.kind)
    error = cls.__new__(cls)
    LowmarkError.__init__(error, fault.message, detail=fault.detail, hint=fault.hint)
    for key, value in fault.fields.items():
        if key not in _PARTS and key.isidentifier() and not key.startswith("_"):
            error.__dict__[key] = value
    return error


@lru_cache(maxsize=256)
def _class_of(name: str, kind: str) -> type[LowmarkError]:
    base = _KINDS.get(kind, Unavailable)
    # The module of one that callers catch may not be imported yet; asking for it does that.
    listed = getattr(errors, name, None)
    if isinstance(listed, type) and issubclass(listed, base):
        return listed
    known = _find(base, name)
    if known is not None:
        return known
    return type(name if name.isidentifier() else kind, (base,), {"__doc__": f"{kind} by a node."})


def _find(cls: type[LowmarkError], name: str) -> type[LowmarkError] | None:
    if cls.__name__ == name:
        return cls
    for below in cls.__subclasses__():
        if (found := _find(below, name)) is not None:
            return found
    return None
