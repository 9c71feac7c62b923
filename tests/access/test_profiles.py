"""Profiles: what a user's file says of a database, and what comes before it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowmark
from lowmark.errors import (
    AuthorityUnusable,
    ProfilesUnusable,
    ProfileUnknown,
    Rejected,
    TokenMissing,
)
from lowmark.node import load_settings
from lowmark.node.showing import found_secret, token_file
from lowmark.runtime.profiles import (
    authorities,
    named_profile,
    profile_in_use,
    profiles,
    profiles_file,
    using_profile,
)
from lowmark.tokens import drawn
from server.world import COLUMNS, Served

NONE = (
    "NODE DATA CA TOKEN TOKEN_FILE SETTINGS PROFILE CONFIG".split()  # noqa: SIM905 (to be read)
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of profiles; nothing else says anything."""
    for name in NONE:
        monkeypatch.delenv(f"LOWMARK_{name}", raising=False)
    path = tmp_path / "user" / "config.toml"
    path.parent.mkdir()
    monkeypatch.setenv("LOWMARK_CONFIG", str(path))
    return path


def write(file: Path, text: str, *, mode: int = 0o600) -> None:
    file.write_text(text)
    file.chmod(mode)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("profiles"), tokens=True) as served:
        served.db.create_table("orders", COLUMNS)
        yield served


def test_a_profile_names_the_server_and_the_token(file: Path, served: Served) -> None:
    token = served.db.tokens.create("profile").token
    (file.parent / "prod.token").write_text(f"{token}\n")
    (file.parent / "prod.token").chmod(0o600)
    write(
        file,
        f"""
        [profile.prod]
        node = ["{served.address}", "127.0.0.1:1"]
        token_file = "prod.token"
        [profile.inside]
        node = "{served.address}"
        token = "{token}"
        [profile.stranger]
        node = "{served.address}"
        """,
    )
    for name in ("prod", "inside"):
        with lowmark.connect(profile=name) as db:
            assert db.tables() == ["orders"]
    with pytest.raises(TokenMissing):
        lowmark.connect(profile="stranger")
    # (it counted for those calls alone)
    assert profile_in_use() is None
    with pytest.raises(Rejected, match="no server is named"):
        lowmark.connect()


def test_an_argument_comes_before_a_variable_and_that_before_the_profile(
    file: Path, served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = (drawn().reveal() for _ in range(3))
    for name, token in (("option", first), ("variable", second), ("profile", third)):
        write(file.parent / f"{name}.token", token)
    write(
        file,
        """
        [profile.prod]
        node = "127.0.0.1:1"
        ca = "ca.pem"
        token_file = "profile.token"
        settings = "lowmark.toml"
        """,
    )
    (file.parent / "lowmark.toml").write_text("[log]\nopen_files_max = 77\n")
    (file.parent / "other.toml").write_text("[log]\nopen_files_max = 78\n")

    def token_found() -> str:
        secret = found_secret()
        return "" if secret is None else secret.reveal()

    # given nothing but the file, then nothing of it counts
    assert (authorities(None), token_found()) == (None, "")
    # given its name, then all of it does, as if its paths were whole
    monkeypatch.setenv("LOWMARK_PROFILE", "prod")
    assert authorities(None) == str(file.parent / "ca.pem")
    assert token_found() == third
    assert load_settings().log.open_files_max == 77
    # given variables, then those count
    monkeypatch.setenv("LOWMARK_CA", "variable.pem")
    monkeypatch.setenv("LOWMARK_TOKEN_FILE", str(file.parent / "variable.token"))
    monkeypatch.setenv("LOWMARK_SETTINGS", str(file.parent / "other.toml"))
    assert authorities(None) == "variable.pem"
    assert token_found() == second
    assert load_settings().log.open_files_max == 78
    # given what is closer, then that does
    assert authorities("argument.pem") == "argument.pem"
    with token_file(str(file.parent / "option.token")):
        assert token_found() == first
    # and a server: an argument, a variable, the profile
    monkeypatch.setenv("LOWMARK_TOKEN", served.db.tokens.create("all-three").token)
    monkeypatch.delenv("LOWMARK_TOKEN_FILE")
    monkeypatch.setenv("LOWMARK_NODE", "127.0.0.1:2")
    lowmark.connect(served.address).close()
    monkeypatch.setenv("LOWMARK_NODE", served.address)
    lowmark.connect().close()
    assert not caplog.records
    # where the profile was named for this one call, a variable that comes before it is told
    with caplog.at_level(logging.WARNING):
        lowmark.connect(profile="prod").close()
    (said,) = caplog.records
    assert said.profile == "prod"  # type: ignore[attr-defined]
    assert said.variables == "LOWMARK_NODE,LOWMARK_CA,LOWMARK_TOKEN,LOWMARK_SETTINGS"  # type: ignore[attr-defined]


def test_a_profile_that_a_call_names_comes_before_the_one_of_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, '[profile.a]\nca = "a.pem"\n[profile.b]\nca = "~/b.pem"\ndata = "/b"\n')
    monkeypatch.setenv("LOWMARK_PROFILE", "a")
    monkeypatch.setenv("HOME", "/home/me")
    with using_profile("b"):
        assert authorities(None) == "/home/me/b.pem"
    assert authorities(None) == str(file.parent / "a.pem")
    with pytest.raises(Rejected, match=r"profile a in .* names no node") as none:
        lowmark.connect()
    assert "node =" in none.value.hint
    with pytest.raises(Rejected, match="names no node") as none:
        lowmark.connect(profile="b")
    assert none.value.hint == "lowmark.open('/b') opens its directory."
    with pytest.raises(AuthorityUnusable, match=r"a\.pem"):
        lowmark.connect("lowmark+tls://127.0.0.1:1", timeout_s=1)


def test_the_file_is_where_users_expect_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert profiles_file() == str(file)
    monkeypatch.setenv("LOWMARK_CONFIG", "~/mine.toml")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profiles_file() == str(tmp_path / "mine.toml")
    monkeypatch.delenv("LOWMARK_CONFIG")
    for given in ("relative/counts/not", ""):
        monkeypatch.setenv("XDG_CONFIG_HOME", given)
        assert profiles_file() == str(tmp_path / ".config" / "lowmark" / "config.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert profiles_file() == str(tmp_path / "config" / "lowmark" / "config.toml")
    # no file is no profile, and only one that is named is missed
    assert profiles() == {}
    with pytest.raises(ProfileUnknown, match="there is no file") as unknown:
        lowmark.connect(profile="prod")
    assert "[profile.prod]" in unknown.value.hint


def test_an_unknown_profile_names_those_that_there_are(file: Path) -> None:
    write(file, '[profile.prod]\nnode = "a:1"\n[profile.test]\nnode = "b:1"\n')
    with pytest.raises(ProfileUnknown, match="there is no profile prdo") as unknown:
        named_profile("prdo")
    assert unknown.value.detail == "It has prod, test."
    assert unknown.value.hint == "Did you mean prod?"
    write(file, "")
    with pytest.raises(ProfileUnknown) as unknown:
        named_profile("prod")
    assert unknown.value.detail == "It has none."


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('[profile.a]\ntokenfile = "x"\n', "tokenfile of [profile.a] in", "mean token_file?"),
        ('[profiles.a]\nnode = "x"\n', "profiles in", "mean [profile.NAME]?"),
        ('profile = "a"\n', "profile in", "[profile.NAME]"),
        ('[profile]\nnode = "a:1"\n', "profile.node in", "[profile.NAME]"),
        ("[profile.a]\nnode = 7\n", "node of [profile.a] in", "a list of addresses"),
        ("[profile.a]\nnode = [7]\n", "node of [profile.a] in", "a list of addresses"),
        ('[profile.a]\nca = " "\n', "ca of [profile.a] in", 'ca = "…"'),
        ('[profile.a]\nnode = "a:1"\ndata = "d"\n', "both node and data", "one of both"),
        ('[profile.a]\ntoken = "a"\ntoken_file = "d"\n', "both token_file and token", "one of"),
        ('[profile.a]\nnode = "a:1"\nca = \n', "not TOML", "[profile.prod]"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_place(
    file: Path, text: str, message: str, hint: str
) -> None:
    write(file, text)
    with pytest.raises(ProfilesUnusable) as refused:
        named_profile("a")
    assert message in refused.value.message
    assert str(file) in refused.value.message
    assert hint in refused.value.hint


def test_toml_that_is_none_names_the_line(file: Path) -> None:
    write(file, '[profile.a]\nnode = "a:1"\nca = \n')
    with pytest.raises(ProfilesUnusable, match="line 3"):
        profiles()
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ProfilesUnusable, match="not UTF-8"):
        profiles()
    file.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(ProfilesUnusable, match="larger than 1 MiB"):
        profiles()
    file.write_bytes(b"#" * (1 << 20))
    assert profiles() == {}
    file.unlink()
    file.mkdir()
    with pytest.raises(ProfilesUnusable, match="Is a directory"):
        profiles()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_token_in_a_file_that_others_read_is_refused_and_not_shown(file: Path, mode: int) -> None:
    token = drawn().reveal()
    write(file, f'[profile.a]\ntoken = "{token}"\n[profile.b]\nca = "x"\n', mode=mode)
    for name in ("a", "b"):  # whichever is used: the file is open to them all the time
        with pytest.raises(ProfilesUnusable, match="profile a has a token") as refused:
            named_profile(name)
        assert token not in str(refused.value)
        assert f"chmod 600 {file}" in refused.value.hint
    file.chmod(0o600)
    assert named_profile("a").token == token
    assert token not in repr(named_profile("a"))
    write(file, '[profile.b]\nca = "x"\n', mode=mode)
    assert os.path.basename(named_profile("b").ca) == "x"


@pytest.mark.parametrize("key", ['node = "127.0.0.1:1"', 'token_file = "x.token"'])
@pytest.mark.parametrize(
    ("mode", "said", "command"),
    [
        (0o646, "every user of this machine can write", "chmod go-w"),
        (0o664, "those of its group", "chmod g-w"),
    ],
)
def test_a_file_that_other_users_can_write_names_no_node(
    file: Path, key: str, mode: int, said: str, command: str
) -> None:
    # else another user might name a node there that the token is shown to
    write(file, f"[profile.a]\n{key}\n", mode=mode)
    with pytest.raises(ProfilesUnusable, match=said) as refused:
        named_profile("a")
    assert f"{command} {file}" in refused.value.hint
    file.chmod(0o644)
    assert named_profile("a").name == "a"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_a_file_of_another_user_names_no_node(file: Path) -> None:
    write(file, '[profile.a]\nnode = "127.0.0.1:1"\n')
    os.chown(file, 12_345, -1)
    with pytest.raises(ProfilesUnusable, match="belongs to another user"):
        named_profile("a")
    os.chown(file, 0, -1)
    assert named_profile("a").node == "127.0.0.1:1"
