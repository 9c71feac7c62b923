"""How values of the catalog become bytes: objects of tagged fields, and who reads which.

    value   protocol version (2 bytes), then one object
    object  type (2 bytes), format version (varint), length (varint), fields
    field   tag (varint), length (varint), content; tags go up

Two kinds of change are possible. A *format version* only adds fields: an older release reads what
it knows, and carries the rest of a descriptor along verbatim, with the version, so that a newer one
finds everything as it left it. A tag never gets another meaning. An object is written in the oldest
version that has all of its fields, so what says nothing new has the bytes that it always had. A
change that an older release must not pass over raises the *protocol version*, which it refuses by
name.

An entry is an order. An older release does not carry out an order that it understands in part: a
field or a format version of an entry that it does not know is refused too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from lowmark.catalog.descriptors import NOTHING_UNKNOWN, Unknown
from lowmark.catalog.errors import CatalogRefused, CatalogTooNew, CatalogUnreadable
from lowmark.errors import invariant
from lowmark.runtime import Buffer

PROTOCOL = 1
"""What this release writes, and the newest that it reads."""

_VARINT_BITS = 64
_SHARED_MAX = 4_096
_SINCE = re.compile(r"\d+\.\d+\.\d+")


def varint(number: int) -> bytes:
    """A whole number from 0 on, seven bits to a byte, the lowest first."""
    invariant(0 <= number < 1 << _VARINT_BITS, f"{number} does not fit into a varint")
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number: int) -> int:
    """A signed number as one from 0 on: 0, -1, 1, -2 become 0, 1, 2, 3."""
    return number << 1 if number >= 0 else (-number << 1) - 1


class Cursor:
    """Reads bytes from front to back, up to `stop`; what is missing or too much is named."""

    __slots__ = ("_data", "at", "stop")

    def __init__(self, data: Buffer) -> None:
        self._data = bytes(data)
        self.at = 0
        self.stop = len(self._data)

    @property
    def at_end(self) -> bool:
        """Whether all is read."""
        return self.at == self.stop

    def take(self, size: int) -> bytes:
        """The next bytes."""
        at = self.at
        end = at + size
        if end > self.stop:
            raise CatalogUnreadable(f"{end - self.stop} bytes are missing at its end")
        self.at = end
        return self._data[at:end]

    def rest(self) -> bytes:
        """All that is left."""
        at, self.at = self.at, self.stop
        return self._data[at : self.stop]

    def peek(self, size: int) -> bytes:
        """The next bytes, which are read all the same later."""
        at = self.at
        taken = self.take(size)
        self.at = at
        return taken

    def uint16(self) -> int:
        """Two bytes as a number."""
        return int.from_bytes(self.take(2), "little")

    def varint(self) -> int:
        """The next number."""
        at = self.at
        if at < self.stop:
            byte = self._data[at]
            if byte < 0x80:  # nearly all of them
                self.at = at + 1
                return byte
        return self._long_varint()

    def _long_varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= _VARINT_BITS:
                raise CatalogUnreadable("a number is longer than 64 bits")
        if number >> _VARINT_BITS or (shift and not byte):
            raise CatalogUnreadable("a number is longer than it needs to be")
        return number

    def signed(self) -> int:
        """The next number, which may be below zero."""
        number = self.varint()
        return number >> 1 if not number & 1 else -((number + 1) >> 1)

    def end(self) -> None:
        """Refuse what should not be there."""
        if self.at != self.stop:
            raise CatalogUnreadable(f"{self.stop - self.at} bytes are too many at its end")


@dataclass(frozen=True, slots=True)
class Codec:
    """How the content of a field is written and read."""

    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[Cursor], Any]


def _text(cursor: Cursor) -> str:
    return text_of(cursor.rest())


def text_of(data: bytes) -> str:
    """Bytes as text."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CatalogUnreadable("a text is not UTF-8") from error


def _bool(cursor: Cursor) -> bool:
    byte = cursor.take(1)[0]
    if byte > 1:
        raise CatalogUnreadable(f"{byte} is neither yes nor no")
    return byte == 1


def _uints(cursor: Cursor) -> tuple[int, ...]:
    numbers = []
    while not cursor.at_end:
        numbers.append(cursor.varint())
    return tuple(numbers)


UINT = Codec("uint", varint, Cursor.varint)
UINTS = Codec("uints", lambda numbers: b"".join(map(varint, numbers)), _uints)
TIME = Codec(
    "time",
    lambda time: int(time).to_bytes(8, "little"),
    lambda cursor: int.from_bytes(cursor.take(8), "little"),
)
BOOL = Codec("bool", lambda yes: b"\1" if yes else b"\0", _bool)
TEXT = Codec("text", str.encode, _text)
BYTES = Codec("bytes", bytes, Cursor.rest)


def enum_codec(kind: type[Enum]) -> Codec:
    """A member of an enumeration by its number."""

    def decode(cursor: Cursor) -> Enum:
        number = cursor.varint()
        try:
            return kind(number)
        except ValueError as error:
            known = max(member.value for member in kind)
            if number <= known:
                raise CatalogUnreadable(f"{number} is no {kind.__name__}") from error
            raise CatalogTooNew(f"{kind.__name__} number", found=number, known=known) from error

    return Codec("uint", lambda member: varint(member.value), decode)


_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Field:
    """A part of an object. One that has its default is not written."""

    tag: int
    name: str
    codec: Codec
    default: Any = _REQUIRED

    @property
    def required(self) -> bool:
        """Whether it is always there."""
        return self.default is _REQUIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class Serializer:
    """One format version of one type, and the release that it is in since."""

    type_id: int
    kind: type[Any]
    version: int
    since: str
    fields: tuple[Field, ...]
    build: Callable[[dict[str, Any]], Any]
    shared: bool = False
    """Whether equal bytes give the same object: many versions repeat it."""
    by_tag: Mapping[int, Field] = field(init=False)
    carries: bool = field(init=False)
    """Whether fields of a newer release are carried along; all descriptors do."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_tag", {one.tag: one for one in self.fields})
        object.__setattr__(self, "carries", "unknown" in self.kind.__dataclass_fields__)

    def has(self, tags: Collection[int]) -> bool:
        """Whether these are tags of an object in this version."""
        needed = (one.tag for one in self.fields if one.required)
        return all(tag in self.by_tag for tag in tags) and all(tag in tags for tag in needed)


class Registry:
    """All serializers: each type has its format versions from 1 on, without gaps."""

    def __init__(self) -> None:
        self._found: list[Serializer] = []
        self._by_type: dict[int, list[Serializer]] = {}
        self._newest: dict[type[Any], Serializer] = {}
        self._known: dict[tuple[int, int, bytes], Any] = {}

    def serializer(
        self,
        type_id: int,
        kind: type[Any],
        *,
        version: int,
        since: str,
        fields: Iterable[Field],
        build: Callable[[dict[str, Any]], Any] | None = None,
        shared: bool = False,
    ) -> None:
        """One more. `build` makes an object of its fields, if there is more to it than that."""
        made = Serializer(
            type_id=type_id,
            kind=kind,
            version=version,
            since=since,
            fields=tuple(fields),
            build=build or (lambda values: kind(**values)),
            shared=shared,
        )
        self._found.append(made)

    def __iter__(self) -> Iterator[Serializer]:
        return iter(sorted(self._found, key=lambda found: (found.type_id, found.version)))

    def check(self, expected: Iterable[type[Any]]) -> None:
        """Stop the start if a type has none, or versions have gaps or are there twice."""
        by_type: dict[int, list[Serializer]] = {}
        for found in sorted(self._found, key=lambda found: (found.type_id, found.version)):
            _check_one(found)
            by_type.setdefault(found.type_id, []).append(found)
        kinds: dict[type[Any], int] = {}
        for type_id, versions in by_type.items():
            name = versions[0].kind.__name__
            numbers = [found.version for found in versions]
            invariant(len(set(numbers)) == len(numbers), f"{name} has a version twice: {numbers}")
            invariant(numbers == list(range(1, len(numbers) + 1)), f"{name} has a gap: {numbers}")
            invariant(
                all(found.kind is versions[0].kind for found in versions),
                f"type {type_id} stands for several classes",
            )
            invariant(versions[0].kind not in kinds, f"{name} has two types")
            kinds[versions[0].kind] = type_id
        for kind in expected:
            invariant(kind in kinds, f"{kind.__name__} has no serializer")
        self._by_type = by_type
        self._newest = {versions[-1].kind: versions[-1] for versions in by_type.values()}

    # -- objects --------------------------------------------------------------------------------

    def encode(self, thing: Any) -> bytes:
        """An object with its head."""
        serializer = self._newest[type(thing)]
        unknown: Unknown = thing.unknown if serializer.carries else NOTHING_UNKNOWN
        contents = [
            (field.tag, field.codec.encode(value))
            for field in serializer.fields
            if (value := getattr(thing, field.name)) != field.default or field.required
        ]
        version = serializer.version
        if version > 1:
            tags = {tag for tag, _ in contents}
            versions = self._by_type[serializer.type_id]
            version = next((one.version for one in versions if one.has(tags)), version)
        if unknown.fields:
            contents = sorted([*contents, *unknown.fields])
        body = b"".join(
            [
                part
                for tag, content in contents
                for part in (varint(tag), varint(len(content)), content)
            ]
        )
        return b"".join(
            [
                serializer.type_id.to_bytes(2, "little"),
                varint(max(version, unknown.version)),
                varint(len(body)),
                body,
            ]
        )

    def decode(self, cursor: Cursor, *kinds: type[Any]) -> Any:
        """The next object, which is of one of these classes."""
        type_id, version, size = cursor.uint16(), cursor.varint(), cursor.varint()
        versions = self._by_type.get(type_id)
        if versions is None:
            if type_id > max(self._by_type):
                raise CatalogTooNew("an object of type", found=type_id, known=max(self._by_type))
            raise CatalogUnreadable(f"no object has type {type_id}")
        newest = versions[-1]
        if newest.kind not in kinds:
            raise CatalogUnreadable(f"{newest.kind.__name__} is in the wrong place")
        if version < 1:
            raise CatalogUnreadable(f"{newest.kind.__name__} has format version 0")
        if version > newest.version and not newest.carries:
            what = f"{newest.kind.__name__} of format version"
            raise CatalogTooNew(what, found=version, known=newest.version)
        serializer = versions[min(version, newest.version) - 1]
        try:
            read = self._shared if serializer.shared else _read
            made = read(serializer, version, cursor, size)
        except CatalogRefused as error:
            # What is refused from people can't have been written.
            raise CatalogUnreadable(error.message) from error
        if version < newest.version and newest.carries:
            _check_unknown(made.unknown, newest)
        return made

    def _shared(self, serializer: Serializer, version: int, cursor: Cursor, size: int) -> Any:
        written = (serializer.type_id, version, cursor.peek(size))
        known = self._known.get(written)
        if known is not None:
            cursor.take(size)
            return known
        made = _read(serializer, version, cursor, size)
        if len(self._known) >= _SHARED_MAX:
            self._known.clear()
        self._known[written] = made
        return made


def object_codec(registry: Registry, kind: type[Any]) -> Codec:
    """One object of a class."""
    return Codec("object", registry.encode, lambda cursor: registry.decode(cursor, kind))


def objects_codec(registry: Registry, *kinds: type[Any]) -> Codec:
    """Any number of objects of some classes, one behind the other. A map is written by id."""

    def encode(things: Any) -> bytes:
        if isinstance(things, Mapping):
            things = [things[key] for key in sorted(things)]
        return b"".join([registry.encode(thing) for thing in things])

    def decode(cursor: Cursor) -> tuple[Any, ...]:
        things = []
        while not cursor.at_end:
            things.append(registry.decode(cursor, *kinds))
        return tuple(things)

    return Codec("objects", encode, decode)


def _read(serializer: Serializer, version: int, cursor: Cursor, size: int) -> Any:
    """An object of this many bytes. Its fields are read in place, each within bounds of its own."""
    outer, stop = cursor.stop, cursor.at + size
    if stop > outer:
        raise CatalogUnreadable(f"{stop - outer} bytes are missing at its end")
    values: dict[str, Any] = {}
    strange: list[tuple[int, bytes]] = []
    last = 0
    while cursor.at < stop:
        cursor.stop = stop
        tag, length = cursor.varint(), cursor.varint()
        if tag <= last:
            raise CatalogUnreadable(f"tag {tag} is out of order")
        last = tag
        known = serializer.by_tag.get(tag)
        if known is None:
            strange.append((tag, cursor.take(length)))
            continue
        end = cursor.at + length
        if end > stop:
            raise CatalogUnreadable(f"{end - stop} bytes are missing at its end")
        cursor.stop = end
        values[known.name] = known.codec.decode(cursor)
        cursor.end()
    cursor.stop = outer
    if len(values) < len(serializer.fields):
        _fill(serializer, values)
    if serializer.carries:
        if strange or version > serializer.version:
            values["unknown"] = Unknown(version, tuple(strange))
    elif strange:
        what = f"{serializer.kind.__name__} with field"
        raise CatalogTooNew(what, found=last, known=serializer.fields[-1].tag)
    return serializer.build(values)


def _check_unknown(unknown: Unknown, newest: Serializer) -> None:
    """A field of a later version that is known here can't stand in an earlier one."""
    for tag, _ in unknown.fields:
        if tag in newest.by_tag:
            raise CatalogUnreadable(f"{newest.kind.__name__} has field {tag} before its version")


def _fill(serializer: Serializer, values: dict[str, Any]) -> None:
    for one in serializer.fields:
        if one.name not in values:
            if one.required:
                raise CatalogUnreadable(f"{serializer.kind.__name__} lacks its {one.name}")
            values[one.name] = one.default


def _check_one(found: Serializer) -> None:
    name = f"{found.kind.__name__} version {found.version}"
    invariant(0 < found.type_id < 1 << 16, f"{name} has a type out of range")
    invariant(found.version > 0, f"{name} is not a version")
    invariant(_SINCE.fullmatch(found.since), f"{name} does not say since when it is")
    tags = [field.tag for field in found.fields]
    invariant(tags == sorted(set(tags)) and tags[0] > 0, f"the tags of {name} do not go up")
