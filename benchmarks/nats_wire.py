"""As much of NATS's protocol as it takes to publish into a stream and to hear that it is stored.

The protocol is text (docs.nats.io, "NATS protocol"): a message is
`PUB subject reply length`, then its bytes; the stream's answer comes to the reply's subject as
`MSG subject sid length`, then JSON. JetStream is asked by publishing to subjects of its own.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from typing import Any, Self

import msgspec

from lowmark.errors import Unavailable

STREAM = SUBJECT = "rows"
_READ_BYTES = 256 << 10
_SILENCE_S = 60.0
_SENT_TOGETHER = 512


class NatsRefused(Unavailable):
    """What the server answered instead."""


class BareNats:
    """One connection, used by one thread."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_SILENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unread = b""
        # All subscribers of a subject hear what is said there: each connection has its own.
        self._inbox = b"_INBOX." + secrets.token_hex(8).encode()
        self._line()  # INFO
        self._socket.sendall(
            b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB %b 1\r\nPING\r\n' % self._inbox
        )
        while self._line() != b"PONG":
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, subject: str, **body: object) -> dict[str, Any]:
        """A question to JetStream."""
        self._socket.sendall(self._message(f"$JS.API.{subject}", msgspec.json.encode(body)))
        said = self._answer()
        if "error" in said:
            raise NatsRefused(f"NATS said: {said['error'].get('description')}")
        return said

    def publish(self, payloads: Sequence[bytes], *, window: int) -> int:
        """Publish messages, so many at most without an answer; how many were stored."""
        messages = [self._message(SUBJECT, payload) for payload in payloads]
        sent = stored = 0
        while stored < len(messages):
            until = min(len(messages), stored + window, sent + _SENT_TOGETHER)
            if until > sent:
                self._socket.sendall(b"".join(messages[sent:until]))
                sent = until
            # More is sent as soon as there is room, so that the window stays full.
            if sent - stored == window or sent == len(messages):
                stored += self._stored()
        return stored

    def _stored(self) -> int:
        """Wait for an answer, and take all that are there."""
        count = 0
        while not count or b"\r\n" in self._unread:
            said = self._answer()
            if "seq" not in said:
                raise NatsRefused(f"NATS stored a message not: {said}")
            count += 1
        return count

    def _answer(self) -> dict[str, Any]:
        while not (line := self._line()).startswith(b"MSG "):
            if line == b"PING":
                self._socket.sendall(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise NatsRefused(f"NATS said: {line.decode(errors='replace')}")
        size = int(line.rpartition(b" ")[2])
        while len(self._unread) < size + 2:
            self._more()
        body, self._unread = self._unread[:size], self._unread[size + 2 :]
        return msgspec.json.decode(body, type=dict[str, Any])

    def _line(self) -> bytes:
        while b"\r\n" not in self._unread:
            self._more()
        line, _, self._unread = self._unread.partition(b"\r\n")
        return line

    def _more(self) -> None:
        got = self._socket.recv(_READ_BYTES)
        if not got:
            raise NatsRefused("NATS hung up")
        self._unread += got

    def _message(self, subject: str, payload: bytes) -> bytes:
        return b"PUB %b %b %d\r\n%b\r\n" % (
            subject.encode(),
            self._inbox,
            len(payload),
            payload,
        )
