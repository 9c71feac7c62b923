"""Certificates that are replaced, revoked, or end, while a node runs."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from lowmark.errors import LowmarkError
from lowmark.runtime import Buffer, NetworkLimits, RealLoop, RealNetwork
from lowmark.runtime.certificates import Certificates
from lowmark.runtime.der import NotDer, certificate_id, revocation_lists
from lowmark.runtime.network import NotAPeer, PeerLost
from lowmark.runtime.tls import Tls, TlsFiles, TlsUnusable
from runtime.certificates import Authority, dns, put

SOON_MS = 20_000
LOOK_MS = 5.0
LIMITS = NetworkLimits(rest_ms_min=1, rest_ms_max=8)
_DAY_MS = 86_400_000


@pytest.fixture
def loop() -> Iterator[RealLoop]:
    loop = RealLoop()
    yield loop
    loop.close()


class Node:
    """A node known by 127.0.0.1, with a folder of its own."""

    def __init__(self, loop: RealLoop, files: TlsFiles) -> None:
        self.loop = loop
        self.frames: list[bytes] = []
        self.cuts: list[LowmarkError] = []
        network = RealNetwork(loop, random=Random(1), limits=LIMITS, tls=files, tls_look_ms=LOOK_MS)
        self.endpoint = network.endpoint("127.0.0.1:0", self._on_frame, self._on_cut)
        assert network.certificates is not None
        self.certificates: Certificates = network.certificates

    def _on_frame(self, sender: str, frame: Buffer) -> None:
        del sender
        self.frames.append(bytes(frame))

    def _on_cut(self, peer: str, error: LowmarkError) -> None:
        del peer
        self.cuts.append(error)

    def reaches(self, other: Node) -> None:
        """Send until a frame is there: what waits for a link that is cut goes with it."""
        count = len(other.frames)

        def there() -> bool:
            if not self.endpoint.queued_bytes(other.endpoint.address):
                self.endpoint.send(other.endpoint.address, [b"on"])
            return len(other.frames) > count

        self.loop.run_until(there, timeout_ms=SOON_MS)

    def takes_up(self, before: Tls) -> None:
        """Wait until what was used before is not any more."""
        self.loop.run_until(lambda: self.certificates.tls is not before, timeout_ms=SOON_MS)


@pytest.fixture
def pair(loop: RealLoop, authority: Authority, tmp_path: Path) -> tuple[Node, Node]:
    """Two nodes that talk."""
    a, b = (Node(loop, authority.folder(tmp_path / name, "127.0.0.1")) for name in "ab")
    a.reaches(b)
    return a, b


def looks(node: Node, times: int = 3) -> None:
    """Wait until a node has looked at its files."""
    seen: list[None] = []
    node.certificates.at_look(lambda: seen.append(None))
    node.loop.run_until(lambda: len(seen) >= times, timeout_ms=SOON_MS)


# -- renewed --------------------------------------------------------------------------------------


def test_new_certificates_are_used_for_new_links_and_old_links_go_on(
    pair: tuple[Node, Node], authority: Authority
) -> None:
    # given two nodes that talk
    a, b = pair
    old = b.certificates.tls
    # when one gets a new certificate
    authority.folder(Path(b.certificates.files.key).parent, "127.0.0.1", valid_days=90)
    b.takes_up(old)
    # then the link that stands goes on
    a.reaches(b)
    assert a.cuts == b.cuts == []
    # and a new one is made with the new certificate
    b.reaches(a)
    assert [end.ends_s for end in b.certificates.tls.ends] > [end.ends_s for end in old.ends]
    assert b.certificates.problems() == []


def test_files_that_do_not_change_are_not_read_again(pair: tuple[Node, Node]) -> None:
    a, _ = pair
    used, files = a.certificates.tls, a.certificates.files
    looks(a)
    assert a.certificates.tls is used
    # and one that was touched is read once
    os.utime(files.key)
    a.takes_up(used)
    used = a.certificates.tls
    looks(a)
    assert a.certificates.tls is used


@pytest.mark.parametrize("what", ["certificate", "key", "authority", "revoked"])
@pytest.mark.parametrize("content", [b"", b"rubbish"])
def test_a_bad_new_file_leaves_the_old_one_in_use_and_is_named(
    pair: tuple[Node, Node], caplog: pytest.LogCaptureFixture, what: str, content: bytes
) -> None:
    # given a node that is up
    a, b = pair
    used, path = b.certificates.tls, str(getattr(b.certificates.files, what))
    good = Path(path).read_bytes() if os.path.exists(path) else None
    # when one of its files becomes rubbish
    with caplog.at_level(logging.ERROR):
        put(path, content)
        b.loop.run_until(lambda: bool(b.certificates.problems()), timeout_ms=SOON_MS)
    # then it says which one, in its log, too, and goes on with what it has
    (problem,) = b.certificates.problems()
    assert path in problem
    assert "can't be used" in problem
    assert any(getattr(one, "path", "") == path for one in caplog.records)
    assert b.certificates.tls is used
    a.reaches(b)
    b.reaches(a)
    # and when it is put right, nothing is left of it
    if good is None:
        os.unlink(path)
    else:
        put(path, good)
    b.loop.run_until(lambda: not b.certificates.problems(), timeout_ms=SOON_MS)


def test_a_pair_of_which_only_one_half_is_new_is_not_used_and_the_whole_one_is(
    pair: tuple[Node, Node], authority: Authority
) -> None:
    a, b = pair
    there, used = b.certificates.files, b.certificates.tls
    made = authority.files("127.0.0.1", valid_days=90)
    # when the key is new and the certificate is not yet
    put(there.key, Path(made.key).read_bytes())
    b.loop.run_until(lambda: bool(b.certificates.problems()), timeout_ms=SOON_MS)
    assert "not the key of our certificate" in b.certificates.problems()[0]
    assert b.certificates.tls is used
    a.reaches(b)
    # then, when the other half comes, the node uses the new pair
    put(there.certificate, Path(made.certificate).read_bytes())
    b.takes_up(used)
    assert b.certificates.problems() == []


def test_a_start_waits_for_the_other_half_of_a_pair(
    loop: RealLoop, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, made = authority.folder(tmp_path / "n", "127.0.0.1"), authority.files("127.0.0.1")
    # given a folder in which the key was replaced, and the certificate is about to be
    put(files.key, Path(made.key).read_bytes())

    def replace_certificate(seconds: float) -> None:
        del seconds
        put(files.certificate, Path(made.certificate).read_bytes())

    # when that happens while a node that starts waits for it
    monkeypatch.setattr("lowmark.runtime.certificates._START_S", 60.0)
    monkeypatch.setattr("lowmark.runtime.certificates.time.sleep", replace_certificate)
    # then the node gets the whole pair
    used = Certificates(loop, files).tls
    assert used.certificate == Path(made.certificate).read_bytes()
    assert used.key == Path(made.key).read_bytes()


def test_a_new_certificate_of_another_host_is_not_used(
    pair: tuple[Node, Node], authority: Authority
) -> None:
    a, b = pair
    used = b.certificates.tls
    authority.folder(Path(b.certificates.files.key).parent, "n7.example", valid_days=90)
    b.loop.run_until(lambda: bool(b.certificates.problems()), timeout_ms=SOON_MS)
    assert "it is for n7.example, and others know us as 127.0.0.1" in b.certificates.problems()[0]
    assert b.certificates.tls is used
    b.reaches(a)


def test_a_new_certificate_that_can_not_be_read_is_not_used(
    pair: tuple[Node, Node], authority: Authority
) -> None:
    a, b = pair
    there, used = b.certificates.files, b.certificates.tls
    odd = authority.odd_files(dns(b"n7\xff.example"))
    put(there.key, Path(odd.key).read_bytes())
    put(there.certificate, Path(odd.certificate).read_bytes())
    b.loop.run_until(
        lambda: "it can't be read" in " ".join(b.certificates.problems()), timeout_ms=SOON_MS
    )
    assert b.certificates.tls is used
    b.reaches(a)
    # and the node goes on to look
    authority.folder(Path(there.key).parent, "127.0.0.1", valid_days=90)
    b.takes_up(used)
    assert b.certificates.problems() == []


def test_a_look_that_fails_in_any_way_is_told_and_is_not_the_last_one(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    used = b.certificates.tls
    # given a look that fails by what nothing here knows of
    with monkeypatch.context() as patched:

        def fails(files: TlsFiles) -> Tls:
            raise MemoryError(files.key)

        patched.setattr("lowmark.runtime.certificates.Tls", fails)
        os.utime(b.certificates.files.key)
        b.loop.run_until(lambda: bool(b.certificates.problems()), timeout_ms=SOON_MS)
        assert "MemoryError" in b.certificates.problems()[0]
        a.reaches(b)
    # then the next one is as if it had not been
    os.utime(b.certificates.files.key)
    b.takes_up(used)
    assert b.certificates.problems() == []


def test_a_node_ends_while_a_look_at_its_files_hangs(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a file system that gives no answer
    loop = RealLoop()
    Certificates(loop, authority.folder(tmp_path / "n", "127.0.0.1"), look_ms=LOOK_MS)
    asked, answers, answered = threading.Event(), threading.Event(), threading.Event()

    class Hangs:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def stat(self, path: str) -> os.stat_result:
            asked.set()
            loop.call_from_thread(lambda: None)  # have it look whether that is so
            answers.wait(10)
            answered.set()
            return os.stat(path)

    monkeypatch.setattr("lowmark.runtime.certificates.os", Hangs())
    loop.run_until(asked.is_set, timeout_ms=SOON_MS)
    # then the loop is closed all the same
    loop.close()
    assert not answered.is_set()
    # and an answer that comes later does no harm
    answers.set()
    assert answered.wait(10)


# -- revoked --------------------------------------------------------------------------------------


def test_a_link_with_a_revoked_certificate_is_cut_and_the_node_is_refused_by_name(
    pair: tuple[Node, Node], authority: Authority
) -> None:
    # given two nodes with links both ways
    a, b = pair
    b.reaches(a)
    # when the certificate of one is revoked, and the other one hears of it
    authority.revoke(b.certificates.files.revoked, a.certificates.files)
    b.loop.run_until(lambda: len(b.cuts) >= 2, timeout_ms=SOON_MS)
    # then both links are cut, by name
    assert all(isinstance(one, NotAPeer) for one in b.cuts[:2])
    assert all("its certificate was revoked" in str(one) for one in b.cuts[:2])
    # and no new one is made, from either side; each side says why
    heard, seen = len(b.cuts), len(b.frames)

    def refused() -> bool:
        for one, other in ((a, b), (b, a)):
            if not one.endpoint.queued_bytes(other.endpoint.address):
                one.endpoint.send(other.endpoint.address, [b"let me in"])
        said = [str(one) for one in b.cuts[heard:]]
        told = [str(one) for one in a.cuts]
        return any("certificate is refused: certificate revoked" in one for one in said) and any(
            "it refused us in the TLS handshake: certificate revoked" in one for one in told
        )

    b.loop.run_until(refused, timeout_ms=SOON_MS)
    assert b.frames[seen:] == []


def test_a_list_of_revoked_certificates_that_does_not_name_the_peer_cuts_nothing(
    pair: tuple[Node, Node], authority: Authority
) -> None:
    a, b = pair
    used = b.certificates.tls
    authority.revoke(b.certificates.files.revoked, authority.files("127.0.0.1"))
    b.takes_up(used)
    looks(b)
    assert b.cuts == []
    a.reaches(b)
    b.reaches(a)


def test_a_list_that_is_gone_is_still_used(pair: tuple[Node, Node], authority: Authority) -> None:
    # given a node that knows which certificates are revoked
    a, b = pair
    used = b.certificates.tls
    authority.revoke(b.certificates.files.revoked, a.certificates.files)
    b.takes_up(used)
    # when the list is removed
    os.unlink(b.certificates.files.revoked)
    b.loop.run_until(lambda: "gone" in " ".join(b.certificates.problems()), timeout_ms=SOON_MS)
    # then what was revoked stays so
    count = len(b.cuts)
    a.endpoint.send(b.endpoint.address, [b"let me in"])
    b.loop.run_until(lambda: len(b.cuts) > count, timeout_ms=SOON_MS)
    assert "revoked" in str(b.cuts[-1])


def test_a_list_that_has_ended_is_refused_at_the_start(
    loop: RealLoop, authority: Authority, tmp_path: Path
) -> None:
    files = authority.folder(tmp_path / "n", "127.0.0.1")
    authority.revoke(files.revoked, valid_days=0)
    with pytest.raises(TlsUnusable, match="CRL has expired"):
        Certificates(loop, files)


# -- ended ----------------------------------------------------------------------------------------


def test_a_link_ends_with_the_certificate_of_its_other_side(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a link of two nodes whose certificates end
    a, b = pair
    now = a.loop.wall_ms
    # when the time has come
    monkeypatch.setattr(RealLoop, "wall_ms", lambda _: now() + 61 * _DAY_MS)
    # then whichever node looks first cuts it, by name, and both say whose certificates they are
    a.loop.run_until(lambda: bool(a.cuts) and bool(b.cuts), timeout_ms=SOON_MS)
    cuts = [*a.cuts, *b.cuts]
    assert any(isinstance(one, NotAPeer) and "has expired" in str(one) for one in cuts)
    for node in pair:
        (problem,) = node.certificates.problems()
        assert f"the certificate in {node.certificates.files.certificate} has ended, on" in problem


def test_status_is_told_thirty_days_before(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch, authority: Authority
) -> None:
    a, _ = pair
    used = a.certificates.tls
    authority.folder(Path(a.certificates.files.key).parent, "127.0.0.1", valid_days=33)
    a.takes_up(used)
    assert a.certificates.problems() == []
    now = a.loop.wall_ms
    monkeypatch.setattr(RealLoop, "wall_ms", lambda _: now() + 4 * _DAY_MS)
    (problem,) = a.certificates.problems()
    assert a.certificates.files.certificate in problem
    assert "ends in 28 days, on 2" in problem


# -- another authority ----------------------------------------------------------------------------


def test_an_authority_is_replaced_while_two_nodes_talk(
    pair: tuple[Node, Node], authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # given a new authority, which both nodes believe beside the old one
    a, b = pair
    new = Authority(tmp_path_factory.mktemp("new"))
    both = Path(authority.path).read_bytes() + Path(new.path).read_bytes()
    for node in pair:
        used = node.certificates.tls
        put(node.certificates.files.authority, both)
        node.takes_up(used)
    assert a.cuts == b.cuts == []
    # when both have certificates of it, and the old one goes
    for node in pair:
        used = node.certificates.tls
        there, made = node.certificates.files, new.files("127.0.0.1", valid_days=90)
        put(there.key, Path(made.key).read_bytes())
        put(there.certificate, Path(made.certificate).read_bytes())
        node.loop.run_until(
            lambda node=node, used=used: (  # type: ignore[misc]
                node.certificates.tls is not used and not node.certificates.problems()
            ),
            timeout_ms=SOON_MS,
        )
    for node in pair:
        used = node.certificates.tls
        put(node.certificates.files.authority, Path(new.path).read_bytes())
        node.takes_up(used)
    # then they prove once more who they are, and go on
    a.loop.run_until(lambda: bool(a.cuts) or bool(b.cuts), timeout_ms=SOON_MS)
    assert all(isinstance(one, PeerLost) for one in (*a.cuts, *b.cuts))
    a.reaches(b)
    b.reaches(a)


# -- as bytes -------------------------------------------------------------------------------------


def test_what_is_no_list_is_refused(authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "crl.pem"
    authority.revoke(str(path), authority.files("127.0.0.1"))
    good = path.read_bytes()
    assert len(revocation_lists(good + good)) == 2
    (one,) = revocation_lists(good)
    assert len(one.revoked) == 1
    assert one.ends_s is not None
    lines = good.splitlines()
    for bad in (b"", b"rubbish", good.replace(b"X509 CRL", b"CERTIFICATE")):
        with pytest.raises(NotDer):
            revocation_lists(bad)
    for cut in range(1, len(lines) - 2):
        with pytest.raises(NotDer):
            revocation_lists(b"\n".join([*lines[:cut], lines[-1]]))


def test_bytes_of_any_kind_are_no_certificate() -> None:
    dice = Random(3)
    for _ in range(300):
        data = dice.randbytes(dice.randrange(60))
        with pytest.raises(NotDer):
            certificate_id(data)
