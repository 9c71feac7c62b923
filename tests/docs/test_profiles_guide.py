"""What the guide says of profiles: its file is one, and its keys are those that there are."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from lowmark.runtime.profiles import Profile, profiles

GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "operate.md").read_text()


def test_the_file_of_the_guide_has_profiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = GUIDE.split("## Profiles\n")[1].split("\n## ")[0]
    (shown,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    (tmp_path / "config.toml").write_text(shown)
    monkeypatch.setenv("LOWMARK_CONFIG", str(tmp_path / "config.toml"))
    found = profiles()
    assert found["prod"].node == "lowmark+tls://n1.example:6570,n2.example:6570"
    assert found["prod"].ca == str(tmp_path / "prod-ca.pem")
    assert list(found) == ["prod", "try"]
    keys = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert keys == [one.name for one in fields(Profile) if one.name != "name"]
