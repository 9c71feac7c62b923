"""The runner of golden files can fail, and rewrites nothing but outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowmark.errors import Rejected
from scenarios.runner import Command, ScenarioBroken, ScenarioDiffers, run_file

FILE = """\
# Sums.
add 1 2
----
3

# This one has input, and prints two lines.
add by=(10, 20)
1
2
----
31
32

refuse why=because
----
error: Rejected: because
"""


def calculator(command: Command) -> str:
    """Adds numbers, and refuses."""
    if command.name == "refuse":
        raise Rejected(command.text("why"))
    if command.name == "by":
        return command.text("by")
    if command.input:
        total = sum(command.numbers("by"))
        return "\n".join(str(total + int(line)) for line in command.input)
    return str(sum(map(int, command.rest())))


def written(folder: Path, text: str) -> Path:
    path = folder / "sums.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_that_says_what_is_printed_passes_and_is_not_changed_by_a_rewrite(
    tmp_path: Path,
) -> None:
    # given files with and without a line break at the end, with empty lines and comments
    for text in [FILE, FILE.rstrip("\n"), f"\n\n{FILE}\n\n# The end.\n", "# Nothing.\n", ""]:
        path = written(tmp_path, text)
        before = path.stat().st_mtime_ns
        # when they are run and rewritten
        run_file(path, calculator, rewrite=False)
        run_file(path, calculator, rewrite=True)
        # then no byte has changed, and nothing was written at all
        assert path.read_bytes() == text.encode()
        assert path.stat().st_mtime_ns == before


def test_another_output_is_told_with_file_line_and_difference(tmp_path: Path) -> None:
    # given a file with two outputs that are not what is printed
    wrong = FILE.replace("\n3\n", "\n4\n").replace("31\n32", "31\n33")
    path = written(tmp_path, wrong)
    # when it is run
    with pytest.raises(ScenarioDiffers) as failed:
        run_file(path, calculator, rewrite=False)
    # then both are told, and the file stays as it was
    said = str(failed.value)
    assert f"{path}:2: `add` prints something else" in said
    assert f"{path}:7: `add` prints something else" in said
    assert "\n-4\n+3\n" in said
    assert "\n 31\n-33\n+32\n" in said
    assert path.read_text() == wrong
    # and a rewrite puts in what is printed, and keeps all else
    run_file(path, calculator, rewrite=True)
    assert path.read_text() == FILE


@pytest.mark.parametrize("change", ["-", "+", "shorter", "longer"])
def test_a_line_too_few_or_too_many_is_found(tmp_path: Path, change: str) -> None:
    output = {"-": "", "+": "31\n32\n33\n", "shorter": "31\n3\n", "longer": "31\n322\n"}[change]
    path = written(tmp_path, FILE.replace("31\n32\n", output))
    with pytest.raises(ScenarioDiffers, match=r"sums\.txt:7"):
        run_file(path, calculator, rewrite=False)
    run_file(path, calculator, rewrite=True)
    assert path.read_text() == FILE


def test_a_command_without_an_output_fails_until_the_file_is_rewritten(tmp_path: Path) -> None:
    path = written(tmp_path, "add 1 2\n\nadd by=(10, 20)\n1\n2\n\n# End.\nadd 5")
    with pytest.raises(ScenarioDiffers, match=r"sums\.txt:1: `add` has no output yet"):
        run_file(path, calculator, rewrite=False)
    run_file(path, calculator, rewrite=True)
    assert path.read_text() == (
        "add 1 2\n----\n3\n\nadd by=(10, 20)\n1\n2\n----\n31\n32\n\n# End.\nadd 5\n----\n5"
    )
    run_file(path, calculator, rewrite=False)


def test_an_error_that_is_not_in_the_file_is_a_difference(tmp_path: Path) -> None:
    path = written(tmp_path, "refuse why=because\n----\nok\n")
    with pytest.raises(ScenarioDiffers, match="error: Rejected: because"):
        run_file(path, calculator, rewrite=False)


@pytest.mark.parametrize("rewrite", [False, True])
@pytest.mark.parametrize(
    ("line", "left"), [("add 1 2 by=3", "by"), ("add by=(1) x y=()\n1", "x, y"), ("by x by=1", "x")]
)
def test_a_word_or_an_option_that_no_handler_takes_is_not_passed_over(
    tmp_path: Path, line: str, left: str, rewrite: bool
) -> None:
    path = written(tmp_path, f"{line}\n----\n3\n")
    with pytest.raises(ScenarioBroken, match=rf"sums\.txt:1: `\w+` does not take {left}$"):
        run_file(path, calculator, rewrite=rewrite)


def test_an_output_with_an_empty_line_is_refused_since_it_would_end_there(tmp_path: Path) -> None:
    path = written(tmp_path, "add\n----\n1\n")
    with pytest.raises(ScenarioBroken, match="an empty line"):
        run_file(path, lambda command: "1\n\n2", rewrite=True)
    assert path.read_text() == "add\n----\n1\n"


def test_a_mistake_of_a_driver_says_at_which_command_it_happened(tmp_path: Path) -> None:
    path = written(tmp_path, "# A comment.\nadd 1 x\n----\n1\n")
    with pytest.raises(ValueError, match="invalid literal") as failed:
        run_file(path, calculator, rewrite=True)
    assert failed.value.__notes__ == [f"{path}:2: add"]
