"""The process that renews passes beside an application of Spark."""

from __future__ import annotations

import logging
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import lowmark
from clusters.ports import free_ports
from eventually import eventually
from lowmark.backend import keeper as keeper_module
from lowmark.backend import passing
from lowmark.backend.keeper import Application, Keeper, Kept, _looked_at, ask, forget
from lowmark.backend.passing import make, secret_for
from lowmark.backend.port import Backend
from lowmark.client import Database
from lowmark.errors import Rejected
from lowmark.frames.showing import end_shown, shown_by_tasks
from lowmark.node import NodeUnreachable
from lowmark.node import pass_actions as limits
from lowmark.runtime import host_and_port
from lowmark.server import Server
from lowmark.tokens import Right, Secret
from server.world import COLUMNS, Served


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where keepers have their folders; and they look often, and renew often."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(keeper_module, "LOOK_S", 0.02)
    monkeypatch.setattr(passing, "RENEW_S", 0.01)
    monkeypatch.setattr(keeper_module, "_started", [])
    return tmp_path / f"lowmark-passes-{os.getuid()}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("kept"), tokens=True) as served:
        served.db.create_table("orders", COLUMNS, key="id")
        yield served


@pytest.fixture
def there(served: Served, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A process that plans, with a token in its environment."""
    token = served.db.tokens.create(request.node.name[:60]).token
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LOWMARK_TOKEN", token)
        with lowmark.connect(served.address) as there:
            yield there


@pytest.fixture
def java() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for Spark's."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def application(process: subprocess.Popen[bytes]) -> Application:
    return Application(process.pid, _looked_at(process.pid)[2])


def planned(there: Database, served: Served, what: str = "a plan") -> tuple[Secret, Kept]:
    """A pass that is in force."""
    table = there["orders"].descriptor.id
    secret = secret_for(there.backend, Right.READ, table, what)
    assert secret is not None
    assert make(there.backend, secret.digest(), Right.READ, table)
    return secret, Kept(secret.digest().hex(), served.address, "", table, "read")


def in_force(served: Served) -> set[bytes]:
    return {one.record.digest for one in served.backend.node.tokens_of_callers.table.passes}


@pytest.mark.slow
def test_passes_are_renewed_until_their_application_ends(
    there: Database,
    served: Served,
    folder: Path,
    java: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a pass of a plan, which is over, and its keeper
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: None)  # it runs here
    monkeypatch.setattr(passing, "TTL_MS", 1_000)
    secret, kept = planned(there, served)
    ask(application(java), kept)
    own = folder / application(java).name
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(own.stat().st_mode) == 0o700
    keeper = Keeper(own, application(java))
    running = threading.Thread(target=keeper.run)
    running.start()
    [made] = [one for one in passes(served) if one.record.digest == secret.digest()]
    # then it is in force for longer than a pass that is not renewed
    eventually(
        lambda: any(
            one.record.digest == secret.digest() and one.written_ms > made.written_ms + 1_000
            for one in passes(served)
        )
    )
    # and its folder has neither the pass nor the token
    said = "".join(one.read_text() for one in own.iterdir())
    assert secret.reveal() not in said
    assert os.environ["LOWMARK_TOKEN"] not in said
    # when the application ends
    java.kill()
    java.wait()
    running.join(30)
    # then the pass has ended, and nothing is left
    assert not running.is_alive()
    eventually(lambda: secret.digest() not in in_force(served))
    assert not own.exists()


def passes(served: Served) -> list:  # type: ignore[type-arg]
    return served.backend.node.tokens_of_callers.table.passes


def renewed_by(keeper: Keeper) -> set[str]:
    """The digests of what a keeper renews."""
    asked = keeper._asked.items()
    return {name for name, one in asked if one.renewer and one.renewer.keeps(one.digest)}


def test_what_was_asked_for_as_the_application_ended_ends_too(
    there: Database,
    served: Served,
    folder: Path,
    java: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a pass that a plan asks for at the end, so that no keeper has looked since
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: None)
    secret, kept = planned(there, served)
    here = application(java)
    ask(here, kept)
    java.kill()
    java.wait()
    # when a keeper finds the application gone
    Keeper(folder / here.name, here).run()
    # then the pass has ended
    assert secret.digest() not in in_force(served)
    assert not (folder / here.name).exists()


def test_a_cluster_that_hangs_delays_the_passes_of_no_other(
    there: Database,
    served: Served,
    folder: Path,
    java: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given passes of two clusters, and one of them takes connections and gives no answer
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: None)
    monkeypatch.setattr(limits, "_FRESH", 1 << 40)  # each renewal is written
    monkeypatch.setattr(keeper_module, "_CONNECT_S", 120.0)
    here = application(java)
    first, kept = planned(there, served)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    silent = socket.create_server(host_and_port(address))
    second, at_other = planned(there, served, "elsewhere")
    ask(here, replace(at_other, nodes=address))
    ask(here, kept)
    keeper = Keeper(folder / here.name, here)
    # when the keeper renews both
    before = {one.record.digest: one.revision for one in passes(served)}
    looking = threading.Thread(target=keeper.look)
    looking.start()
    # then one is renewed while it still waits for the other cluster
    eventually(lambda: revision(served, first) > before[first.digest()])
    assert revision(served, second) == before[second.digest()]
    assert second.digest().hex() in renewed_by(keeper)
    # and that one as soon as the cluster answers
    silent.close()
    with Server(served.db, address, tokens=True):
        eventually(lambda: revision(served, second) > before[second.digest()])
        looking.join()
        keeper.end()


def revision(served: Served, secret: Secret) -> int:
    """The one that made or renewed a pass last."""
    found = [one.revision for one in passes(served) if one.record.digest == secret.digest()]
    return max(found, default=0)


def test_a_pass_of_another_token_is_asked_for_once_and_left(
    there: Database,
    served: Served,
    folder: Path,
    java: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # given a pass, and another token in the environment when the keeper first sees it
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: None)
    monkeypatch.setattr(limits, "_FRESH", 1 << 40)
    here, before = application(java), os.environ["LOWMARK_TOKEN"]
    secret, kept = planned(there, served)
    ask(here, kept)
    monkeypatch.setenv("LOWMARK_TOKEN", served.db.tokens.create("another").token)
    keeper = Keeper(folder / here.name, here)
    # when the keeper is refused
    eventually(lambda: looks(keeper) and not renewed_by(keeper))
    for _ in range(5):
        keeper.look()
    # then it has said so, once, and why
    [said] = [one for one in caplog.records if one.name.endswith("passing")]
    assert said.getMessage() == "a pass can't be renewed"
    assert "Another token has made it" in str(said.__dict__["reason"])
    # and when a plan asks again, where the environment has its token, then the pass is renewed
    monkeypatch.setenv("LOWMARK_TOKEN", before)
    ask(here, kept)
    [made] = [one for one in passes(served) if one.record.digest == secret.digest()]
    eventually(
        lambda: (
            looks(keeper)
            and any(
                one.revision > made.revision
                for one in passes(served)
                if one.record.digest == secret.digest()
            )
        )
    )
    keeper.end()


def test_a_token_that_can_not_be_read_is_said_once(
    folder: Path,
    java: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: None)
    monkeypatch.delenv("LOWMARK_TOKEN", raising=False)
    monkeypatch.setenv("LOWMARK_TOKEN_FILE", str(folder / "nowhere"))
    here = application(java)
    ask(here, Kept("0" * 64, "127.0.0.1:1", "", 1, "read"))
    keeper = Keeper(folder / here.name, here)
    for _ in range(3):
        keeper.look()
    [said] = [one.__dict__["reason"] for one in caplog.records if one.name.endswith("keeper")]
    assert "the file of a token can't be read" in said
    keeper.end()


def test_a_write_that_has_ended_its_pass_gets_it_back_by_no_renewal(
    there: Database,
    served: Served,
    folder: Path,
    java: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a pass of a write, which its keeper renews
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: None)
    here = application(java)
    secret, kept = planned(there, served, "a write")
    ask(here, replace(kept, ends=True))
    keeper = Keeper(folder / here.name, here)
    keeper.look()
    # when the write ends it, and the keeper has not seen yet that it is over
    passing.end(there.backend, secret.digest())
    eventually(lambda: not renewed_by(keeper))
    # then it has ended
    assert secret.digest() not in in_force(served)
    keeper.end()


def test_what_goes_wrong_for_a_while_is_said_once(
    there: Database,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # given a renewer whose server is away for a while
    caplog.set_level(logging.INFO, logger="lowmark")
    monkeypatch.setattr(passing, "AGAIN_S", 0.001)
    monkeypatch.setattr(passing, "RENEW_S", 0.001)
    secret, kept = planned(there, served)
    tries = list[int]()

    def client() -> Backend:
        tries.append(1)
        if len(tries) < 20:
            raise NodeUnreachable(served.address, why="It is away.")
        return there.backend

    renewer = passing.Renewer(client)
    renewer.keep(secret.digest(), Right.READ, kept.table, again=True)
    # when it is back
    eventually(lambda: len(tries) > 25)
    renewer.close()
    renewer.join(30)
    # then both is said, once
    said = [one.getMessage() for one in caplog.records if one.name == passing.__name__]
    assert said == ["passes are not renewed now", "passes are renewed again"]


def test_what_is_forgotten_or_was_not_asked_for_in_a_day_is_not_renewed(
    there: Database,
    served: Served,
    folder: Path,
    java: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: None)
    here = application(java)
    first, kept = planned(there, served, "a write")
    ask(here, kept)
    second, also = planned(there, served, "a read")
    ask(here, also)
    keeper = Keeper(folder / here.name, here)
    keeper.look()
    assert renewed_by(keeper) == {kept.digest, also.digest}
    # when a write is over, and no plan has asked for a read since yesterday
    forget(here, kept.digest)
    file = folder / here.name / also.digest
    os.utime(file, (0, 0))
    keeper.look()
    # then neither is renewed: the write has ended its pass itself
    assert not keeper._asked
    assert not file.exists()
    eventually(lambda: second.digest() not in in_force(served))
    assert first.digest() in in_force(served)
    keeper.end()


def test_a_keeper_whose_token_is_revoked_goes_on_with_nothing(
    there: Database,
    served: Served,
    folder: Path,
    java: subprocess.Popen[bytes],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: None)
    here = application(java)
    _, kept = planned(there, served)
    ask(here, kept)
    keeper = Keeper(folder / here.name, here)
    served.db.tokens.revoke(request.node.name[:60])
    keeper.look()
    keeper.look()
    java.kill()
    java.wait()
    keeper.run()
    assert not (folder / here.name).exists()


def looks(keeper: Keeper) -> bool:
    keeper.look()
    return True


def test_a_keeper_renews_each_pass_by_the_token_that_made_it(
    there: Database,
    served: Served,
    folder: Path,
    java: subprocess.Popen[bytes],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a pass of the token of yesterday, which the keeper has renewed
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: None)
    here = application(java)
    _, kept = planned(there, served, "yesterday")
    ask(here, kept)
    keeper = Keeper(folder / here.name, here)
    eventually(lambda: looks(keeper) and any(one._backend for one in keeper._clusters.values()))
    # and the environment has another token by now, of which a plan has made a pass
    monkeypatch.setenv("LOWMARK_TOKEN", served.db.tokens.create("today").token)
    with lowmark.connect(served.address) as today:
        secret, also = planned(today, served, "today")
        ask(here, also)
        keeper.look()
        # when the token before it is revoked
        served.db.tokens.revoke(request.node.name[:60])
        passing.end(today.backend, secret.digest())
        eventually(lambda: secret.digest() not in in_force(served))
    # then the new pass is renewed
    eventually(lambda: looks(keeper) and secret.digest() in in_force(served))
    keeper.end()


def test_a_write_does_not_fail_because_its_pass_can_not_be_forgotten(
    there: Database,
    served: Served,
    folder: Path,
    java: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a folder that other users may look into: its passes are not renewed
    folder.mkdir(mode=0o700)
    folder.chmod(0o755)
    here = application(java)
    monkeypatch.setattr(Application, "of_this_process", staticmethod(lambda: here))
    shown = shown_by_tasks(there, "orders", Right.STAGE, what="a write")
    digest = Secret(shown).digest()
    assert digest in in_force(served)
    # when the write is over
    end_shown(there, shown)
    # then its pass has ended
    eventually(lambda: digest not in in_force(served))


def test_rubbish_in_the_folder_is_passed_over(folder: Path, java: subprocess.Popen[bytes]) -> None:
    here = application(java)
    own = folder / here.name
    own.mkdir(parents=True)
    for name, text in (("a" * 64, "{"), ("b" * 64, "[]"), ("c" * 64, '{"digest": 1}'), ("d", "")):
        (own / name).write_text(text)
    keeper = Keeper(own, here)
    keeper.look()
    assert not renewed_by(keeper)
    keeper.end()


def test_a_folder_of_another_user_or_open_to_others_is_not_used(
    folder: Path, java: subprocess.Popen[bytes]
) -> None:
    folder.mkdir(mode=0o700)
    folder.chmod(0o755)
    with pytest.raises(Rejected, match="not a folder of this user alone"):
        ask(application(java), Kept("a" * 64, "x:1", "", 1, "read"))
    folder.rmdir()
    folder.symlink_to(folder.parent)
    with pytest.raises(Rejected, match="not a folder of this user alone"):
        ask(application(java), Kept("a" * 64, "x:1", "", 1, "read"))


def test_another_process_of_the_same_number_is_another_application(
    java: subprocess.Popen[bytes],
) -> None:
    here = application(java)
    assert here.goes_on
    assert not Application(here.pid, "1").goes_on
    java.kill()  # it is a zombie by then
    eventually(lambda: not here.goes_on)
    assert Application.of_this_process() is None  # no Java is above these tests


@pytest.mark.slow
def test_a_plan_starts_a_keeper_if_there_is_none(
    there: Database, served: Served, folder: Path, java: subprocess.Popen[bytes]
) -> None:
    # given two plans of an application
    here = application(java)
    secrets = []
    for what in ("first", "second"):
        secret, kept = planned(there, served, what)
        ask(here, kept)
        secrets.append(secret.digest())
    own = folder / here.name

    def keeps() -> bool:
        with keeper_module._locked(own) as free:
            return not free

    eventually(keeps)
    # and it says what it can't renew, and why
    (own / ("e" * 64)).write_text("{}")
    eventually(lambda: "reason=" in (own / "log").read_text())
    assert "asks for no pass" in (own / "log").read_text()
    # then its arguments have no secret
    words = [Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdecimal()]
    said = [one.read_bytes() for one in words if one.exists()]
    mine = [one for one in said if str(own).encode() in one]
    assert mine
    assert all(b"lm1_" not in one and b"lmp1_" not in one for one in mine)
    # and when the application is killed, both passes end, and so does the keeper
    java.kill()
    java.wait()
    eventually(lambda: not own.exists())
    eventually(lambda: not {*secrets} & in_force(served))
    for one in keeper_module._started:
        assert one.wait(30) == 0
    assert sys.executable.encode() in mine[0]
