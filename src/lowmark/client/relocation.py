"""Another way to the place of a database's ledgers, which stays where it is."""

from __future__ import annotations

from msgspec.structs import replace

from lowmark.backend.port import Backend
from lowmark.errors import Conflict, Rejected
from lowmark.ledger.claim import check_claim, claim
from lowmark.metastore import Compare, Put, Revision
from lowmark.metastore.nodes import CLUSTER_KEY, decode_cluster, encode
from lowmark.runtime.store import (
    Store,
    place_of_location,
    whole_location,
    without_credentials,
)


def relocate(backend: Backend, location: str, *, anew: bool = False) -> None:
    """See `Database.set_ledger_location`."""
    wanted = whole_location(location)
    noted = backend.get(CLUSTER_KEY)
    settled = None if noted is None else decode_cluster(noted.value)
    if noted is None or settled is None or not settled.ledger_location:
        raise Rejected(
            f"the ledgers of {backend.info.name} are in a data directory",
            detail="Only a place that was settled when the database was made is reached by a URL.",
            hint="Found a database with ledger.location to have its ledgers elsewhere.",
        )
    known = without_credentials(settled.ledger_location)
    if place_of_location(wanted) != place_of_location(known):
        raise Rejected(
            f"the ledgers of {backend.info.name} are in {known}, not in {wanted}",
            detail="The place is settled when a database is made. How it is reached may change:"
            " what stands behind the question mark.",
            hint=f"Give {place_of_location(known)} with other options behind it.",
        )
    if anew:
        claim(Store(wanted), settled.id)
    elif wanted != known:  # else it is only credentials that go
        check_claim(Store(wanted), settled.id)
    fresh = replace(settled, ledger_location=wanted)
    unchanged = Revision(CLUSTER_KEY, Compare.EQ, noted.revision)
    if not backend.write([Put(CLUSTER_KEY, encode(fresh))], condition=unchanged):
        raise Conflict(
            "the settings of the cluster have changed meanwhile",
            hint="Try again.",
        )
