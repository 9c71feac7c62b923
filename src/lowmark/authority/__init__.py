"""Certificates for nodes: an authority of the cluster's own, in a directory.

    authority    makes the directory, issues certificates, revokes them
    hosts        what a certificate may be for
    files        how files get there: beside, synced, renamed; keys for their owner alone
    showing      what certificates, folders and lists say, and what is wrong with them

The directory

    ca.pem             the certificate of the authority: what every node and client believes
    ca.key             its key (0600): it stays here, and no node needs it
    issued.jsonl       a line for each certificate, written before anyone has it
    crl.pem            what was revoked; made by the first `revoke`
    NAME/              a node's folder: cert.pem, key.pem (0600), ca.pem, crl.pem if there is one

What always holds
    1. Nothing that is there is overwritten by `init`. `issue` replaces each file of a folder as a
       whole, its key before its certificate: a node that reads between the two finds a pair that
       does not match, keeps what it has, and reads again.
    2. A certificate was noted before anyone has it, so every one can be revoked by its node's name.
    3. A revoked certificate stays on the list for as long as the authority lasts.
    4. Commands that run at once on one directory take turns.

Nodes need nothing of this package: they read PEM files by Python's `ssl` (`runtime.tls`). It needs
`cryptography`, the extra `tls`.
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.authority.authority import Authority, Issued, Revoked
    from lowmark.authority.errors import AuthorityRefused, CertificateRefused
    from lowmark.authority.showing import Shown, shown_at

__all__ = [
    "Authority",
    "AuthorityRefused",
    "CertificateRefused",
    "Issued",
    "Revoked",
    "Shown",
    "shown_at",
]

__getattr__, __dir__ = face(__name__)
