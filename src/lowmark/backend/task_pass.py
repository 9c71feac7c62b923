"""What a task of Spark shows.

How its driver gets a pass for it is in `passing`, which no task needs to import.
"""

from __future__ import annotations

from typing import Final

from lowmark.node.showing import found_secret
from lowmark.tokens import Secret

KNOWN_S: Final = 5.0
"""A node may hear of a pass this much later than the one that made it; or it takes no tokens."""


def to_show(given: str) -> Secret | None:
    """The token of the task's environment, which counts as it did before there were passes; else
    the pass that its driver has sent.
    """
    return found_secret() or (Secret(given) if given else None)
