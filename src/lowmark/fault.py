"""Errors on their way from one process to another: named, and with what to do next.

What travels is the class's name, which of the kinds of error it is (that says what the caller does
next), message, detail, hint, and the plain values that the error carries besides. A class that
the receiver knows comes out as itself; of another one, a class of that name and kind is made.

    `encode_fault`, `decode_fault`   JSON (docs/formats/errors.md), for a peer that may be another
                                     release, and is not
                                     believed: it names a class, and never a module to import
    `carried`, `revived`             a plain dict, from a task to its driver: the same release, so
                                     the class is found by its module, and every plain value comes

(`metastore.forwarding` needs neither: its answer says only that a command was refused, and why.)
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import msgspec

from lowmark import errors
from lowmark.errors import Conflict, Corrupt, LowmarkError, Rejected, Unavailable

_KINDS: dict[str, type[LowmarkError]] = {
    kind.__name__: kind for kind in (Rejected, Conflict, Unavailable, Corrupt, LowmarkError)
}
_TEXTS = ("message", "detail", "hint")
_PLAIN = (str, int, float, bool, bytes, type(None))
FAULT_BYTES_MAX = 6_000
"""It travels in a header, and gRPC takes 8 KiB of them."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, rename={"class_name": "class"}):
    """An error as it travels."""

    class_name: str
    kind: str
    message: str
    detail: str = ""
    hint: str = ""
    fields: dict[str, bool | int | str] = {}
    more: dict[str, bool | tuple[int | str, ...] | None] = {}
    """Apart: a release that knows no such values reads the rest."""


def encode_fault(error: LowmarkError) -> bytes:
    """An error as it travels; what is too long is cut, the name never."""
    carried = _fields_of(error).items()
    fields = {key: value for key, value in carried if _is_json(value)}
    more = {key: value for key, value in carried if _is_more(value)}

    def fault(length: int, fields: dict[str, Any], more: dict[str, Any]) -> bytes:
        return msgspec.json.encode(
            Fault(
                class_name=type(error).__name__,
                kind=_kind_of(error),
                message=error.message[:length],
                detail=error.detail[:length],
                hint=error.hint[:length],
                fields=fields,
                more=more,
            )
        )

    whole = fault(2_000, fields, more)
    return whole if len(whole) <= FAULT_BYTES_MAX else fault(300, {}, {})


def decode_fault(data: bytes) -> LowmarkError | None:
    """The error that a peer sent; None if these bytes are none."""
    try:
        fault = msgspec.json.decode(data, type=Fault)
    except msgspec.MsgspecError:
        return None
    parts = msgspec.structs.asdict(fault) | {"fields": fault.fields | fault.more}
    return _made(_class_of(fault.class_name, fault.kind), parts)


def carried(error: LowmarkError) -> dict[str, Any]:
    """An error as a task gives it to its driver."""
    return {
        "module": type(error).__module__,
        "class_name": type(error).__qualname__,
        "kind": _kind_of(error),
        **{text: getattr(error, text) for text in _TEXTS},
        "fields": {key: value for key, value in _fields_of(error).items() if _is_plain(value)},
    }


def revived(parts: Mapping[str, Any]) -> LowmarkError:
    """The error that a task gave."""
    name = parts["class_name"]
    cls = _imported(parts["module"], name) or _class_of(name.rpartition(".")[2], parts["kind"])
    return _made(cls, parts)


def _made(cls: type[LowmarkError], parts: Mapping[str, Any]) -> LowmarkError:
    error = cls.__new__(cls)
    LowmarkError.__init__(error, parts["message"], detail=parts["detail"], hint=parts["hint"])
    for key, value in parts["fields"].items():
        if key not in _TEXTS and key.isidentifier() and not key.startswith("_"):
            error.__dict__[key] = value
    return error


def _kind_of(error: LowmarkError) -> str:
    return next(name for name, cls in _KINDS.items() if isinstance(error, cls))


def _fields_of(error: LowmarkError) -> dict[str, Any]:
    return {key: value for key, value in vars(error).items() if key not in _TEXTS}


def _is_json(value: object) -> bool:
    return isinstance(value, str) or (type(value) is int and abs(value) < 1 << 63)


def _is_more(value: object) -> bool:
    if isinstance(value, tuple | list):  # it arrives as a tuple
        return all(map(_is_json, value))
    return value is None or isinstance(value, bool)


def _is_plain(value: object) -> bool:
    values = value if isinstance(value, tuple | list) else (value,)
    return all(isinstance(each, _PLAIN) for each in values)


def _class_of(name: str, kind: str) -> type[LowmarkError]:
    # Looked for each time: a class that is not known yet may be by the next one.
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


def _imported(module: str, name: str) -> type[LowmarkError] | None:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found if isinstance(found, type) and issubclass(found, LowmarkError) else None
