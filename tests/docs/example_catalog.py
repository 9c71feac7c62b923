"""An update of the catalog for the page on its bytes, and how to show one."""

from __future__ import annotations

from typing import Protocol

from lowmark.catalog import Zone
from lowmark.catalog.catalog import CatalogVersion
from lowmark.catalog.descriptors import ZoneId
from lowmark.catalog.entries import IdsTaken, NewZone
from lowmark.catalog.history import Update
from lowmark.catalog.serialization import Cursor
from lowmark.catalog.serializers import REGISTRY, encode_update

__all__ = ["UPDATE", "catalog_examples", "show_catalog"]

UPDATE = Update(
    version=CatalogVersion(2),
    delay_ms=100,
    author=1,
    token=bytes(range(0xA0, 0xB0)),
    entries=(
        IdsTaken(1),
        NewZone(Zone(id=ZoneId(3), name="near", replicas=3, partitions=8, node_filter="rack = r1")),
    ),
)

_TYPES = {serializer.type_id: serializer for serializer in REGISTRY}


class Dump(Protocol):
    """What the walk over the bytes needs."""

    at: int

    @property
    def data(self) -> bytes: ...
    def remark(self, text: str) -> None: ...
    def number(self, size: int, name: str) -> int: ...
    def rest(self, size: int, name: str) -> None: ...
    def show(self, size: int, said: str) -> None: ...


def catalog_examples() -> dict[str, bytes]:
    """What the page shows."""
    return {"an update of the catalog": encode_update(UPDATE)}


def show_catalog(dump: Dump) -> None:
    """Walk over a value: its protocol version, and one object."""
    dump.number(2, "protocol")
    _object(dump)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    cursor = Cursor(data[at:])
    value = cursor.varint()
    return value, len(data) - at - len(cursor.rest())


def _object(dump: Dump) -> None:
    serializer = _TYPES[int.from_bytes(dump.data[dump.at : dump.at + 2], "little")]
    dump.remark(serializer.kind.__name__)
    dump.number(2, "type")
    _, size = _varint(dump.data, dump.at)
    dump.number(size, "format_version")
    length, size = _varint(dump.data, dump.at)
    dump.show(size, f"length: {length}")
    end = dump.at + length
    contents = {field.tag: (field.name, field.codec.name) for field in serializer.fields}
    while dump.at < end:
        tag, tag_size = _varint(dump.data, dump.at)
        size, size_size = _varint(dump.data, dump.at + tag_size)
        name, content = contents[tag]
        dump.show(tag_size + size_size, f"tag {tag}: {size} bytes")
        if content in {"object", "objects"}:
            inner = dump.at + size
            while dump.at < inner:
                _object(dump)
        elif content in {"uint", "bool", "time"}:
            dump.number(size, name)
        else:
            dump.rest(size, name)
