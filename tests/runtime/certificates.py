"""Certificates for tests, made when they are needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

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
