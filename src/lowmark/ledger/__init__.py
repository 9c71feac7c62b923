"""Ledgers: the compacted form of partitions, in immutable files that any program can read.

Words
    ledger      of a partition: the last row of each key, and every row without a key, of all
                offsets below its horizon; sorted by offset
    horizon     the ledger covers [0, horizon), the backlog serves [horizon, end): half open, so
                each offset has one source
    file        Parquet, one schema version, with an index of its keys beside it; never changed
    manifest    what a ledger consists of: files, and which of their rows are live
    pointer     the manifest that was published last, in the metastore
    run         one compaction of a table: plan, work, publish, adopt, trim, retire
    work        a run's part for one partition; any process that sees the files may carry it out
    epoch       the number of a partition's ledger; it only grows

Four things are kept apart that others have in one: the run's lease holds what it reads; the
horizon says what is compacted; the pointer says where; the cut says what is gone. None of them
moves another.

Which row of a key is its last one, and which deletes may go, is said in `rule`, and nowhere else.

Invariants
    1. A file that was finished is never changed. Live sets belong to manifests.
    2. A row is live in a ledger exactly if no later row below the horizon has its key; a delete is
       a row. It may be missing only if it lies below `deletes_below` and no file of the manifest
       has an older row of its key. So "the highest offset of each key, without deletes" over the
       manifest's files is right without live sets, too.
    3. Deletes go only when every cursor and every lease has passed them; the partition's machine
       has the last word when it adopts the ledger.
    4. Nothing is published that was not proven: every row that was written was read back with the
       hash it had when it was read from the log; the survivors of a sample of keys, or of all,
       were found a second time by another algorithm; digests of files add up to the manifest's.
    5. A pointer changes by one write, if it still is what the plan saw. An outcome that is not
       known is looked up.
    6. What the metastore says is published, a partition may adopt late, never skip back: reads and
       cuts go by what was adopted.
    7. A file or manifest that is missing or damaged, or is another ledger's, is an error by name,
       never a part of an answer: what is opened is held against what was adopted or published.
       One that was rebuilt without rows that are in no file any more says so (`lost`), and a
       reader that reads across them gets an error.
    8. Files are removed by reference, never by age: not while a pointer, an adopted ledger, a
       reader, a retired ledger in its grace time, or a run that can still be resumed names them.
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.ledger.errors import LedgerDamaged, LedgerLost, NothingLike, SourceMoved
    from lowmark.ledger.files import OpenFile, check_there
    from lowmark.ledger.key_file import KEY_SEED, KeyFile, open_key_file
    from lowmark.ledger.manifest import (
        Expected,
        LedgerFile,
        Lost,
        Manifest,
        read_adopted,
        read_manifest,
        run_folder,
        table_folder,
    )
    from lowmark.ledger.records import (
        REBUILD,
        Claim,
        PartitionPlan,
        Pointer,
        Retired,
        RunRecord,
        WaitsFor,
        decode_record,
        parse_retired_key,
        pointer_key,
        pointer_prefix,
        retired_key,
        retired_prefix,
        run_key,
        run_prefix,
        young_hint,
    )
    from lowmark.ledger.recovery import Salvage, recover_ledger
    from lowmark.ledger.rule import LAST_ROW, lacks_needed_deletes, may_go_below, passed_by_readers
    from lowmark.ledger.tail import Segments, Source, Span, Tail, tail_of, view_of
    from lowmark.ledger.verification import Problem, Verified, verify_ledger
    from lowmark.ledger.work import (
        Done,
        ReadWay,
        TaskContext,
        Work,
        carry_out,
        done_path,
        progress_path,
    )

__all__ = [
    "KEY_SEED",
    "LAST_ROW",
    "REBUILD",
    "Claim",
    "Done",
    "Expected",
    "KeyFile",
    "LedgerDamaged",
    "LedgerFile",
    "LedgerLost",
    "Lost",
    "Manifest",
    "NothingLike",
    "OpenFile",
    "PartitionPlan",
    "Pointer",
    "Problem",
    "ReadWay",
    "Retired",
    "RunRecord",
    "Salvage",
    "Segments",
    "Source",
    "SourceMoved",
    "Span",
    "Tail",
    "TaskContext",
    "Verified",
    "WaitsFor",
    "Work",
    "carry_out",
    "check_there",
    "decode_record",
    "done_path",
    "lacks_needed_deletes",
    "may_go_below",
    "open_key_file",
    "parse_retired_key",
    "passed_by_readers",
    "pointer_key",
    "pointer_prefix",
    "progress_path",
    "read_adopted",
    "read_manifest",
    "recover_ledger",
    "retired_key",
    "retired_prefix",
    "run_folder",
    "run_key",
    "run_prefix",
    "table_folder",
    "tail_of",
    "verify_ledger",
    "view_of",
    "young_hint",
]

__getattr__, __dir__ = face(__name__)
