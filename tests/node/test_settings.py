from __future__ import annotations

from pathlib import Path

import pytest

from lowmark.errors import Rejected
from lowmark.log import LogConfig
from lowmark.node import LogFormat, Logging, LogLevel, Settings, load_settings


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_file_everything_has_its_default(here: Path) -> None:
    assert load_settings(environment={}) == Settings(log=LogConfig(), logging=Logging())


def test_the_file_in_the_working_directory_is_found_by_itself(here: Path) -> None:
    (here / "lowmark.toml").write_text('[logging]\nlevel = "info"\n')
    assert load_settings(environment={}).logging.level is LogLevel.INFO


def test_the_file_named_closest_to_the_command_is_read_and_no_other(here: Path) -> None:
    # given three files that disagree
    for name, level in [("lowmark", "debug"), ("by_variable", "info"), ("by_argument", "error")]:
        (here / f"{name}.toml").write_text(f'[logging]\nlevel = "{level}"\n')
    environment = {"LOWMARK_SETTINGS": "by_variable.toml"}
    # when one is named by the environment, and when one is named by an argument
    by_variable = load_settings(environment=environment)
    by_argument = load_settings(Path("by_argument.toml"), environment=environment)
    # then the name decides
    assert by_variable.logging.level is LogLevel.INFO
    assert by_argument.logging.level is LogLevel.ERROR


def test_groups_and_their_link_have_sections_of_their_own(here: Path) -> None:
    (here / "lowmark.toml").write_text('[group]\nsnapshot_bytes = "1GiB"\n')
    environment = {"LOWMARK_TRANSPORT_STRAYS_MAX": "7"}
    settings = load_settings(environment=environment)
    assert settings.group.snapshot_bytes == 1 << 30
    assert settings.transport.strays_max == 7


def test_what_a_founder_settles_comes_from_three_sections(here: Path) -> None:
    (here / "lowmark.toml").write_text("[metastore]\nmembers = 5\n[schema_sync]\ndelay_ms = 70\n")
    settings = load_settings(environment={"LOWMARK_CLOCK_MAX_SKEW_MS": "30"})
    founding = settings.for_founding()
    assert (founding.members, founding.schema_sync_delay_ms, founding.clock_max_skew_ms) == (
        5,
        70,
        30,
    )


@pytest.mark.parametrize("variable", ["LOWMARK_SCHEMA_SYNC_DELAY_MS", "LOWMARK_CLOCK_MAX_SKEW_MS"])
def test_what_no_cluster_could_be_founded_with_is_refused_by_name(
    variable: str, here: Path
) -> None:
    with pytest.raises(Rejected) as refused:
        load_settings(environment={variable: "-1"})
    assert variable in refused.value.message


def test_a_size_in_the_log_section_may_have_a_unit(here: Path) -> None:
    (here / "lowmark.toml").write_text('[log]\nwal_bytes_max = "128MiB"\n')
    assert load_settings(environment={}).log.wal_bytes_max == 134_217_728


def test_arguments_and_environment_reach_their_sections(here: Path) -> None:
    settings = load_settings(
        arguments={"logging": {"level": LogLevel.DEBUG}},
        environment={"LOWMARK_LOGGING_LEVEL": "error", "LOWMARK_LOGGING_FORMAT": "json"},
    )
    assert settings.logging == Logging(level=LogLevel.DEBUG, format=LogFormat.JSON)


def test_a_file_that_was_named_must_be_there(here: Path) -> None:
    with pytest.raises(Rejected, match=r"the settings file nowhere\.toml can't be read"):
        load_settings(environment={"LOWMARK_SETTINGS": "nowhere.toml"})


@pytest.mark.parametrize("content", [b"[log\n", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_refused_by_name(here: Path, content: bytes) -> None:
    (here / "lowmark.toml").write_bytes(content)
    with pytest.raises(Rejected, match=r"the settings file lowmark\.toml"):
        load_settings(environment={})


@pytest.mark.parametrize("content", ["[loging]\n", "loging = 3\n", "logging = 3\n"])
def test_a_section_nobody_knows_is_refused_with_the_nearest_one(here: Path, content: str) -> None:
    (here / "lowmark.toml").write_text(content)
    with pytest.raises(Rejected) as refused:
        load_settings(environment={})
    assert "in lowmark.toml: there is no such section" in refused.value.message
    assert refused.value.hint == "Did you mean [logging]?"
