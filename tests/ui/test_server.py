"""The server: its token, its port, its command."""

import importlib.util
import os
import socket
import stat
import urllib.error
import urllib.request
from pathlib import Path

import page_server
import pytest
from result_folders import a_job

from launcher.common.problems import ProblemsFound
from launcher.ui import server
from launcher.ui.server import Address


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "recipes" / "ui-token"


def refusal(call):
    with pytest.raises(ProblemsFound) as caught:
        call()
    (problem,) = caught.value.problems
    return problem


def test_the_token_is_kept_in_a_file_that_only_the_user_reads(state):
    token = server.kept_token()
    assert len(token) >= 43
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.parent.stat().st_mode) == 0o700
    assert server.kept_token() == token
    assert [each.name for each in state.parent.iterdir()] == ["ui-token"]
    state.unlink()
    assert server.kept_token() != token


@pytest.mark.parametrize("content", ["", "short\n", "ä" * 50])
def test_a_damaged_token_is_refused(state, content):
    server.kept_token()
    state.write_text(content)
    assert refusal(server.kept_token).code == "E742"


def test_a_token_that_others_may_read_is_refused(state):
    server.kept_token()
    state.chmod(0o644)
    problem = refusal(server.kept_token)
    assert (problem.code, problem.remedy) == ("E742", f"chmod 600 {state}")


def test_a_taken_port_is_refused_and_none_given_takes_a_free_one():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert refusal(lambda: server.bound(port)).code == "E741"
    with server.bound(None) as first, server.bound(None) as second:
        assert first.getsockname()[0] == second.getsockname()[0] == "127.0.0.1"
        assert first.getsockname()[1] != second.getsockname()[1]


def test_without_its_packages_the_page_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    problem = refusal(lambda: server.serve(tmp_path, port=None, may_write=False, say=print))
    assert (problem.code, problem.remedy) == ("E740", "pip install '.[ui]'")


def test_over_ssh_there_is_a_line_for_a_tunnel(monkeypatch):
    assert Address(8765, "t").tunnel is None
    assert Address(8765, "t", "login-1").tunnel == "ssh -N -L 8765:127.0.0.1:8765 login-1"
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 5 10.0.0.2 22")
    assert server._remote_host() == socket.gethostname()


@pytest.mark.parametrize(
    ("name", "said", "remedy"),
    [
        ("nosuch", "is not a folder", "recipes ui, where jobs are launched, shows results/"),
        ("a-file", "is not a folder", "recipes ui, where jobs are launched, shows results/"),
        ("results/mine", "is the folder of one job", "recipes ui results"),
    ],
)
def test_a_folder_that_cannot_be_that_of_results_is_refused(recipes, tmp_path, name, said, remedy):
    (tmp_path / "a-file").write_text("")
    a_job(tmp_path / "results", "mine")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = recipes("ui", name, "--no-browser")
    assert (code, out) == (2, "")
    assert all(words in err for words in ("E745", said, remedy))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_the_command_prints_its_address_and_listens_on_this_machine_alone(tmp_path):
    (tmp_path / "results").mkdir()
    with page_server.served(tmp_path / "results", tmp_path / "state", "--port", "18765") as page:
        assert page.url.startswith("http://127.0.0.1:18765/jobs?token=")
        assert b"No job yet" in page.get("/jobs")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{page.origin}/jobs", timeout=60)
        assert caught.value.code == 401
        sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        listening = [each[1] for each in sockets if each[3] == "0A"]  # LISTEN
        assert [each for each in listening if each.endswith(f":{18765:04X}")] == [f"0100007F:{18765:04X}"]
    assert page.process.returncode in (0, -15, 130, 143)


@pytest.mark.slow
def test_serving_is_all_that_imports_the_packages_of_the_page(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys; from launcher.cli import main; import launcher.api.job, launcher.api.plan;"
        "print([name for name in ('starlette', 'uvicorn', 'launcher.ui.app') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=page_server.ROOT, check=True
    )
    assert done.stdout.strip() == "[]"
    assert os.path.isdir(page_server.ROOT / "templates" / "ui")
