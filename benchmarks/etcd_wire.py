"""What the two ends of an etcd load say to each other, and the bytes of puts. Pure.

A client of etcd is a process of its own (`etcd_http2` or `etcd_grpc`). A put is two fields of
protobuf, so it is written by hand here, and so is a transaction that puts on a condition:

    PutRequest { bytes key = 1; bytes value = 2; }    a field: tag, length as a varint, bytes
    TxnRequest { Compare compare = 1; RequestOp success = 2; }    otherwise nothing is done
    Compare { bytes key = 3; int64 version = 4; }     left out: result EQUAL, target VERSION
    RequestOp { PutRequest request_put = 2; }
"""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from lowmark.errors import invariant

Kind = Literal["put", "txn"]
"""Plain puts, or transactions that put on the condition that a key is as it was left."""
PATHS: dict[Kind, str] = {"put": "/etcdserverpb.KV/Put", "txn": "/etcdserverpb.KV/Txn"}
KEYS = 10_000
FED_BYTES_MAX = 64 << 20
_NUMBER, _LENGTH_DELIMITED = 0, 2


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a client is to do: so many puts, or puts for so long."""

    address: str
    value_bytes: int
    in_flight: int
    first_key: int
    count: int | None = None
    seconds: float | None = None
    kind: Kind = "put"

    def feed(self) -> list[bytes]:
        """What to send in turn."""
        if self.kind == "put":
            return requests(value_bytes=self.value_bytes, first_key=self.first_key)
        invariant(self.count is not None, "transactions are counted")
        # Those that warm up come first, and the next ones see what they left.
        count = self.in_flight + (self.count or 0)
        return transactions(value_bytes=self.value_bytes, count=count)


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The client is connected, and what it will send is built."""

    warmed_up_with: int
    """So many puts."""


class Go(msgspec.Struct, frozen=True):
    """Begin: all clients are ready."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What it came to. Times are the machine's monotonic clock, the same in every process."""

    began_ns: int
    ended_ns: int
    latencies_us: list[int]
    """One per put."""
    cpu_seconds: float


def put_request(key: bytes, value: bytes) -> bytes:
    """An etcdserverpb.PutRequest."""
    return b"".join((_head(1, len(key)), key, _head(2, len(value)), value))


def txn_request(key: bytes, value: bytes, *, version: int) -> bytes:
    """An etcdserverpb.TxnRequest: put, if the key was written so often before."""
    put = put_request(key, value)
    compare = b"".join((_head(3, len(key)), key, bytes([4 << 3 | _NUMBER]), _varint(version)))
    success = _head(2, len(put)) + put
    return b"".join((_head(1, len(compare)), compare, _head(2, len(success)), success))


def key_of(number: int) -> bytes:
    """A key; all are of one length."""
    return b"bench/%08d" % (number % KEYS)


def requests(*, value_bytes: int, first_key: int) -> list[bytes]:
    """Puts to send in turn, each with its key; of large values there are fewer, to fit in memory.

    How many keys there are hardly matters to etcd: it keeps every revision of a key.
    """
    count = max(1, min(KEYS, FED_BYTES_MAX // value_bytes))
    values = [os.urandom(value_bytes) for _ in range(min(count, 16))]
    return [put_request(key_of(first_key + i), values[i % len(values)]) for i in range(count)]


def transactions(*, value_bytes: int, count: int) -> list[bytes]:
    """Transactions to send in turn, on keys that nobody else has; all conditions hold.

    A key comes up again after so many others that its last transaction is long answered.
    """
    values = [os.urandom(value_bytes) for _ in range(min(count, 16))]
    run = os.urandom(4).hex().encode()
    return [
        txn_request(b"%b/%08d" % (run, i % KEYS), values[i % len(values)], version=i // KEYS)
        for i in range(count)
    ]


def _head(field: int, length: int) -> bytes:
    return bytes([field << 3 | _LENGTH_DELIMITED]) + _varint(length)


def _varint(number: int) -> bytes:
    """Seven bits to a byte, the least first; the high bit says that more come."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
