"""What users read (help texts, errors, log messages) names the actor."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import lowmark

SOURCE = Path(lowmark.__file__).parent
VAGUE = re.compile(r"\b(whoever|nobody|somebody|is told|told of)\b", re.IGNORECASE)
NOT_FOR_USERS = {"bench", "runtime/sim/network.py"}
"""The benches, where a user of the system is called nobody, and the simulated network."""


def texts(tree: ast.Module, *, commands: bool) -> Iterator[tuple[int, str]]:
    """All strings but docstrings; of functions that are commands, those too: they are the help."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value
        elif isinstance(node, ast.FunctionDef) and commands:
            marks = map(ast.unparse, node.decorator_list)
            if any(".command" in mark or ".callback" in mark for mark in marks):
                yield node.lineno, ast.get_docstring(node) or ""


def test_no_text_for_users_leaves_them_to_guess_who_is_meant() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name in NOT_FOR_USERS or name.split("/")[0] in NOT_FOR_USERS:
            continue
        tree = ast.parse(path.read_text())
        for line, text in texts(tree, commands=name.startswith("cli/")):
            if VAGUE.search(text) and not text.isidentifier():
                found.append(f"{name}:{line}: {text}")
    assert found == []
