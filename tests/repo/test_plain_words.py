"""What users read (help texts, errors, log messages, pages) names the actor."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowmark

ROOT = Path(__file__).parents[2]
SOURCE = Path(lowmark.__file__).parent
VAGUE = re.compile(
    r"\b(whoever|nobody|somebody|is told|told of|so many|it is said|yet to come|in vain)\b"
    # help that says neither what an option does nor of what
    r"|none of it any|can't stand|stands above|^(The same|Only (this one|these))[:;,.]|It is fine",
    re.IGNORECASE,
)
ON_PAGES = re.compile(
    r"\b(whoever|(no|some|every|any)body|(some|every|any)one|(is|are|be) told(?! apart)|told of)\b"
    # a package is no room, an endpoint no door; `door` is a name in a format
    r"|\b(rooms|staircases?|house)\b|\broom `|(?<![`\"])\bdoors?\b",
    re.IGNORECASE,
)
NOT_FOR_USERS = "runtime/sim/"
"""What only tests see."""


def texts(tree: ast.Module, *, command: str) -> Iterator[tuple[int, str]]:
    """All strings but docstrings; of functions that are commands, those too: they are the help.

    A command is marked as one, or is the function that has the name of its module (`command`).
    """
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value
        elif isinstance(node, ast.FunctionDef) and command:
            marks = map(ast.unparse, node.decorator_list)
            marked = any(".command" in mark or ".callback" in mark for mark in marks)
            if marked or node.name == command:
                yield node.lineno, ast.get_docstring(node) or ""


@pytest.mark.slow
def test_no_text_for_users_leaves_them_to_guess_who_is_meant() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(NOT_FOR_USERS):
            continue
        tree = ast.parse(path.read_text())
        for line, text in texts(tree, command=path.stem if name.startswith("cli/") else ""):
            if VAGUE.search(text) and not text.isidentifier():
                found.append(f"{name}:{line}: {text}")
    assert found == []


PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_what_is_looked_for_in_texts_is_found() -> None:
    for words in ("Nobody answers", "X can't stand here", "The same.", "Only these: 0,3."):
        assert VAGUE.search(words), words
    for words in ("the same rows", "Compact only these partitions: 0,3.", "It has none of it"):
        assert not VAGUE.search(words), words


def test_no_page_leaves_readers_to_guess_who_is_meant() -> None:
    found = []
    for page in PAGES:
        text = page.read_text()
        # A phrase may go over the end of a line.
        for match in ON_PAGES.finditer(text.replace("\n", " ")):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{page.relative_to(ROOT)}:{line}: {match[0]}")
    assert len(PAGES) > 40
    assert found == []


def test_what_is_looked_for_on_pages_is_found_and_other_meanings_are_not() -> None:
    for words in ("Whoever reads", "it is told so", "the room `ledger`", "at the door", "Anybody"):
        assert ON_PAGES.search(words), words
    for words in ("has room for it", '{"door":"n2:7401"}', "are told apart"):
        assert not ON_PAGES.search(words), words
