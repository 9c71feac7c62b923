"""Tables as Spark has them: `format("lowmark")` to read, write and stream.

Spark calls a source in processes of its own: one asks for columns, one plans, one follows a stream,
one commits what was written, and tasks read and write. None of them is the process of the user, so
none has a database that was opened there: each opens it anew, by `path` or `node`. A directory is
read through the process that has it open; while there is none, as its files were.

    Source        what a user asked for by options, and its columns in Spark's types
    TableReader   the table now, or as of a time: a task for each partition of the table
    LogReader     rows of the log between two positions: a task for each partition, or for parts
    StreamReader  the log, in micro-batches; its place is in the checkpoint, and a cursor holds what
                  is to come. ChangeStreamReader: what changed, key by key
    sink          rows that tasks stage and the driver commits

What holds
    1. All tasks of a read see the table as of one time, which the plan says. A task that runs
       again, or in two attempts at once, gives the same rows.
    2. A filter is pushed only if Arrow judges each value as Spark does; Spark does not look again.
    3. A batch of a stream is given by offsets alone: the same ones, the same rows. Offsets never
       go back.
    4. What a stream has not committed is held by its cursor, from before its first batch is
       planned. The cursor's name is in the checkpoint.
    5. A write is stored once: tasks stage under numbers of one family, the driver commits those of
       the attempts that count as an epoch of its query, and a repeat adds nothing.
    6. Columns keep the types that they had when the query began, also those that were made wider
       since. A column that is gone, or a value that does not fit, ends it by name; started again,
       it goes on from its checkpoint.
    7. What tasks are sent has all nodes that were known when it was planned; any of them will do.
"""

from lowmark.frames.source import LowmarkSource

__all__ = ["LowmarkSource"]
