"""Check histories by Porcupine: `make linearizable`.

    python -m linearizable.run --history DIR                     one that was kept
    python -m linearizable.run --runs 20 --minutes 2 --keep DIR  new ones

Exit code 0 if each history is linearizable, 1 if one is not or if its run found something wrong, 2
if something was not decided, or a model had nothing to check; 3 if a history can't be read; 4 if Go
or Porcupine is missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from linearizable.checking import SEARCH_S, Found, Missing, build, check

MISSING = 4


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="linearizable")
    parser.add_argument("--history", type=Path, default=None, help="check this one")
    parser.add_argument(
        "--runs", type=int, default=0, help="make this many histories, and check each"
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="of each run")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the first run; the next has one more"
    )
    parser.add_argument("--keep", type=Path, default=None, help="where new histories are kept")
    parser.add_argument("--timeout", type=float, default=SEARCH_S, help="seconds, of each search")
    parser.add_argument("--hosts", action="store_true", help="each node in a host of its own")
    arguments = parser.parse_args()
    if (arguments.history is None) == (not arguments.runs):
        parser.error("give HISTORY=DIR, or RUNS=20 (and MINUTES=2)")
    with tempfile.TemporaryDirectory(prefix="lowmark-linearizable-") as folder:
        try:
            program = build(Path(folder))
        except Missing as missing:
            say(f"make linearizable: {missing}")
            sys.exit(MISSING)
        if arguments.history is not None:
            found = check(program, arguments.history, search_s=arguments.timeout)
            show(found)
            sys.exit(found.code)
        sys.exit(several(program, arguments))


def several(program: Path, arguments: argparse.Namespace) -> int:
    """Make histories, one after the other, and check each; gives the exit code of the worst."""
    keep = arguments.keep or Path(tempfile.mkdtemp(prefix="lowmark-histories-"))
    first = time.time_ns() % 1_000_000 if arguments.seed is None else arguments.seed
    codes, operations = Counter[int](), Counter[str]()
    violations, undecided, wrong = 0, 0, 0
    for seed in range(first, first + arguments.runs):
        history = keep / str(seed)
        words = [sys.executable, "-m", "torture.run", "--seed", str(seed)]
        words += ["--minutes", str(arguments.minutes), "--history", str(history)]
        words += ["--dwell", str(min(30.0, arguments.minutes * 5)), *["--hosts"] * arguments.hosts]
        path = os.pathsep.join(filter(None, sys.path))
        done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, check=False)
        wrong += done.returncode != 0
        found = check(program, history, search_s=arguments.timeout)
        show(found)
        codes[found.code] += 1
        for one in found.models:
            operations[one["model"]] += one["operations"]
            violations += one["violations"]
            undecided += one["unknown"]
    say("")
    say(f"{arguments.runs} histories of {arguments.minutes:g} minutes, in {keep}")
    say("operations: " + ", ".join(f"{count} {name}" for name, count in operations.items()))
    say(f"{violations} violations, {undecided} undecided, {wrong} runs with something wrong")
    worst = next((code for code in (3, 1, 2) if codes[code]), 0)
    return worst or int(wrong > 0)


def show(found: Found) -> None:
    """For a person."""
    for one in found.models:
        say(
            f"{one['model']:10} {one['objects']:4} objects {one['operations']:8} operations"
            f" {one['violations']:3} violations {one['unknown']:3} unknown {one['seconds']:6.1f} s"
        )
    for line in [*found.said, *filter(None, [found.error])]:
        say(f"  {line}")


def say(text: str) -> None:
    """A line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
