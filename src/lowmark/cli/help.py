"""Help texts, shown as they were written, in lines as wide as the terminal.

Typer keeps the line breaks of a docstring from its second paragraph on: at 80 columns every other
line would break in the middle. It also takes what stands in square brackets for markup, and leaves
it out.
"""

from __future__ import annotations

from typing import Any

from rich.markup import escape


def as_written(command: Any) -> Any:
    """Prepare the texts of a command, and of all that are below it."""
    command.help = escape(_unwrapped(command.help or ""))
    for parameter in command.params:
        if parameter.help:
            parameter.help = escape(parameter.help)
    for below in getattr(command, "commands", {}).values():
        as_written(below)
    return command


def _unwrapped(text: str) -> str:
    """Each paragraph in one line, except for those that are indented."""
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else paragraph.replace("\n", " ")
        for paragraph in text.split("\n\n")
    )
