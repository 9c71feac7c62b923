"""A listener that can't take a new certificate at once: it tries again by itself."""

from __future__ import annotations

import errno
import importlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pyarrow
import pytest
from cryptography import x509

from lowmark.node import listener
from lowmark.node.listener import Listener
from lowmark.node.tls import NodeTls
from lowmark.runtime import RealLoop, RealNetwork
from lowmark.runtime.tls import TlsFiles
from runtime.certificates import Authority, serial_at

SOON_MS = 20_000
LOOK_MS = 5.0


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def loop() -> Iterator[RealLoop]:
    loop = RealLoop()
    yield loop
    loop.close()


class Serves:
    """What clients of a node with TLS see of it."""

    def __init__(self, loop: RealLoop, signer: Authority, folder: Path) -> None:
        self._loop = loop
        self._signer = signer
        self._folder = folder
        files = signer.folder(folder, "127.0.0.1")
        network = RealNetwork(loop, random=Random(1), tls=files, tls_look_ms=LOOK_MS)
        self.tls = NodeTls(str(folder), "require", network)
        self.listener: Listener = self.tls.listener("127.0.0.1:0")

    @property
    def problems(self) -> str:
        return " ".join(self.tls.problems({}))

    def renew(self) -> None:
        self._signer.folder(self._folder, "127.0.0.1", valid_days=90)

    def shows_the_new_one(self) -> None:
        """Wait for it."""
        self._loop.run_until(lambda: not self.problems, timeout_ms=SOON_MS)
        assert serial_at(self.listener.address) == serial_in(self._folder)


def serial_in(folder: Path) -> int:
    path = TlsFiles.of_folder(str(folder)).certificate
    return x509.load_pem_x509_certificate(Path(path).read_bytes()).serial_number


@pytest.fixture
def serves(loop: RealLoop, signer: Authority, tmp_path: Path) -> Iterator[Serves]:
    made = Serves(loop, signer, tmp_path / "n")
    yield made
    made.listener.close()


class Scarce:
    """A module as it is, but for one thing that the machine has no more of."""

    def __init__(self, module: Any, name: str, error: Exception) -> None:
        self._module = module
        self._name = name
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return self if name == self._name else getattr(self._module, name)

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise self._error


@pytest.mark.parametrize(
    ("where", "what", "error", "listens"),
    [
        ("addresses", "socket.socket", OSError(errno.EMFILE, "Too many open files"), False),
        ("listener", "_FlightServer", pyarrow.ArrowInvalid("could not bind"), False),
        ("listener", "threading.Thread", RuntimeError("can't start new thread"), True),
        ("tls", "threading.Thread", RuntimeError("can't start new thread"), True),
    ],
)
def test_a_renewal_that_fails_for_a_while_is_made_later(
    loop: RealLoop, serves: Serves, where: str, what: str, error: Exception, listens: bool
) -> None:
    # given a machine that has no more of something
    with pytest.MonkeyPatch.context() as patched:
        module = importlib.import_module(f"lowmark.node.{where}")
        outer, _, inner = what.partition(".")
        patched.setattr(module, outer, Scarce(getattr(module, outer), inner, error))
        # when the certificate is renewed
        serves.renew()
        loop.run_until(lambda: bool(serves.problems), timeout_ms=SOON_MS)
        # then the node says so
        assert str(error.args[-1]) in serves.problems
        assert serves.listener.listens is listens
        assert ("clients can't connect" in serves.problems) is not listens
    # and once there is enough of it, clients are shown the new one
    serves.shows_the_new_one()


def test_a_certificate_that_was_not_taken_once_is_tried_again(
    loop: RealLoop, serves: Serves, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a listener that can't be opened for a moment: with the certificate before, it can
    real, failed = listener._FlightServer, list[None]()

    def fails_once(*given: Any) -> Any:
        if not failed:
            failed.append(None)
            raise pyarrow.ArrowInvalid("could not bind")
        return real(*given)

    monkeypatch.setattr(listener, "_FlightServer", fails_once)
    # when the certificate is renewed
    serves.renew()
    loop.run_until(lambda: bool(failed) and bool(serves.problems), timeout_ms=SOON_MS)
    assert "clients are not shown the new certificate" in serves.problems
    # then they are, a little later
    serves.shows_the_new_one()
