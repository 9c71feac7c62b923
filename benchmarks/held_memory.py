"""What a process holds of memory: in all, and for one object."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FunctionType, ModuleType

_OF_ALL = (type, ModuleType, FunctionType)
"""There once, whatever refers to it."""


def anonymous_bytes() -> int:
    """What this process holds of its own."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return int(value.split()[0]) << 10
    return 0


def bytes_of(thing: object) -> int:
    """What an object holds with all that can be reached from it, each counted once."""
    seen: set[int] = set()
    reached, total = [thing], 0
    while reached:
        one = reached.pop()
        if id(one) in seen or isinstance(one, _OF_ALL):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        reached += gc.get_referents(one)
    return total
