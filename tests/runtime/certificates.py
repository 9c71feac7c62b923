"""Certificates for tests, made when they are needed."""

from __future__ import annotations

import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from lowmark.runtime.tls import TlsFiles


class Authority:
    """Signs certificates, and leaves them as files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self._count = 0
        self.path = str(folder / "authority.pem")
        self._authority.cert_pem.write_to_path(self.path)

    def files(self, *hosts: str, valid_days: int = 30) -> TlsFiles:
        """A node's files; with a negative number of days, its certificate has expired."""
        self._count += 1
        now = datetime.now(UTC)
        issued = self._authority.issue_cert(
            *hosts,
            not_before=now - timedelta(days=90),
            not_after=now + timedelta(days=valid_days),
        )
        certificate = self._folder / f"{self._count}.pem"
        key = self._folder / f"{self._count}.key"
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        issued.private_key_pem.write_to_path(str(key))
        return TlsFiles(certificate=str(certificate), key=str(key), authority=self.path)

    def odd_files(self, *names: bytes) -> TlsFiles:
        """A node's files, with a certificate whose alternative names are encoded so: `dns` and `ip`
        below make them.
        """
        there, now = self.files("127.0.0.1"), datetime.now(UTC)
        signer = load_pem_private_key(self._authority.private_key_pem.bytes(), password=None)
        assert isinstance(signer, EllipticCurvePrivateKey)
        key = load_pem_private_key(Path(there.key).read_bytes(), password=None)
        authority = x509.load_pem_x509_certificate(self._authority.cert_pem.bytes())
        odd = x509.UnrecognizedExtension(
            x509.SubjectAlternativeName.oid, _element(0x30, b"".join(names))
        )
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())  # type: ignore[arg-type]
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(odd, critical=True)
            .sign(signer, SHA256())
        )
        put(there.certificate, made.public_bytes(Encoding.PEM))
        return there

    def revoke(self, path: str, *revoked: TlsFiles, valid_days: int = 60) -> None:
        """Write a list of revoked certificates, as a file that is there at once or not at all."""
        now = datetime.now(UTC)
        key = load_pem_private_key(self._authority.private_key_pem.bytes(), password=None)
        assert isinstance(key, EllipticCurvePrivateKey)
        authority = x509.load_pem_x509_certificate(self._authority.cert_pem.bytes())
        made = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(authority.subject)
            .last_update(now - timedelta(hours=1))
            .next_update(now + timedelta(days=valid_days))
        )
        for one in revoked:
            serial = x509.load_pem_x509_certificate(Path(one.certificate).read_bytes())
            entry = x509.RevokedCertificateBuilder().serial_number(serial.serial_number)
            made = made.add_revoked_certificate(entry.revocation_date(now).build())
        put(path, made.sign(key, SHA256()).public_bytes(Encoding.PEM))

    def folder(self, folder: Path, *hosts: str, valid_days: int = 60) -> TlsFiles:
        """A node's folder, or new files in it."""
        folder.mkdir(exist_ok=True)
        there, made = TlsFiles.of_folder(str(folder)), self.files(*hosts, valid_days=valid_days)
        put(there.key, Path(made.key).read_bytes())
        put(there.certificate, Path(made.certificate).read_bytes())
        put(there.authority, Path(made.authority).read_bytes())
        return there


def dns(name: bytes) -> bytes:
    """A host's name in a certificate."""
    return _element(0x82, name)


def ip(number: bytes) -> bytes:
    """A host's number in a certificate."""
    return _element(0x87, number)


def _element(tag: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([tag, len(content)]) + content


def serial_at(address: str) -> int:
    """The number of the certificate that a server shows; 0: none answers just now."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, int(port)), timeout=10) as bare,
            context.wrap_socket(bare, do_handshake_on_connect=False) as secure,
        ):
            secure.do_handshake()
            der = secure.getpeercert(binary_form=True) or b""
    except OSError:
        return 0
    return x509.load_der_x509_certificate(der).serial_number


def put(path: str, content: bytes) -> None:
    """Replace a file as a whole."""
    Path(f"{path}.new").write_bytes(content)
    os.replace(f"{path}.new", path)
