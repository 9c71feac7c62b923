"""`lowmark completion`: what a shell offers behind a beginning, without starting anything."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

import pytest
from typer.testing import CliRunner

from lowmark.cli.app import COMMANDS, app

BASH = shutil.which("bash")


@cache
def script(shell: str) -> str:
    done = CliRunner().invoke(app, ["completion", shell])
    assert done.exit_code == 0, done.output
    return done.stdout


def offered(*words: str) -> list[str]:
    """What bash offers for the last of these words."""
    assert BASH is not None
    quoted = " ".join(f"'{word}'" for word in ("lowmark", *words))
    asking = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _lowmark; echo ${{COMPREPLY[*]}}"
    ran = subprocess.run(
        [BASH, "--norc", "-c", f"{script('bash')}\n{asking}"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/nowhere"},
    )
    assert ran.stderr == ""
    return ran.stdout.split()


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("re",), ["rebalance", "read"]),
        (("rebalance", "th"), ["throttle"]),
        (("rebalance", "plan", "--add"), ["--add-node"]),
        (("node", "drain", "n3", "--no-"), ["--no-wait"]),
        (("table", "al"), ["alter"]),
        (("table", "alter", "orders", "--wi"), ["--widen"]),
        (
            ("read", "orders", "--c"),
            ["--compacted", "--cursor", "--commit", "--columns", "--csv", "--ca"],
        ),
        (("read", "table", "--fol"), ["--follow"]),
        (("watermark", "h"), ["history"]),
        (("zone", "al"), ["alter"]),
        (("zone", "create", "near", "--scale"), ["--scale-up", "--scale-down"]),
        (("--log-l",), ["--log-level"]),
        (("read", "orders", "--parquet", ""), []),
        (("nope", "x"), []),
    ],
)
def test_bash_completes_commands_and_options(words: tuple[str, ...], found: list[str]) -> None:
    assert offered(*words) == found


@pytest.mark.skipif(BASH is None, reason="there is no bash")
def test_every_command_is_offered() -> None:
    assert set(COMMANDS) <= set(offered(""))


def test_zsh_and_fish_get_all_commands_too() -> None:
    assert script("bash") in script("zsh")
    fish = script("fish")
    for name in COMMANDS:
        assert f"__lowmark_at ''\" -f -a {name} " in fish
    assert (
        "__lowmark_at ' table alter'\" -l widen -r -d 'Give a column a type that holds more.'"
        in fish
    )


def test_another_shell_is_refused() -> None:
    done = CliRunner().invoke(app, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "tcsh" in done.output
