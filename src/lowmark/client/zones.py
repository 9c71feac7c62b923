"""Zones as callers write them: lengths of time are `"5s"`, `"10 min"` or a `timedelta`, and a time
that does not come is `"never"`.
"""

from __future__ import annotations

from datetime import timedelta

from lowmark.catalog import (
    DURATION_TAKES,
    NEVER,
    PARTITIONS_DEFAULT,
    REPLICAS_DEFAULT,
    SCALE_DOWN_MS,
    SCALE_UP_MS,
    AlterZone,
    CatalogRefused,
    CreateZone,
    Never,
    Reason,
    parse_duration,
)


def creation(
    name: str,
    *,
    replicas: int | None = None,
    partitions: int | None = None,
    node_filter: str | None = None,
    scale_up: str | timedelta | None = None,
    scale_down: str | timedelta | None = None,
    if_not_exists: bool = False,
) -> CreateZone:
    """The command that creates a zone; what is None has its default."""
    up, down = _up(name, scale_up), _down(name, scale_down)
    return CreateZone(
        name=name,
        replicas=REPLICAS_DEFAULT if replicas is None else replicas,
        partitions=PARTITIONS_DEFAULT if partitions is None else partitions,
        node_filter=node_filter or "",
        scale_up_ms=SCALE_UP_MS if up is None else up,
        scale_down_ms=SCALE_DOWN_MS if down is None else down,
        if_not_exists=if_not_exists,
    )


def alteration(
    name: str,
    *,
    replicas: int | None = None,
    partitions: int | None = None,
    node_filter: str | None = None,
    scale_up: str | timedelta | None = None,
    scale_down: str | timedelta | None = None,
    if_exists: bool = False,
) -> AlterZone:
    """The command that alters a zone; what is None stays as it is."""
    return AlterZone(
        name=name,
        replicas=replicas,
        partitions=partitions,
        node_filter=node_filter,
        scale_up_ms=_up(name, scale_up),
        scale_down_ms=_down(name, scale_down),
        if_exists=if_exists,
    )


def _up(zone: str, given: object) -> int | None:
    return None if given is None else _millis(zone, "scale_up", given)


def _down(zone: str, given: object) -> int | Never | None:
    if given is None:
        return None
    if isinstance(given, str) and given.strip().lower() == NEVER:
        return NEVER
    return _millis(zone, "scale_down", given, more=f"; or {NEVER}")


def _millis(zone: str, what: str, given: object, *, more: str = "") -> int:
    millis = parse_duration(given)
    if millis is None:
        raise CatalogRefused(
            f"zone {zone} can't have {given!r} as {what}: it is not a length of time",
            reason=Reason.LIMIT,
            about=("zone", zone),
            hint=f"Give {DURATION_TAKES}{more}.",
        )
    return millis
