"""Compaction: runs that replace a partition's backlog by a ledger that has one row per key.

A run goes through the steps at the head of `run`; what is true after each is said there.

    plan        what a run would do with a partition, and why it leaves something out
    context     what all that have a part in one run know of it; the token that ends a run early,
                for every way to ask for that
    run         one run, step by step
    publish     the pointer, the adoption by the partition, the cut of the backlog
    records     what the metastore knows: pointers, retired ledgers, runs
    claims      which process compacts a table: one at a time, wherever it is
    holds       what keeps the backlog for a run while it is read
    runner      where the work is carried out: in this process, or on Spark
    compactor   the runs of one database, one at a time for each table
    automatic   tables that are compacted when they are due, and runs that wait for a worker
    sweep       removes files that no ledger, run or reader names
    repair, verify, description
                what a ledger has, whether it is sound, and how to mend it

It knows the database by the port alone (`lowmark.backend.port`).

What always holds
    1. A ledger is read only after its partition has adopted it, by a command in its log.
    2. The backlog is cut only below an adopted horizon, and never below a hold.
    3. A file goes only when no pointer, no run that can be resumed and no reader names it.
    4. A run that was interrupted at any step can be resumed, cancelled, or left: the next run gives
       it up, and nothing that was readable before it has changed.
    5. Whatever is noted of a run, or published by it, is written by the process that has the claim
       of its table.
"""
