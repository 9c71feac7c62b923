"""Why a client gets no connection: what TLS has to do with it, by name."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow import flight

from lowmark.errors import AuthorityUnusable, ServerNotTrusted, TlsNeeded, TlsNotSpoken
from lowmark.runtime.handshake import read_authority, why_refused
from lowmark.runtime.tls import TlsFiles
from runtime.certificates import Authority


@contextmanager
def served(files: TlsFiles | None) -> Iterator[int]:
    """A Flight server; gives its port."""
    if files is None:
        server = flight.FlightServerBase("grpc+tcp://127.0.0.1:0")
    else:
        pair = (Path(files.certificate).read_bytes(), Path(files.key).read_bytes())
        server = flight.FlightServerBase("grpc+tls://127.0.0.1:0", tls_certificates=[pair])
    with server:
        yield server.port


def test_a_good_server_has_nothing_to_do_with_it(authority: Authority) -> None:
    with served(authority.files("127.0.0.1", "localhost")) as port:
        for host in ("127.0.0.1", "localhost"):
            assert why_refused(host, port, tls=True, ca=authority.path) is None
    with served(None) as port:
        assert why_refused("127.0.0.1", port, tls=False) is None


def test_where_nothing_listens_tls_is_not_the_reason(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for tls in (True, False):
        assert why_refused("127.0.0.1", port, tls=tls, ca=authority.path) is None


def test_a_server_of_another_authority_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    with served(other.files("127.0.0.1")) as port:
        error = why_refused("127.0.0.1", port, tls=True, ca=authority.path)
        unknown = why_refused("127.0.0.1", port, tls=True)
    assert isinstance(error, ServerNotTrusted)
    assert f"no authority in {authority.path} has signed its certificate" in error.message
    assert "that this machine knows" in str(unknown)


def test_a_server_of_another_name_is_not_trusted(authority: Authority) -> None:
    with served(authority.files("n1.example", "10.0.0.7")) as port:
        for host in ("127.0.0.1", "localhost"):
            error = why_refused(host, port, tls=True, ca=authority.path)
            assert isinstance(error, ServerNotTrusted)
            assert f"its certificate is for n1.example, 10.0.0.7, not for {host}" in error.message


def test_a_server_whose_certificate_has_ended_is_not_trusted(authority: Authority) -> None:
    with served(authority.files("127.0.0.1", valid_days=-1)) as port:
        error = why_refused("127.0.0.1", port, tls=True, ca=authority.path)
    assert isinstance(error, ServerNotTrusted)
    assert "its certificate has ended" in error.message
    assert "lowmark tls issue" in error.hint


def test_one_who_speaks_tls_and_one_who_does_not_find_out(authority: Authority) -> None:
    with served(authority.files("127.0.0.1")) as port:
        error = why_refused("127.0.0.1", port, tls=False)
    assert isinstance(error, TlsNeeded)
    assert f"lowmark+tls://127.0.0.1:{port}" in error.hint
    with served(None) as port:
        assert isinstance(why_refused("127.0.0.1", port, tls=True, ca=authority.path), TlsNotSpoken)


def test_a_file_of_authorities_that_can_not_be_read_is_named(
    authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "rubbish").write_bytes(b"rubbish")
    for name, reason in (("nowhere", "No such file"), ("rubbish", "no certificate in PEM")):
        with pytest.raises(AuthorityUnusable, match=reason) as refused:
            read_authority(str(tmp_path / name))
        assert str(tmp_path / name) in refused.value.message
    assert read_authority(authority.path) == Path(authority.path).read_bytes()
