"""What is wrong with a node's own files, found without starting the node."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from lowmark.errors import LowmarkError
from lowmark.inspect.findings import Finding, finding_of
from lowmark.log import NewerFormat, files
from lowmark.metastore.identity import (
    GROUP,
    PATH,
    MetastoreDamaged,
    MetastoreMissing,
    NodeFileDamaged,
    NodeFileMissing,
    group_names,
    had_a_copy,
    load_identity,
    lost_its_copy,
    no_record,
)
from lowmark.runtime import Disk


def verify_node(
    disk: Disk, found: Sequence[Finding] = (), *, recorded: Collection[str]
) -> Iterator[Finding]:
    """What is wrong with a node's own files, for `lowmark log verify`, and what it means for the
    node that something was found in its log, or that a group's record was not (`recorded`).

    A log that no node has made has no note, and needs none.
    """
    where = disk.describe(files.group_dir(GROUP))
    try:
        identity = load_identity(disk)
    except LowmarkError as error:
        told = error if isinstance(error, NewerFormat) else NodeFileDamaged(disk, error)
        yield replace(finding_of(disk, PATH, None, error), hint=told.hint)
        return
    if identity is None:
        if GROUP in group_names(disk) or disk.list(files.LEDGERS):
            what = "the file is missing: nothing says whose directory this is"
            hint = NodeFileMissing(disk).hint
            yield Finding("missing", None, disk.describe(PATH), None, what, hint)
        return
    alone = not identity.peers
    if lost_its_copy(disk, identity):
        what = "the folder is missing: without the metastore no table can be opened"
        hint = MetastoreMissing(disk, alone=alone).hint
        yield Finding("missing", GROUP, where, None, what, hint)
    elif (cause := next(filter(_stops_the_metastore, found), None)) is not None:
        what = "the metastore can't be opened, and without it no table can"
        hint = MetastoreDamaged(disk, cause.what, alone=alone).hint
        yield Finding("damage", GROUP, where, None, what, hint)
    elif GROUP in group_names(disk) and GROUP not in recorded:
        # As at a start: a founder may have crashed before the record of its copy was written.
        if had_a_copy(identity, others=len(group_names(disk)) > 1):
            what = f"{no_record(disk)}: the metastore can't be opened, and without it no table can"
            hint = MetastoreDamaged(disk, what, alone=alone).hint
            yield Finding("missing", GROUP, disk.describe(files.WAL), None, what, hint)


def _stops_the_metastore(finding: Finding) -> bool:
    """Damage of a WAL file that is no group's concerns all of them."""
    if finding.group is None:
        return finding.kind == "damage" and not finding.path.endswith(files.DAMAGED)
    return finding.group == GROUP and finding.kind in {"damage", "missing", "quarantine"}
