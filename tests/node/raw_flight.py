"""A client of any language: what gRPC says to it, with nothing of pyarrow between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import grpc
import pyarrow as pa

_SERVICE = "/arrow.flight.protocol.FlightService"
METHODS = (
    "DoAction",
    "DoGet",
    "DoPut",
    "DoExchange",
    "ListFlights",
    "GetFlightInfo",
    "GetSchema",
)


class Answer(NamedTuple):
    """How a call ended."""

    code: str
    text: str
    extra: bytes


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _descriptor(name: str) -> bytes:
    return b"\x08\x01" + _field(3, name.encode())  # a path


def _command(name: str) -> bytes:
    return b"\x08\x02" + _field(2, name.encode())


def _messages(descriptor: bytes) -> Iterator[bytes]:
    """A stream that says where it goes, and what its columns are."""
    header = pa.schema({"id": pa.int64()}).serialize().to_pybytes()[8:]
    yield _field(1, descriptor) + _field(2, header)


class RawFlight:
    """One connection. Close it when done."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def call(
        self, method: str, name: str = "x", *, headers: Sequence[tuple[str, str]] = ()
    ) -> Answer:
        """Make a call about a table, an action or a ticket of that name."""
        path, more = f"{_SERVICE}/{method}", {"metadata": headers, "timeout": 30.0}
        plain: Any = {"request_serializer": bytes, "response_deserializer": bytes}
        try:
            if method in {"DoPut", "DoExchange"}:
                descriptor = _descriptor(name) if method == "DoPut" else _command(name)
                list(self._channel.stream_stream(path, **plain)(_messages(descriptor), **more))
            elif method in {"GetFlightInfo", "GetSchema"}:
                self._channel.unary_unary(path, **plain)(_descriptor(name), **more)
            else:
                body = _field(1, name.encode())
                list(self._channel.unary_stream(path, **plain)(body, **more))
        except grpc.RpcError as error:
            trailers = dict(error.trailing_metadata())
            extra = trailers.get("grpc-status-details-bin", b"")
            return Answer(error.code().name, error.details(), extra)
        return Answer("OK", "", b"")
