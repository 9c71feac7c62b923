"""What is refused when certificates are made."""

from __future__ import annotations

from lowmark.errors import Rejected


class AuthorityRefused(Rejected):
    """A directory that is no authority, or must not become one."""


class CertificateRefused(Rejected):
    """A certificate that can't be issued, revoked or read."""
