"""Two processes see the same directory if the same kernel gives it the same number."""

from __future__ import annotations

from pathlib import Path

from lowmark.runtime import place_of


def test_a_directory_is_the_same_by_any_of_its_paths_and_after_it_was_moved(tmp_path: Path) -> None:
    data, link = tmp_path / "data", tmp_path / "link"
    data.mkdir()
    link.symlink_to(data)
    place = place_of(str(data))
    assert place
    assert place_of(str(link)) == place
    # when another directory takes its path
    data.rename(tmp_path / "moved")
    data.mkdir()
    # then the path leads to another place
    assert place_of(str(data)) != place
    assert place_of(str(tmp_path / "moved")) == place


def test_what_is_not_there_has_no_place(tmp_path: Path) -> None:
    assert place_of(str(tmp_path / "no")) == ""
    assert place_of("") == ""
