"""Nodes that prove to each other who they are: joining, refusing, renewing, revoking."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eventually import eventually
from lowmark.authority import Authority
from lowmark.cli.app import app
from lowmark.errors import ClusterRefused, NotLoopback, ServerNotTrusted, TlsUnusable
from lowmark.node import Node, NodeOptions
from node.running import QUICK, Running


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority.found(str(tmp_path / "tls"))
    for name in ("n1", "n2"):
        made.issue(name, ["127.0.0.1"])
    return made


def folder(authority: Authority, name: str) -> str:
    return f"{authority.folder}/{name}"


def problems(node: Running) -> dict[str, str]:
    return {one.name: one.problem for one in node.client().status().nodes}


@pytest.mark.release
def test_nodes_of_one_authority_are_a_cluster_and_a_renewal_needs_no_restart(
    tmp_path: Path, authority: Authority
) -> None:
    # given two nodes that speak TLS, one with a certificate that ends soon
    authority.issue("n2", days=20)
    with (
        Running(tmp_path / "1", name="n1", tls=folder(authority, "n1")) as first,
        Running(
            tmp_path / "2", name="n2", join=first.endpoint, tls=folder(authority, "n2")
        ) as second,
    ):
        # then status says so of that node
        eventually(lambda: len(problems(first)) == 2)
        eventually(lambda: "cert.pem ends in 19 days, on" in problems(first)["n2"])
        assert problems(first)["n1"] == ""
        # and when it is renewed, that is over, and they still talk
        authority.issue("n2", days=90)
        eventually(lambda: not problems(first)["n2"])
        assert second.client().put(b"k", b"v").revision > 0
        entry = first.client().get(b"k").entry
        assert entry is not None
        assert entry.value == b"v"


@pytest.mark.slow
def test_a_revoked_node_is_cut_off_and_both_sides_say_why(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Running(tmp_path / "1", name="n1", tls=folder(authority, "n1")) as first,
        Running(
            tmp_path / "2", name="n2", join=first.endpoint, tls=folder(authority, "n2")
        ) as second,
    ):
        eventually(lambda: len(problems(first)) == 2)
        # when its certificate is revoked, and the other node has the list
        with caplog.at_level(logging.WARNING):
            authority.revoke("n2")
            eventually(lambda: "certificate revoked" in problems(first)["n1"])
            eventually(lambda: "certificate revoked" in problems(second)["n2"])
        # then each says so of the other, in its log, too
        assert second.node.info.address in problems(first)["n1"]
        said = [one for one in caplog.records if "a peer was refused" in one.message]
        assert {"certificate is refused", "it refused us"} <= {
            part
            for one in said
            for part in ("certificate is refused", "it refused us")
            if part in getattr(one, "reason", "")
        }
        # and a new certificate is let in again
        authority.issue("n2", days=90)
        eventually(lambda: problems(first)["n1"] == "")


@pytest.mark.slow
def test_a_node_of_another_authority_does_not_join_and_says_why(
    tmp_path: Path, authority: Authority
) -> None:
    other = Authority.found(str(tmp_path / "other"))
    other.issue("n2", ["127.0.0.1"])
    with Running(tmp_path / "1", name="n1", tls=folder(authority, "n1")) as first:
        with (
            pytest.raises(ServerNotTrusted, match="has signed its certificate"),
            Running(tmp_path / "2", join=first.endpoint, tls=folder(other, "n2")),
        ):
            pass
        # when it believes the cluster's, the cluster does not believe it, and it says that
        both = Path(folder(other, "n2"), "ca.pem")
        both.write_bytes(both.read_bytes() + Path(folder(authority, "n1"), "ca.pem").read_bytes())
        with (
            pytest.raises(ClusterRefused, match="it refused us in the TLS handshake") as refused,
            Running(tmp_path / "3", join=first.endpoint, tls=folder(other, "n2")),
        ):
            pass
        assert "lowmark tls show" in refused.value.hint


def test_a_node_without_tls_does_not_join_one_with_it_nor_the_other_way_round(
    tmp_path: Path, authority: Authority
) -> None:
    with Running(tmp_path / "1", tls=folder(authority, "n1")) as first:
        address = first.endpoint.removeprefix("lowmark+tls://")
        options = NodeOptions(data=str(tmp_path / "2"), listen="127.0.0.1:0", join=address)
        with pytest.raises(ClusterRefused, match="by TLS alone") as refused:
            Node(options, QUICK)
        assert "--tls" in refused.value.hint
    with Running(tmp_path / "3") as first:
        options = NodeOptions(
            data=str(tmp_path / "4"),
            listen="127.0.0.1:0",
            join=first.endpoint,
            tls=folder(authority, "n2"),
        )
        with pytest.raises(ClusterRefused, match="speaks no TLS"):
            Node(options, QUICK)


def test_a_folder_that_can_not_be_used_ends_the_start(tmp_path: Path, authority: Authority) -> None:
    def start(tls: str) -> None:
        Node(NodeOptions(data=str(tmp_path / "1"), listen="127.0.0.1:0", tls=tls), QUICK)

    with pytest.raises(TlsUnusable, match="No such file"):
        start(str(tmp_path / "nowhere"))
    authority.issue("n3", ["n3.example"])
    with pytest.raises(TlsUnusable, match=r"it is for n3\.example, and others know us as"):
        start(folder(authority, "n3"))
    # and nothing was made, such as a name that the next start would have to take
    assert not (tmp_path / "1").exists()


def test_with_tls_an_address_that_others_reach_lacks_tokens_alone(authority: Authority) -> None:
    def refused(tls: str = "", tls_mode: str = "require") -> str:
        options = NodeOptions(
            data="x", listen="0.0.0.0:6570", advertise="10.0.0.7:6570", tls=tls, tls_mode=tls_mode
        )
        with pytest.raises(NotLoopback) as error:
            options.check()
        return str(error.value.message)

    assert "no TLS and no tokens" in refused()
    assert refused(tls=folder(authority, "n1")).endswith("no tokens")
    # while nodes without TLS are taken, it is as if there was none
    assert "no TLS" in refused(tls=folder(authority, "n1"), tls_mode="allow")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tls-mode", "allow"), "--tls-mode allow needs certificates"),
        (("--tls", "x", "--tls-mode", "maybe"), "--tls-mode can't be 'maybe'"),
        (("--tls", "x", "--tls-mode", "allow", "--dev", "3"), "--dev starts nodes of its own"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "d"), *words])
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (tmp_path / "d").exists()
