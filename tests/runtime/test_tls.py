"""Who is let in with TLS, who is not, and what is said about it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from lowmark.errors import LowmarkError
from lowmark.runtime import Buffer, NetworkLimits, RealLoop, RealNetwork, real_runtime
from lowmark.runtime.frames import frame_header, hello
from lowmark.runtime.network import NotAPeer, PeerLost
from lowmark.runtime.tls import TlsFiles, TlsUnusable
from runtime.certificates import Authority, dns, ip

SOON_MS = 20_000
LIMITS = NetworkLimits(rest_ms_min=1, rest_ms_max=8)


class Node:
    def __init__(
        self,
        loop: RealLoop,
        tls: TlsFiles | None,
        *,
        host: str = "127.0.0.1",
        listen: str = "127.0.0.1:0",
        optional: bool = False,
    ) -> None:
        self.loop = loop
        self.frames: list[tuple[str, bytes]] = []
        self.cuts: list[tuple[str, LowmarkError]] = []
        network = RealNetwork(loop, random=Random(1), limits=LIMITS, tls=tls, tls_optional=optional)
        self.endpoint = network.endpoint(
            f"{host}:{listen.rpartition(':')[2]}", self._on_frame, self._on_cut, listen=listen
        )
        self.address = self.endpoint.address

    def _on_frame(self, sender: str, frame: Buffer) -> None:
        self.frames.append((sender, bytes(frame)))

    def _on_cut(self, peer: str, error: LowmarkError) -> None:
        self.cuts.append((peer, error))

    def reaches(self, other: Node) -> None:
        """Send until a frame is there."""
        count = len(other.frames)

        def there() -> bool:
            if not self.endpoint.queued_bytes(other.address):
                self.endpoint.send(other.address, [b"on"])
            return len(other.frames) > count

        self.loop.run_until(there, timeout_ms=SOON_MS)
        assert other.frames[-1] == (self.address, b"on")

    def secure_links(self) -> list[bool]:
        """Which of the links that others have made to it have TLS."""
        return [wire.is_secure for wire in self.endpoint._incoming.values()]

    def waits_for(self, *, frames: int = 0, cuts: int = 0) -> None:
        self.loop.run_until(
            lambda: len(self.frames) >= frames and len(self.cuts) >= cuts, timeout_ms=SOON_MS
        )


@pytest.fixture(scope="session")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"))


@pytest.fixture
def aside() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Runs something that waits for the network in a thread, while the loop goes on."""
    threads: list[threading.Thread] = []

    def start(work: Callable[[], None]) -> None:
        def run() -> None:
            with contextlib.suppress(OSError):  # ssl's errors too: most of them are sent away
                work()

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(10)


Aside = Callable[[Callable[[], None]], None]


@pytest.fixture
def loop(aside: Aside) -> Iterator[RealLoop]:
    del aside  # whatever waits for us there ends when the loop is closed, and not before
    loop = RealLoop()
    yield loop
    loop.close()


def client(files: TlsFiles | None, *, newest: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    """Somebody who believes everybody."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if newest is not None:
        context.maximum_version = newest
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    return context


def visit(node: Node, context: ssl.SSLContext, *, name: str) -> Callable[[], None]:
    """Dial a node, claim a name, and send a frame."""
    host, _, port = node.endpoint.listens_at.rpartition(":")

    def work() -> None:
        with (
            socket.create_connection((host, int(port)), timeout=10) as bare,
            context.wrap_socket(bare) as secure,
        ):
            secure.sendall(hello(name) + frame_header([b"let me in"]) + b"let me in")
            while secure.recv(1_000):
                pass

    return work


def check_pair_goes_on(a: Node, b: Node) -> None:
    count = len(b.frames)
    a.endpoint.send(b.address, [b"on"])
    b.waits_for(frames=count + 1)
    assert b.frames[-1] == (a.address, b"on")
    assert a.cuts == []


# -- those who are let in -------------------------------------------------------------------------


def test_two_nodes_of_one_authority_talk(loop: RealLoop, authority: Authority) -> None:
    a, b = (Node(loop, authority.files("127.0.0.1")) for _ in range(2))
    a.endpoint.send(b.address, [b"there"])
    b.endpoint.send(a.address, [b"back"])
    b.waits_for(frames=1)
    a.waits_for(frames=1)
    assert (a.frames, b.frames) == ([(b.address, b"back")], [(a.address, b"there")])


def test_a_node_known_by_name_shows_a_certificate_for_that_name(
    loop: RealLoop, authority: Authority
) -> None:
    a = Node(loop, authority.files("LocalHost"), host="localhost")
    b = Node(loop, authority.files("other.example", "127.0.0.1"))
    a.endpoint.send(b.address, [b"x"])
    b.endpoint.send(a.address, [b"y"])
    b.waits_for(frames=1)
    a.waits_for(frames=1)
    assert b.frames == [(a.address, b"x")]


def test_frames_of_any_size_pass_through_tls(loop: RealLoop, authority: Authority) -> None:
    a, b = (Node(loop, authority.files("127.0.0.1")) for _ in range(2))
    dice = Random(7)
    sent = [dice.randbytes(dice.choice([0, 9, 16_384, 70_000, 3_000_000])) for _ in range(40)]
    for data in sent:
        assert a.endpoint.send(b.address, [data[:5], data[5:]])
    b.waits_for(frames=40)
    assert [frame for _, frame in b.frames] == sent
    loop.run_until(lambda: a.endpoint.queued_bytes(b.address) == 0, timeout_ms=SOON_MS)


def test_a_stranger_with_a_good_certificate_is_a_peer(
    loop: RealLoop, authority: Authority, aside: Aside
) -> None:
    # given somebody who speaks the protocol with another program
    node = Node(loop, authority.files("127.0.0.1"))
    aside(visit(node, client(authority.files("n7.example")), name="n7.example:7400"))
    # then it is heard under its name
    node.waits_for(frames=1)
    assert node.frames == [("n7.example:7400", b"let me in")]
    node.endpoint.close()


# -- those who are not ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        ("no certificate", "it has no certificate"),
        ("another authority", "its certificate is refused: "),
        ("expired", "its certificate is refused: certificate has expired"),
        ("old tls", "it does not speak TLS 1.3"),
        ("another's name", "it calls itself 127.0.0.1:1; its certificate is for n7.example, not"),
        ("no name", "it calls itself nonsense; that is no address"),
        ("wildcard", "its certificate is for *.example, not for n7.example"),
        ("no text", "its certificate can't be read: 'utf-8' codec can't decode"),
        ("no number", "its certificate is for <invalid>, not for 127.0.0.1"),
    ],
)
def test_whoever_cannot_prove_who_it_is_is_refused_and_harms_nobody(
    loop: RealLoop,
    authority: Authority,
    other_authority: Authority,
    aside: Aside,
    who: str,
    reason: str,
) -> None:
    # given two nodes that talk
    a, b = (Node(loop, authority.files("127.0.0.1")) for _ in range(2))
    check_pair_goes_on(a, b)
    # when somebody dials one of them that has no right to
    name = "n7.example:7400"
    match who:
        case "no certificate":
            context = client(None)
        case "another authority":
            context = client(other_authority.files("n7.example"))
        case "expired":
            context = client(authority.files("n7.example", valid_days=-1))
        case "old tls":
            context = client(authority.files("n7.example"), newest=ssl.TLSVersion.TLSv1_2)
        case "another's name":
            context, name = client(authority.files("n7.example")), "127.0.0.1:1"
        case "no name":
            context, name = client(authority.files("n7.example")), "nonsense"
        case "no text":
            context = client(authority.odd_files(dns(b"n7\xff.example")))
        case "no number":
            context, name = client(authority.odd_files(ip(bytes(8)))), "127.0.0.1:1"
        case _:
            context = client(authority.files("*.example"))
    aside(visit(b, context, name=name))
    # then it is refused under the name of where it came from
    b.waits_for(cuts=1)
    ((peer, error),) = b.cuts
    assert peer.startswith("127.0.0.1:")
    assert isinstance(error, NotAPeer)
    assert reason in str(error)
    # and the others go on, on the connection they have
    check_pair_goes_on(a, b)
    assert {sender for sender, _ in b.frames} == {a.address}


def test_a_name_that_says_nothing_does_not_spoil_the_others(
    loop: RealLoop, authority: Authority
) -> None:
    files = authority.odd_files(ip(bytes(8)), ip(bytes([127, 0, 0, 1])))
    a, b = Node(loop, files), Node(loop, authority.files("127.0.0.1"))
    a.reaches(b)
    b.reaches(a)


def test_a_certificate_of_another_host_can_not_push_out_the_one_who_is_there(
    loop: RealLoop, authority: Authority, aside: Aside
) -> None:
    a, b = (Node(loop, authority.files("127.0.0.1")) for _ in range(2))
    check_pair_goes_on(a, b)
    # when somebody claims the very name of a peer that is connected
    aside(visit(b, client(authority.files("n7.example")), name=a.address))
    b.waits_for(cuts=1)
    # then the peer keeps its connection
    assert isinstance(b.cuts[0][1], NotAPeer)
    check_pair_goes_on(a, b)
    assert all(frame == b"on" for _, frame in b.frames)


@pytest.mark.parametrize(
    "rubbish", [hello("127.0.0.1:1") + frame_header([b"x"]) + b"x", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_plain_text_is_refused(loop: RealLoop, authority: Authority, rubbish: bytes) -> None:
    a, b = (Node(loop, authority.files("127.0.0.1")) for _ in range(2))
    host, _, port = b.address.rpartition(":")
    with socket.create_connection((host, int(port))) as bare:
        bare.sendall(rubbish)
        b.waits_for(cuts=1)
        assert isinstance(b.cuts[0][1], NotAPeer)
        assert "it does not speak TLS" in str(b.cuts[0][1])
        assert b.frames == []
    check_pair_goes_on(a, b)


def test_one_who_says_nothing_is_cut_off_in_time(loop: RealLoop, authority: Authority) -> None:
    heard: list[LowmarkError] = []
    network = RealNetwork(
        loop,
        random=Random(1),
        limits=NetworkLimits(hello_ms_max=20),
        tls=authority.files("127.0.0.1"),
    )
    endpoint = network.endpoint(
        "127.0.0.1:0", lambda *_: None, lambda _, error: heard.append(error)
    )
    host, _, port = endpoint.address.rpartition(":")
    with socket.create_connection((host, int(port))):
        loop.run_until(lambda: bool(heard), timeout_ms=SOON_MS)
    assert "within 20 ms" in str(heard[0])


def test_a_plain_node_and_one_with_tls_refuse_each_other(
    loop: RealLoop, authority: Authority
) -> None:
    plain, secure = Node(loop, None), Node(loop, authority.files("127.0.0.1"))
    plain.endpoint.send(secure.address, [b"secret"])
    secure.waits_for(cuts=1)
    plain.waits_for(cuts=1)
    assert "it does not speak TLS" in str(secure.cuts[0][1])
    assert isinstance(plain.cuts[0][1], PeerLost)
    secure.endpoint.send(plain.address, [b"secret"])
    secure.waits_for(cuts=2)
    plain.waits_for(cuts=2)
    assert isinstance(secure.cuts[1][1], PeerLost)
    assert "in the TLS handshake" in str(secure.cuts[1][1])
    assert "TLS, it seems" in str(plain.cuts[1][1])
    assert plain.frames == secure.frames == []


# -- while a cluster goes over to TLS -------------------------------------------------------------


def test_a_node_that_takes_both_talks_with_one_without_tls_and_by_tls_with_all_others(
    loop: RealLoop, authority: Authority
) -> None:
    # given a node without TLS, two that take both, and one that takes nothing else
    plain = Node(loop, None)
    both, other = (Node(loop, authority.files("127.0.0.1"), optional=True) for _ in range(2))
    secure = Node(loop, authority.files("127.0.0.1"))
    # then it talks with all, each way
    for one in (plain, other, secure):
        both.reaches(one)
        one.reaches(both)
    # and without TLS only with the one that has none
    assert sorted(both.secure_links()) == [False, True, True]
    assert plain.secure_links() == [False]
    assert other.secure_links() == [True]
    assert secure.secure_links() == [True]
    # and large frames arrive whole, however a link began
    data = Random(5).randbytes(3_000_000)
    plain.endpoint.send(both.address, [data])
    loop.run_until(lambda: (plain.address, data) in both.frames, timeout_ms=SOON_MS)


def test_a_node_that_comes_back_with_tls_is_dialled_with_it(
    loop: RealLoop, authority: Authority
) -> None:
    # given a node that takes both, and one without TLS
    both, plain = Node(loop, authority.files("127.0.0.1"), optional=True), Node(loop, None)
    both.reaches(plain)
    plain.reaches(both)
    # when that one is started again, with TLS alone
    plain.endpoint.close()
    secure = Node(loop, authority.files("127.0.0.1"), listen=plain.address)
    # then both links have it
    both.reaches(secure)
    secure.reaches(both)
    assert both.secure_links() == secure.secure_links() == [True]


def test_taking_both_lets_nobody_in_with_a_bad_certificate(
    loop: RealLoop, authority: Authority, other_authority: Authority
) -> None:
    both = Node(loop, authority.files("127.0.0.1"), optional=True)
    stranger = Node(loop, other_authority.files("127.0.0.1"), optional=True)
    for one, another in ((both, stranger), (stranger, both)):
        for _ in range(3):
            count = len(one.cuts)
            one.endpoint.send(another.address, [b"let me in"])
            one.waits_for(cuts=count + 1)
    assert both.frames == stranger.frames == []
    assert all(
        "certificate is refused" in str(why) or "refused us" in str(why) for _, why in both.cuts
    )


# -- those who answer -----------------------------------------------------------------------------


def answer(listener: socket.socket, files: TlsFiles, seen: list[bytes]) -> Callable[[], None]:
    """Take one connection with a certificate, believe everybody, and read what comes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)

    def work() -> None:
        bare, _ = listener.accept()
        bare.settimeout(10)
        with bare, context.wrap_socket(bare, server_side=True) as secure:
            while data := secure.recv(1_000):
                seen.append(data)

    return work


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        ("another authority", "its certificate is refused: "),
        ("expired", "its certificate is refused: certificate has expired"),
        ("another host", "its certificate is for n7.example, not for 127.0.0.1"),
    ],
)
def test_whoever_answers_must_prove_that_it_is_the_one_who_was_meant(
    loop: RealLoop,
    authority: Authority,
    other_authority: Authority,
    aside: Aside,
    who: str,
    reason: str,
) -> None:
    match who:
        case "another authority":
            files = other_authority.files("127.0.0.1")
        case "expired":
            files = authority.files("127.0.0.1", valid_days=-1)
        case _:
            files = authority.files("n7.example")
    node = Node(loop, authority.files("127.0.0.1"))
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        aside(answer(listener, files, seen))
        node.endpoint.send(address, [b"secret"])
        node.waits_for(cuts=1)
        node.endpoint.close()
    ((peer, error),) = node.cuts
    assert peer == address
    assert isinstance(error, NotAPeer)
    assert reason in str(error)
    # and it has not even heard our name
    assert seen == []


def test_whoever_is_refused_is_told_why(
    loop: RealLoop, authority: Authority, other_authority: Authority
) -> None:
    # given two clusters of different authorities, one of which believes both
    both = Path(other_authority.path).with_name("both.pem")
    both.write_text(Path(authority.path).read_text() + Path(other_authority.path).read_text())
    a = Node(loop, replace(other_authority.files("127.0.0.1"), authority=str(both)))
    b = Node(loop, authority.files("127.0.0.1"))
    # when the one who believes dials the one who does not
    a.endpoint.send(b.address, [b"x"])
    b.waits_for(cuts=1)
    a.waits_for(cuts=1)
    # then both say so, each from its side
    assert "its certificate is refused" in str(b.cuts[0][1])
    assert isinstance(a.cuts[0][1], NotAPeer)
    assert "it refused us in the TLS handshake: unknown ca" in str(a.cuts[0][1])


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["certificate", "key", "authority"])
def test_a_file_that_is_missing_or_rubbish_is_named(
    tmp_path: Path, authority: Authority, what: str
) -> None:
    good = authority.files("127.0.0.1")
    rubbish = tmp_path / "rubbish.pem"
    for content, reason in [
        (None, "No such file"),
        (b"", "holds no"),
        (b"\x00rubbish", "holds no"),
    ]:
        if content is not None:
            rubbish.write_bytes(content)
        bad = TlsFiles(
            certificate=str(rubbish) if what == "certificate" else good.certificate,
            key=str(rubbish) if what == "key" else good.key,
            authority=str(rubbish) if what == "authority" else good.authority,
        )
        with pytest.raises(TlsUnusable, match=reason) as refused:
            real_runtime(str(tmp_path / "data"), tls=bad)
        assert refused.value.path == str(rubbish)
        assert f"the {what} in {rubbish}" in str(refused.value)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path, authority: Authority) -> None:
    one, other = authority.files("127.0.0.1"), authority.files("127.0.0.1")
    with pytest.raises(TlsUnusable, match="not the key of our certificate") as refused:
        real_runtime(str(tmp_path), tls=replace(one, key=other.key))
    assert refused.value.path == other.key


def test_an_encrypted_key_is_refused_and_nobody_is_asked(
    tmp_path: Path, authority: Authority
) -> None:
    files = authority.files("127.0.0.1")
    key = load_pem_private_key(Path(files.key).read_bytes(), password=None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password"))
    )
    with pytest.raises(TlsUnusable, match="it is encrypted"):
        real_runtime(str(tmp_path), tls=replace(files, key=str(encrypted)))


def test_a_certificate_that_every_peer_would_refuse_is_refused_at_the_start(
    tmp_path: Path, authority: Authority, other_authority: Authority
) -> None:
    expired = authority.files("127.0.0.1", valid_days=-1)
    with pytest.raises(TlsUnusable, match="certificate has expired") as refused:
        real_runtime(str(tmp_path), tls=expired)
    assert refused.value.path == expired.certificate
    foreign = replace(authority.files("127.0.0.1"), authority=other_authority.path)
    with pytest.raises(TlsUnusable, match="every peer would refuse it"):
        real_runtime(str(tmp_path), tls=foreign)


def test_a_certificate_that_can_not_be_read_is_refused_at_the_start(
    tmp_path: Path, authority: Authority
) -> None:
    odd = authority.odd_files(dns(b"n7\xff.example"))
    with pytest.raises(TlsUnusable, match="it can't be read: 'utf-8' codec") as refused:
        real_runtime(str(tmp_path), tls=odd)
    assert refused.value.path == odd.certificate


def test_a_certificate_must_be_for_the_name_that_others_know_us_by(
    loop: RealLoop, authority: Authority
) -> None:
    with pytest.raises(TlsUnusable, match="and others know us as"):
        Node(loop, authority.files("n7.example"))


def test_a_runtime_with_tls_speaks_it(tmp_path: Path, authority: Authority) -> None:
    runtime = real_runtime(str(tmp_path), tls=authority.files("127.0.0.1"), limits=LIMITS)
    frames: list[Buffer] = []
    endpoint = runtime.network.endpoint(
        "127.0.0.1:0", lambda _, frame: frames.append(frame), lambda *_: None
    )
    endpoint.send(endpoint.address, [b"x"])
    runtime.loop.run_until(lambda: frames == [b"x"])
    runtime.loop.close()
