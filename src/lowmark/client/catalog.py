"""The catalog of a database as its callers have it: a version, and how its history is cut."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from lowmark.backend.port import Backend
from lowmark.catalog import Catalog
from lowmark.client.edges import edge
from lowmark.client.session import Session

if TYPE_CHECKING:
    from lowmark.backend.operating import CatalogHolder, CatalogRound


@dataclass(frozen=True, slots=True)
class KeptVersions:
    """Neighbouring versions of the catalog that the same holders need."""

    first: int
    last: int
    needed_by: tuple[CatalogHolder, ...]
    """Empty: the next round cuts them, or they are in force now or later."""
    present: bool = False
    """Whether the version in force now is the first of them."""


@dataclass(frozen=True, slots=True)
class CatalogExplanation:
    """What is kept of the catalog's history, and what needs it."""

    earliest: int
    latest: int
    would_cut: int
    """This many versions would go now."""
    versions: tuple[KeptVersions, ...]
    holders: tuple[CatalogHolder, ...]
    """Those of the lowest versions first; some, if there are many."""
    held: int
    """How many there are in all."""


@edge()
@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseCatalog(Catalog):
    """The latest version of a database's catalog."""

    _session: Session = field(repr=False, compare=False)

    @property
    def _backend(self) -> Backend:
        return self._session.backend

    def compact(self, *, dry_run: bool = False) -> CatalogRound:
        """Cut the history as far as nothing in the cluster needs it; what went, and what holds the
        rest. That happens by itself, too, whenever the low watermark has moved.

        A dry run asks all nodes the same, and changes nothing.
        """
        from lowmark.backend.operating import (  # noqa: PLC0415 (operators alone ask for it)
            CatalogRound,
            CompactCatalogAsk,
            operated,
        )

        asked = CompactCatalogAsk(dry_run=dry_run)
        return operated(self._backend, "catalog.compact", asked, CatalogRound)

    def rounds(self) -> list[CatalogRound]:
        """The last rounds that cut something, or that other holders than before kept from it;
        oldest first.
        """
        from lowmark.backend.operating import (  # noqa: PLC0415 (operators alone ask for it)
            Nothing,
            RoundsReply,
            operated,
        )

        said = operated(self._backend, "catalog.rounds", Nothing(), RoundsReply)
        return list(said.rounds)

    def explain(self) -> CatalogExplanation:
        """What needs each version that is kept, and since when: a dry run of `compact`."""
        made = self.compact(dry_run=True)
        starts = sorted({made.earliest, made.present, *(one.version for one in made.holders)})
        starts = [one for one in starts if made.earliest <= one <= made.latest]
        ends = [*(one - 1 for one in starts[1:]), made.latest]
        kept = tuple(
            KeptVersions(
                first,
                last,
                tuple(one for one in made.holders if one.version <= first < made.present),
                present=first == made.present,
            )
            for first, last in zip(starts, ends, strict=True)
        )
        return CatalogExplanation(
            made.earliest, made.latest, made.cut, kept, made.holders, made.held
        )


def catalog_of(catalog: Catalog, session: Session) -> DatabaseCatalog:
    """A version, for the callers of a session."""
    values = {one.name: getattr(catalog, one.name) for one in fields(Catalog)}
    return DatabaseCatalog(**values, _session=session)
