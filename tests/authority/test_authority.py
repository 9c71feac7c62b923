"""An authority in a directory: what it makes, renews and revokes, and what it refuses."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lowmark.authority import (
    Authority,
    AuthorityRefused,
    CertificateRefused,
    Shown,
    shown_at,
)
from lowmark.runtime.tls import KeyMismatch, Tls, TlsFiles, TlsUnusable, Untrusted


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.found(str(tmp_path / "tls"))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def folder_of(authority: Authority, name: str) -> TlsFiles:
    return TlsFiles.of_folder(os.path.join(authority.folder, name))


def shake(dialler: Tls, other: Tls) -> None:
    """A handshake of two nodes: raises what the first of them that is not satisfied says."""
    one, two, done = dialler.dial(), other.answer(), False
    while not done:
        done = one.shake_hands()
        two.received(one.to_send())
        done = two.shake_hands() and done
        one.received(two.to_send())


def state_of(shown: list[Shown], kind: str = "certificate") -> str:
    (one,) = [one for one in shown if one.kind == kind]
    return one.state


# -- an authority ---------------------------------------------------------------------------------


def test_a_new_authority_keeps_its_key_to_itself(tmp_path: Path) -> None:
    # given a wide mask, and a directory that was made before
    before = os.umask(0)
    try:
        (tmp_path / "tls").mkdir(mode=0o777)
        Authority.found(str(tmp_path / "tls"))
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "tls") == 0o700
    assert mode_of(tmp_path / "tls" / "ca.key") == 0o600
    assert mode_of(tmp_path / "tls" / "ca.pem") == 0o644
    assert sorted(os.listdir(tmp_path / "tls")) == ["ca.key", "ca.pem"]


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o1777])
def test_a_directory_that_others_use_is_left_as_it_is(tmp_path: Path, mode: int) -> None:
    # given one with a file in it, that others may enter; or one like /tmp
    folder = tmp_path / "shared"
    folder.mkdir()
    if not mode & stat.S_ISVTX:
        (folder / "theirs").touch()
    folder.chmod(mode)
    # then no authority is made there, and the command says why
    with pytest.raises(AuthorityRefused, match="other users of this machine") as refused:
        Authority.found(str(folder))
    assert f"chmod 700 {folder}" in refused.value.hint
    assert mode_of(folder) == mode
    assert not (folder / "ca.key").exists()


def test_a_directory_that_has_an_authority_is_left_as_it_is(authority: Authority) -> None:
    os.chmod(authority.folder, 0o755)
    with pytest.raises(AuthorityRefused, match=r"there is ca\.pem in"):
        Authority.found(authority.folder)
    assert mode_of(Path(authority.folder)) == 0o755


def test_a_directory_with_other_files_that_is_its_owner_s_alone_will_do(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir(mode=0o700)
    (tmp_path / "tls" / "notes").touch()
    Authority.found(str(tmp_path / "tls"))
    assert (tmp_path / "tls" / "ca.pem").exists()


def test_an_init_that_was_killed_at_any_step_is_put_right_by_the_next(tmp_path: Path) -> None:
    finished, step = False, 0
    while not finished:
        folder = tmp_path / str(step)
        with pytest.MonkeyPatch.context() as patched:
            killed_at(patched, step)
            try:
                Authority.found(str(folder))
                finished = True
            except Killed:
                pass
        # then what there is of a key stays, and is that of the authority
        key = (folder / "ca.key").read_bytes() if (folder / "ca.key").exists() else b""
        if not (folder / "ca.pem").exists():
            Authority.found(str(folder))
        assert (folder / "ca.key").read_bytes().startswith(key)
        authority = Authority.of(str(folder))
        authority.issue("n1", ["localhost"])
        authority.issue("n2", ["localhost"])
        shake(*(Tls(folder_of(authority, name)) for name in ("n1", "n2")))
        step += 1
    assert step > 5


@pytest.mark.parametrize(
    ("lost", "hint"),
    [("ca.pem", "each node's folder has it"), ("ca.key", "nothing can be issued without it")],
)
def test_what_was_lost_of_an_authority_is_said(authority: Authority, lost: str, hint: str) -> None:
    authority.issue("n1", ["localhost"])
    os.unlink(f"{authority.folder}/{lost}")
    with pytest.raises(AuthorityRefused, match=f"there is no .*{lost}") as refused:
        Authority.of(authority.folder)
    assert hint in refused.value.hint


@pytest.mark.parametrize("left", ["ca.pem", "ca.key"])
def test_an_authority_is_never_overwritten(authority: Authority, left: str) -> None:
    folder = Path(authority.folder)
    authority.issue("n1", ["localhost"])
    (other,) = {"ca.pem", "ca.key"} - {left}
    (folder / other).unlink()
    content = (folder / left).read_bytes()
    with pytest.raises(AuthorityRefused, match=f"there is {left} in"):
        Authority.found(str(folder))
    assert (folder / left).read_bytes() == content
    assert not (folder / other).exists()


def test_a_directory_without_an_authority_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AuthorityRefused, match="is not the directory of an authority") as refused:
        Authority.of(str(tmp_path))
    assert "lowmark tls init" in refused.value.hint


def test_the_key_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    other = Authority.found(str(tmp_path / "other"))
    os.replace(f"{other.folder}/ca.key", f"{authority.folder}/ca.key")
    with pytest.raises(AuthorityRefused, match="is not the key of"):
        Authority.of(authority.folder)


# -- issuing --------------------------------------------------------------------------------------


def test_nodes_use_a_folder_as_it_was_issued(authority: Authority) -> None:
    # given two nodes
    authority.issue("n1", ["N1.example.", "10.0.0.7", "[fd00::7]", "localhost"])
    authority.issue("n2", ["n2.example"], days=30)
    # then each is believed by the other, under all of its names
    one, two = (Tls(folder_of(authority, name)) for name in ("n1", "n2"))
    shake(one, two)
    shake(two, one)
    for host in ("n1.example", "10.0.0.7", "fd00::7", "localhost"):
        one.check_ours(host)
    with pytest.raises(TlsUnusable):
        one.check_ours("n2.example")
    # and only its owner reads its key
    assert mode_of(Path(authority.folder) / "n1" / "key.pem") == 0o600
    assert mode_of(Path(authority.folder) / "n1") == 0o700


def test_a_node_of_another_authority_is_not_believed(authority: Authority, tmp_path: Path) -> None:
    other = Authority.found(str(tmp_path / "other"))
    authority.issue("n1", ["localhost"])
    other.issue("n1", ["localhost"])
    with pytest.raises(Untrusted):
        shake(Tls(folder_of(authority, "n1")), Tls(folder_of(other, "n1")))


def test_a_renewal_has_the_hosts_of_before_and_another_key(authority: Authority) -> None:
    first = authority.issue("n1", ["localhost", "10.0.0.7"])
    key = Path(folder_of(authority, "n1").key).read_bytes()
    second = Authority.of(authority.folder).issue("n1")
    assert second.hosts == first.hosts
    assert second.serial != first.serial
    assert Path(folder_of(authority, "n1").key).read_bytes() != key
    assert [one.serial for one in authority.issued("n1")] == [first.serial, second.serial]
    # and other hosts take the place of those
    assert authority.issue("n1", ["n1.example"]).hosts == ("n1.example",)
    Tls(folder_of(authority, "n1")).check_ours("n1.example")


def test_a_reader_never_has_half_of_a_renewal_for_long(authority: Authority) -> None:
    # given a node that reads its files all the time
    authority.issue("n1", ["localhost"])
    over, seen = threading.Event(), set[type[Exception] | None]()

    def read() -> None:
        while not over.is_set():
            try:
                Tls(folder_of(authority, "n1"))
                seen.add(None)
            except TlsUnusable as error:
                seen.add(type(error))

    reader = threading.Thread(target=read)
    reader.start()
    # when they are renewed over and over
    for _ in range(20):
        authority.issue("n1")
    over.set()
    reader.join()
    # then it found a pair, or knew that it was none; and what stays is one
    assert seen <= {None, KeyMismatch}
    assert None in seen
    Tls(folder_of(authority, "n1"))


class Killed(BaseException):
    """The command is gone."""


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Have the command die before its file call of that number."""
    left = [step]

    def dies(name: str) -> None:
        there: Callable[..., None] = getattr(os, name)

        def call(*arguments: object) -> None:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            there(*arguments)

        monkeypatch.setattr(os, name, call)

    for name in ("replace", "fsync", "mkdir", "chmod"):
        dies(name)


@pytest.mark.parametrize("order", ["first", "renewal", "revocation"])
def test_a_command_that_was_killed_at_any_step_is_put_right_by_the_next(
    tmp_path: Path, order: str
) -> None:
    finished, step = False, 0
    while not finished:
        authority = Authority.found(str(tmp_path / f"{order}-{step}"))
        authority.issue("n2", ["localhost"])
        given = set[str]()
        if order != "first":
            given.add(authority.issue("n1", ["localhost"]).serial)
        # when the command dies
        with pytest.MonkeyPatch.context() as patched:
            killed_at(patched, step)
            try:
                if order == "revocation":
                    authority.revoke("n1")
                else:
                    given.add(authority.issue("n1", ["localhost"]).serial)
                finished = True
            except Killed:
                pass
        there = folder_of(authority, "n1")
        if os.path.exists(there.certificate):
            given.add(next(one.serial for one in shown_at(there.certificate)))
        # then what can be used is noted, so that it can be revoked
        again = Authority.of(authority.folder)
        assert given <= {one.serial for one in again.issued("n1")}
        # and the same command does the whole
        if order == "revocation":
            again.revoke("n1")
            with pytest.raises(TlsUnusable, match="certificate revoked"):
                Tls(there)
            with pytest.raises(Untrusted):
                shake(Tls(replace(there, revoked="")), Tls(folder_of(authority, "n2")))
        else:
            given.add(again.issue("n1", ["localhost"]).serial)
            shake(Tls(there), Tls(folder_of(authority, "n2")))
            again.revoke("n1")
            (listed, *_) = [one for one in shown_at(authority.folder) if one.kind == "list"]
            assert given <= {*listed.revoked}
        step += 1
    assert step > 5


@pytest.mark.parametrize(
    ("host", "hint"),
    [
        ("*.example", "no wildcards"),
        ("n1.example:6570", "leave the port out"),
        ("10.0.0.300", "like 10.0.0.7"),
        ("a b", "a name that DNS knows"),
        ("", "a name that DNS knows"),
        ("-n1", "a name that DNS knows"),
        (f"{'a' * 64}.example", "a name that DNS knows"),
        ("kölle.example", "xn--"),
    ],
)
def test_what_no_host_is_called_is_refused(authority: Authority, host: str, hint: str) -> None:
    with pytest.raises(CertificateRefused) as refused:
        authority.issue("n1", ["localhost", host])
    assert hint in refused.value.hint
    assert not os.path.exists(f"{authority.folder}/n1")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../n1", "ca.pem", "crl.pem", "n 1", "-n"])
def test_what_no_folder_can_be_called_is_refused(authority: Authority, name: str) -> None:
    with pytest.raises(CertificateRefused, match="name of a node's folder"):
        authority.issue(name, ["localhost"])
    with pytest.raises(CertificateRefused, match="name of a node's folder"):
        authority.revoke(name)


def test_a_first_certificate_needs_a_host(authority: Authority) -> None:
    with pytest.raises(CertificateRefused, match="say which hosts") as refused:
        authority.issue("n1")
    assert "--host" in refused.value.hint


@pytest.mark.parametrize("days", [0, -1, 3_651])
def test_a_time_that_cannot_be_is_refused(authority: Authority, days: int) -> None:
    with pytest.raises(CertificateRefused, match="can't be valid for"):
        authority.issue("n1", ["localhost"], days=days)


def test_a_certificate_ends_before_its_authority(tmp_path: Path) -> None:
    began = datetime.now(UTC) - timedelta(days=3_600)
    authority = Authority.found(str(tmp_path / "tls"), now=began)
    with pytest.raises(CertificateRefused, match="the authority ends on") as refused:
        authority.issue("n1", ["localhost"])
    assert "--days 49" in refused.value.hint or "--days 50" in refused.value.hint
    authority.issue("n1", ["localhost"], days=40)


def test_commands_that_run_at_once_take_turns(authority: Authority) -> None:
    threads = [
        threading.Thread(target=Authority.of(authority.folder).issue, args=("n1", ["localhost"]))
        for _ in range(6)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    Tls(folder_of(authority, "n1"))
    assert len(authority.issued("n1")) == 6


# -- revoking -------------------------------------------------------------------------------------


def test_all_certificates_of_a_node_are_revoked_and_the_next_one_is_good(
    authority: Authority,
) -> None:
    # given a node whose first certificate was renewed
    for name in ("n1", "n2"):
        authority.issue(name, ["localhost"])
    old = Tls(folder_of(authority, "n1"))
    authority.issue("n1")
    new = Tls(folder_of(authority, "n1"))
    # when it is revoked
    done = authority.revoke("n1")
    # then both are on the list, which each folder has
    assert len(done.serials) == 2
    assert len(done.lists) == 3
    other = Tls(folder_of(authority, "n2"))
    for mine in (old, new):
        with pytest.raises(Untrusted, match="certificate revoked"):
            shake(mine, other)
    # and once more, nothing is new
    assert authority.revoke("n1").serials == ()
    # and its next certificate is believed, though those stay on the list
    authority.issue("n1")
    shake(Tls(folder_of(authority, "n1")), Tls(folder_of(authority, "n2")))
    authority.revoke("n2")
    (listed, *_) = [one for one in shown_at(authority.folder) if one.kind == "list"]
    assert {*done.serials} < {*listed.revoked}


def test_what_was_never_issued_is_not_revoked(authority: Authority) -> None:
    authority.issue("n1", ["localhost"])
    with pytest.raises(CertificateRefused, match="no certificate was issued for n7") as refused:
        authority.revoke("n7")
    assert "n1" in refused.value.hint


def test_a_list_that_cannot_be_read_is_not_replaced(authority: Authority) -> None:
    authority.issue("n1", ["localhost"])
    authority.revoke("n1")
    Path(authority.folder, "crl.pem").write_bytes(b"rubbish")
    with pytest.raises(AuthorityRefused, match="can't be read"):
        authority.revoke("n1")


def test_a_line_that_a_killed_command_left_is_passed_over(authority: Authority) -> None:
    first = authority.issue("n1", ["localhost"])
    with open(f"{authority.folder}/issued.jsonl", "ab") as file:
        file.write(b'{"name": "n1", "ser')
    second = authority.issue("n1")
    assert [one.serial for one in authority.issued("n1")] == [first.serial, second.serial]


# -- showing --------------------------------------------------------------------------------------


def test_a_folder_says_what_is_wrong_with_it(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue("n1", ["n1.example", "10.0.0.7"], days=10)
    folder = Path(authority.folder) / "n1"
    (ca, mine) = shown_at(str(folder))
    assert (ca.kind, ca.state, ca.days_left) == ("authority", "valid", 3_649)
    assert (mine.kind, mine.name, mine.state, mine.why) == ("certificate", "n1", "valid", "")
    assert mine.hosts == ("n1.example", "10.0.0.7")
    assert (mine.serial, mine.ends_at_ms // 1_000) == (issued.serial, issued.ends_at_ms // 1_000)  # type: ignore[operator]
    assert mine.issuer == ca.name
    # when it has ended
    later = datetime.now(UTC) + timedelta(days=11)
    assert state_of(shown_at(str(folder), now=later)) == "ended"
    # when clocks are wrong
    earlier = datetime.now(UTC) - timedelta(days=1)
    assert state_of(shown_at(str(folder), now=earlier)) == "to come"
    # when it was revoked
    authority.revoke("n1")
    assert state_of(shown_at(str(folder))) == "revoked"
    authority.issue("n1")
    assert state_of(shown_at(str(folder))) == "valid"
    # when a file beside it is another's
    other = Authority.found(str(tmp_path / "other"))
    other.issue("n1", ["localhost"])
    for name in ("ca.pem", "key.pem"):
        good = (folder / name).read_bytes()
        (folder / name).write_bytes((Path(other.folder) / "n1" / name).read_bytes())
        assert state_of(shown_at(str(folder))) == "unusable"
        (folder / name).unlink()
        assert state_of(shown_at(str(folder))) == "unusable"
        (folder / name).write_bytes(good)
    assert state_of(shown_at(str(folder))) == "valid"


def test_what_is_no_certificate_is_said(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "bad.pem").write_text(
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    )
    (tmp_path / "empty").mkdir()
    for path, reason in [
        (tmp_path / "text", "no PEM file"),
        (tmp_path / "bad.pem", "can't be read"),
        (tmp_path / "nothing", "No such file"),
        (tmp_path / "empty", "there is no certificate in"),
        (Path(authority.folder) / "ca.key", "a key, which is not shown"),
    ]:
        with pytest.raises(CertificateRefused, match=reason):
            shown_at(str(path))
