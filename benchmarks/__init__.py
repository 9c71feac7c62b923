"""Figures as ratios, both sides measured in the same run on the same machine.

A rate by itself says more about the machine than about us. So every figure has a peer that does
the same job with less around it (a bare write loop, SQLite, `cp`), on the same disk, with the same
bytes and the same promise of durability, and the figure is the ratio.

How it is kept fair
    1. The sides take turns (ours, peer, ours, peer, ...) after one round that does not count, so a
       machine that grows slower slows both. The figure is the median of the rounds' ratios.
    2. Before each turn the disk is brought to rest (`sync`), garbage is collected, and as much free
       memory is touched as a turn took in the round that does not count (see `free_memory`); each
       turn works in a fresh folder.
    3. What the sides are fed is built before the clock starts.
    4. A turn of ours ends when nothing is left to do: the segment writer is idle, not only the WAL.
    5. Where one choice would flatter us (how much is in flight), the other is measured as well.

One runner does this for all suites (`runner`); a suite (`suites`) only declares its figures.

A figure that misses its target is a result, not a failure: it comes with a profile of one more
turn.

Where it stands
    Beside `src`, outside the wheel: it is for people who work on Lowmark, it brings other programs
    to compare with, and it looks behind the API (whether the log is idle). Nothing in `src` imports
    it; `lowmark bench` finds it in a checkout. This module imports nothing, so that the command's
    help does not wait for the suites.
"""
