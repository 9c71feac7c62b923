"""Set the marks `slow` by what tests took, on a machine that does nothing else:

    make test TIMES=times.xml
    .venv/bin/python tests/slow_marks.py times.xml
    make format

A test is slow when one of its cases took more than `SLOW_S`. It is not any more when all of them
took less than half of that, so that marks do not come and go with the weather. A mark of a module
or a class stays as it is, and a test that only `make test-all` runs needs none.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

SLOW_S = 0.3
MARK = "@pytest.mark.slow"
_FUTURE = "from __future__ import annotations"


def times(report: Path) -> dict[Path, dict[str, float]]:
    """The longest case of each test, by file and name; the name of a method has its class."""
    found: dict[Path, dict[str, float]] = defaultdict(dict)
    for case in ElementTree.parse(report).iter("testcase"):
        parts = case.get("classname", "").split(".")
        modules = [at for at, part in enumerate(parts) if part.startswith("test_")]
        if not modules or case.find("skipped") is not None:
            continue
        at = modules[0] + 1
        path = Path(*parts[:at]).with_suffix(".py")
        name = ".".join([*parts[at:], re.split(r"[\[@]", case.get("name", ""))[0]])
        took = float(case.get("time", "0"))
        found[path][name] = max(took, found[path].get(name, 0.0))
    return found


def marked(text: str, took: Mapping[str, float]) -> str:
    """The text of a file, with its marks set."""
    lines = text.splitlines()
    changes: list[tuple[int, str]] = []
    for name, node in _tests(ast.parse(text).body):
        if name not in took:
            continue
        marks = {lines[one.lineno - 1].strip(): one.lineno - 1 for one in node.decorator_list}
        if MARK in marks and took[name] < SLOW_S / 2:
            changes.append((marks[MARK], ""))
        elif MARK not in marks and took[name] > SLOW_S:
            first = min(marks.values(), default=node.lineno - 1)
            changes.append((first, " " * node.col_offset + MARK))
    for at, line in sorted(changes, reverse=True):
        lines[at : at + (not line)] = [line] if line else []
    if any(line for _, line in changes) and "import pytest" not in lines:
        lines.insert(lines.index(_FUTURE) + 1, "import pytest")
    return "\n".join(lines) + "\n"


def _tests(body: Sequence[ast.stmt], of: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module or a class whose marks are their own."""
    for node in body:
        if isinstance(node, ast.Assign) and "mark.slow" in (text := ast.unparse(node)):
            if text.startswith("pytestmark"):
                return
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _tests(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            if not any("mark.release" == ast.unparse(one)[-12:] for one in node.decorator_list):
                yield of + node.name, node


def main(report: str) -> None:
    """Set them all, and say in which files."""
    for path, took in sorted(times(Path(report)).items()):
        before = path.read_text()
        after = marked(before, took)
        if after != before:
            path.write_text(after)
            sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
