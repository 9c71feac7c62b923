"""`lowmark completion`: scripts by which shells complete commands and options.

They are made from the commands as they are, and have all words in them: to complete one, a shell
starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer


@dataclass(frozen=True, slots=True)
class _Level:
    """What may stand behind a command."""

    path: str
    """Its words, with a blank before each; empty: behind `lowmark`."""
    commands: dict[str, str]
    """With the first line of their help."""
    options: dict[str, str]
    with_value: tuple[str, ...]
    """Options behind which a value stands."""


def completion(
    ctx: typer.Context,
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")
    ],
) -> None:
    """Print a script that completes commands and options in your shell.

    For bash, put this into ~/.bashrc: eval "$(lowmark completion bash)"

    For zsh, behind compinit in ~/.zshrc: eval "$(lowmark completion zsh)"

    For fish: lowmark completion fish > ~/.config/fish/completions/lowmark.fish

    Example: lowmark completion bash
    """
    root = ctx.find_root().command
    levels = list(_levels(root, ctx, ""))
    make = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    print(make[shell](levels))


def _levels(command: Any, ctx: typer.Context, path: str) -> Iterator[_Level]:
    names = command.list_commands(ctx) if hasattr(command, "list_commands") else []
    below = {name: command.get_command(ctx, name) for name in names}
    below = {name: one for name, one in below.items() if not one.hidden}
    options, with_value = {"--help": "Show this message and exit."}, []
    for parameter in command.params:
        if parameter.param_type_name != "option" or getattr(parameter, "hidden", False):
            continue
        for word in (*parameter.opts, *parameter.secondary_opts):
            options[word] = _first_line(parameter.help)
            if not parameter.is_flag:
                with_value.append(word)
    told = {name: _first_line(one.help) for name, one in below.items()}
    yield _Level(path, told, options, tuple(with_value))
    for name, one in below.items():
        yield from _levels(one, ctx, f"{path} {name}")


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n", 1)[0]


def _bash(levels: list[_Level]) -> str:
    known = "|".join(f'"{level.path}"' for level in levels if level.path)
    lines = [
        "_lowmark() {",
        '    local cur="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        '    local at="" words="" values="" i',
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        '        case "$at ${COMP_WORDS[i]}" in',
        f'            {known}) at="$at ${{COMP_WORDS[i]}}" ;;',
        "        esac",
        "    done",
        '    case "$at" in',
    ]
    for level in levels:
        words = " ".join([*level.commands, *level.options])
        values = " ".join(level.with_value)
        lines.append(f'        "{level.path}") words="{words}" values=" {values} " ;;')
    lines += [
        "    esac",
        "    COMPREPLY=()",
        '    case "$values" in *" $before "*) return ;; esac',
        '    COMPREPLY=($(compgen -W "$words" -- "$cur"))',
        "}",
        "complete -o default -F _lowmark lowmark",
    ]
    return "\n".join(lines)


def _zsh(levels: list[_Level]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(levels)}"


def _fish(levels: list[_Level]) -> str:
    known = " ".join(f"'{level.path}'" for level in levels if level.path)
    lines = [
        "function __lowmark_at",
        "    set -l at ''",
        "    for word in (commandline -opc)[2..-1]",
        f'        if contains -- "$at $word" {known}',
        '            set at "$at $word"',
        "        end",
        "    end",
        '    test "$at" = "$argv[1]"',
        "end",
    ]
    for level in levels:
        begin = f"complete -c lowmark -n \"__lowmark_at '{level.path}'\""
        lines += [
            f"{begin} -f -a {name} -d {_quoted(told)}" for name, told in level.commands.items()
        ]
        for word, told in level.options.items():
            kind = f"-l {word[2:]}" if word.startswith("--") else f"-s {word[1:]}"
            value = " -r" if word in level.with_value else ""
            lines.append(f"{begin} {kind}{value} -d {_quoted(told)}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """As fish reads it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
