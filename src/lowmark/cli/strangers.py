"""The first line of a command that talks to a node at which strangers can come in."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lowmark.formatting import insecure_words


def warn_of_strangers(open_at: Sequence[str], who: str = "the node that answers") -> None:
    """Say on stderr, before anything else, that strangers can come in at these addresses of it."""
    if open_at:
        print(f"warning: {insecure_words(who, open_at)}", file=sys.stderr, flush=True)
