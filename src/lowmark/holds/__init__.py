"""Who still needs what: holds, the safe point, and decisions that name who held them back.

Compaction is the same question at every level: which pieces may go? A piece may go when nothing in
it is live and nobody holds it. A *hold* says who needs something, what exactly it pins, since when
and why. Every decision to cut returns both halves of its answer, what was cut and what was kept,
and for each piece kept the holders in order: so `explain` and a dry run are the decision itself,
printed instead of carried out.

Invariants
    1. A cut never passes a hold that was placed before it.
    2. A hold that has been released, or has expired, holds nothing: once the last holder is gone,
       what it held goes in the next run.
    3. A holder has one hold of a kind; placing it again replaces it.
"""

from lowmark.holds.hold import (
    Decision,
    Hold,
    Holds,
    Kept,
    Pins,
    Reason,
    SafePoint,
    Span,
    safe_point,
)

__all__ = [
    "Decision",
    "Hold",
    "Holds",
    "Kept",
    "Pins",
    "Reason",
    "SafePoint",
    "Span",
    "safe_point",
]
