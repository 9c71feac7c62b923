"""The page that leads from the documents to the code names only what the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from lowmark.cli.app import app
from lowmark.node import Settings

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lowmark"
PAGE = (ROOT / "docs" / "guide" / "seeds.md").read_text()
WHERE = re.compile(r"((?:`[\w.]+`(?:, | and ))*`[\w.]+`) in (?:\[|`)([\w/]+\.py)")
"""Names, and the module that they are said to be in."""
CLASS = re.compile(r"`([A-Z][a-z]\w*)(?:\.(\w+))?[`(]")


def _members(node: ast.ClassDef) -> set[str]:
    """Methods, fields, and what methods set."""
    found = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef):
            found.add(inner.name)
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            found.add(inner.id)
        elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            found.add(inner.attr)
    return found


def _classes() -> dict[str, set[str]]:
    """All classes of the package; of those that share a name, the members of all."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(_members(node))
    return found


def _here() -> list[str]:
    """What stands in the middle of its tables: where a mechanism is."""
    rows = re.findall(r"^\| .* \| (.*) \| .* \|$", PAGE, re.MULTILINE)
    return [cell for cell in rows if cell != "where it is here"]


@pytest.mark.slow
def test_every_class_in_the_tables_is_there_with_its_members() -> None:
    # given all classes, and what the tables name
    classes = _classes()
    named = {match for cell in _here() for match in CLASS.findall(cell)}
    assert len(named) > 40
    # then each is there, with the member that is named
    assert [name for name, _ in sorted(named) if name not in classes] == []
    missing = [(name, member) for name, member in named if member and member not in classes[name]]
    assert missing == []


def test_a_name_that_is_said_to_be_in_a_module_is_defined_there() -> None:
    # given what the page says is where
    said = [
        (name, module)
        for names, module in WHERE.findall(PAGE)
        for name in re.findall(r"`(\w+)", names)
    ]
    assert len(said) > 20
    # then each module defines it
    missing = [
        (name, module)
        for name, module in said
        if not re.search(rf"^(class|def) {name}\b", (SOURCE / module).read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_every_command_and_setting_that_it_names_is_there() -> None:
    # given commands, and settings of the sections that nodes have
    root: Any = typer.main.get_command(app)
    settings = Settings()
    commands = re.findall(r"`lowmark ([a-z]+)(?: ([a-z]+))?", PAGE)
    keys = re.findall(r"`(log|ledger|clock|schema_sync|watermark)\.([a-z_]+)`", PAGE)
    assert len(commands) > 10
    assert len(keys) > 8
    # then each is there
    for name, inner in commands:
        command = root.commands[name]
        assert not inner or inner in getattr(command, "commands", [inner]), f"{name} {inner}"
    for section, key in keys:
        assert hasattr(getattr(settings, section), key), f"{section}.{key}"
