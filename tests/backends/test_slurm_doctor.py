"""The examination of a real Slurm, from its login node and by ssh: every subject has its line."""

import sys

import pytest
import slurm_cluster
import ssh_server
from test_slurm_accounting import MORE, OF_QOS
from test_slurm_commands import commands
from test_slurm_jobs import TINY

from launcher.api.plan import compile as compiled
from launcher.backends.slurm.place import RECENT
from launcher.backends.slurm.ssh import ENV_CONFIG

__all__ = ["commands"]
SETTINGS = [word for word in TINY if not word.startswith("recipes=")]
ACCOUNTS = (
    *("add account team", "add user root account=team"),
    *(f"add qos {name} {OF_QOS[name]}" for name in ("gold", "silver")),
    "modify user where name=root set qos+=gold,silver",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    with slurm_cluster.used(folder, 2, has_accounting=True, more=MORE, of_nodes="Gres=disk:2") as cluster:
        for words in ACCOUNTS:
            cluster.command("sacctmgr", "--immediate", *words.split())
        yield cluster


@pytest.fixture
def examined(tmp_path, monkeypatch):
    """Return a function that examines the tiny recipe in a new folder; it returns lines by subject."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def examine(*words):
        RECENT._answers.clear()
        lines = {}
        for each in compiled("tiny_lm_cpu", [*SETTINGS, *words]).doctor():
            lines.setdefault(each.subject, []).append(each)
        assert list(here.iterdir()) == []
        return lines

    return examine


def of(lines, subject):
    return [(each.state.value, each.code) for each in lines[subject]]


@pytest.mark.whole_job
def test_a_job_that_would_run_and_each_fault_have_their_lines(cluster, examined):
    lines = examined()
    assert {each.state.value for every in lines.values() for each in every} == {"ok"}, lines
    for subject in ("cluster", "limits", "nodes", "submission", "folder", "disk"):
        assert of(lines, subject) == [("ok", None)]
    assert "Slurm" in lines["cluster"][0].message
    assert of(examined("cluster.partition=closed"), "partition") == [("failure", "E446")]
    assert ("failure", "E446") in of(examined("cluster.partition=teams", "cluster.account=strangers"), "account")
    assert ("failure", "E446") in of(examined("cluster.qos=gold", "cluster.time=90"), "time limit")
    large = examined("recipes.trainer.num_nodes=4")
    assert of(large, "size") == [("failure", "E446")] and of(large, "nodes") == [("warning", None)]
    many = examined("container=/fsx/image.sqsh", "cluster.dependency='afterok:99999'", "cluster.partition=emptied")
    assert of(many, "container") == [("failure", "E435")] and "pyxis" in many["container"][0].message
    assert of(many, "dependency") == [("failure", "E446")] and of(many, "partition") == [("failure", "E446")]


@pytest.mark.whole_job
def test_a_login_node_is_asked_by_ssh(cluster, examined, tmp_path_factory, monkeypatch):
    if missing := ssh_server.absent():
        pytest.skip(f"no {', '.join(missing)}")
    with ssh_server.running(tmp_path_factory.mktemp("ssh"), cluster.conf) as server:
        monkeypatch.delenv("SLURM_CONF")
        monkeypatch.setenv(ENV_CONFIG, str(server.config))
        lines = examined(
            *(f"cluster.ssh={ssh_server.NAME}", "cluster.ssh_folder=jobs", f"cluster.python={sys.executable}"),
            "cluster.code=folder",
        )
    for subject in ("cluster", "limits", "submission", "folder", "clock", "versions"):
        assert of(lines, subject) == [("ok", None)], lines[subject]
    assert f"by ssh at {ssh_server.NAME}" in lines["cluster"][0].message and "disk" not in lines


def test_a_controller_that_does_not_answer_is_unknown(commands, examined):
    commands("scontrol", "Unable to contact slurm controller (connect failure)")
    lines = examined()
    assert of(lines, "cluster") == [("unknown", "E447")] and "limits" not in lines


def test_commands_that_are_not_installed_are_a_failure(commands, examined, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))
    assert of(examined(), "cluster") == [("failure", "E447")]
