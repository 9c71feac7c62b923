"""Which files of a data directory other users of the machine can look into."""

from __future__ import annotations

from collections.abc import Iterator

from lowmark.inspect.findings import Finding
from lowmark.runtime import Disk
from lowmark.runtime.disk import closing_command, open_to_others, what_others_may


def verify_access(disk: Disk) -> Iterator[Finding]:
    """One finding, if other users can enter the directory: with how much of it they can read.

    Files are made for their user alone, but a directory may be of an earlier release, have been
    copied, or have been made by its user before a database was opened in it.
    """
    wide = open_to_others(disk)
    if not wide:
        return
    where = disk.describe("").rstrip("/")
    inside = len(wide) - 1
    what = "other users of this machine can see the names in it"
    if what_others_may(disk, wide).startswith("change"):
        what = "other users of this machine can change and remove what is in it"
    elif inside:
        some = f"{inside:,} of its files and folders" if inside > 1 else wide[1]
        what += f", and look into {some}"
    hint = f"Close it to them: {closing_command(where)}"
    yield Finding("open to others", None, where, None, what, hint)
