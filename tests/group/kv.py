"""A key-value machine whose values stay in the log: the smallest machine with a scattered live set.

Its state maps a key to (index, digest, version); the value is the command of that entry. Commands
are msgpack arrays: ["put", key, value], ["cas", key, expected digest, value], ["del", key].
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec
from pyroaring import BitMap64

from lowmark.runtime import Buffer

__all__ = ["KvMachine", "Row", "cas", "delete", "digest", "put", "value_of"]


class Row(msgspec.Struct, frozen=True, array_like=True):
    index: int
    digest: bytes
    version: int
    time: int


def digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=8).digest()


def put(key: str, value: bytes) -> bytes:
    return msgspec.msgpack.encode(("put", key, value))


def cas(key: str, expected: bytes | None, value: bytes) -> bytes:
    return msgspec.msgpack.encode(("cas", key, expected, value))


def delete(key: str) -> bytes:
    return msgspec.msgpack.encode(("del", key))


def value_of(command: Buffer) -> bytes:
    return bytes(msgspec.msgpack.decode(command)[-1])


class KvMachine:
    """With a newer `newest_version` it can be upgraded: from 2 on, versions count by 10."""

    def __init__(self, newest_version: int = 1) -> None:
        self.newest_version = newest_version
        self.version = 1
        self.rows: dict[str, Row] = {}
        self.applied = 0
        self.at: dict[int, str] = {}

    def apply(self, index: int, time: int, command: Buffer) -> object:
        self.applied = index
        op, key, *rest = msgspec.msgpack.decode(command)
        row = self.rows.get(key)
        if op == "del":
            if row is not None:
                del self.rows[key], self.at[row.index]
            return row is not None
        if op == "cas" and rest[0] != (row.digest if row is not None else None):
            return False
        step = 10 if self.version >= 2 else 1
        version = (row.version if row is not None else 0) + step
        if row is not None:
            del self.at[row.index]
        self.rows[key] = Row(index, digest(rest[-1]), version, time)
        self.at[index] = key
        return True if op == "cas" else version

    def may_use_reserve(self, command: Buffer) -> bool:
        return bool(msgspec.msgpack.decode(command)[0] == "del")

    def moved(self, old: int, new: int) -> None:
        key = self.at.pop(old, None)
        if key is not None:
            self.rows[key] = msgspec.structs.replace(self.rows[key], index=new)
            self.at[new] = key

    def upgrade(self, version: int) -> None:
        self.version = version

    def live_indexes(self) -> BitMap64:
        return BitMap64(self.at)

    def snapshot(self) -> Iterable[Buffer]:
        whole = msgspec.msgpack.encode((self.version, sorted(self.rows.items())))
        return iter([whole[at : at + 1_000] for at in range(0, len(whole), 1_000)])

    def restore(self, chunks: Iterable[bytes], version: int) -> None:
        self.version, rows = msgspec.msgpack.decode(
            b"".join(chunks), type=tuple[int, list[tuple[str, Row]]]
        )
        assert self.version == version
        self.rows = dict(rows)
        self.at = {row.index: key for key, row in rows}

    def read(self, query: object) -> object:
        return self.rows.get(query) if isinstance(query, str) else dict(self.rows)
