"""A canary stands for every secret; it must be in no bundle, log, MLflow run, follower's output or error text."""

import logging

import mlflow_server
import pytest
from background import Collected, await_true
from conftest import LLAMA_K8S, frozen_context
from kube_api import CANARY

from launcher import pipeline
from launcher.cli import launch
from launcher.cli import main as cli
from launcher.common.problems import ProblemsFound

pytest_plugins = ("cluster_fixtures",)

JOB = "HyperPodPyTorchJob"
SCRIPT = (
    *("recipes=training/custom/script", "cluster=k8s", "container=me/image:1", "instance_type=ml.m5.2xlarge"),
    "training_cfg.entry_script=/app/train.py",
)


@pytest.mark.parametrize(
    ("base", "override", "code"),
    [
        (LLAMA_K8S, f"recipes.run.hf_access_token={CANARY}", "E601"),
        (LLAMA_K8S, f"git.token={CANARY}", "E601"),
        (LLAMA_K8S, f"git.repo_url_or_path=https://me:{CANARY}@host/repo", "E603"),
        (LLAMA_K8S, f"recipes.training_config.mlflow.tracking_uri=https://me:{CANARY}@host", "E603"),
        (LLAMA_K8S, f"+env_vars.HF_TOKEN={CANARY}", "E602"),
        (LLAMA_K8S, f"+env_vars.hfToken={CANARY}", "E602"),
        (LLAMA_K8S, f"+env_vars.STORE=https://me:{CANARY}@host", "E606"),
        (LLAMA_K8S, f"recipes.training_config.training_args.use_wandb={CANARY}", "E608"),
        (LLAMA_K8S, f"+recipes.pre_script=['pip list', 'export HF_TOKEN={CANARY}']", "E608"),
        (LLAMA_K8S, f"+recipes.post_script=['curl --auth-token \"{CANARY}\" host']", "E608"),
        (LLAMA_K8S, f"cluster.command=[train, --api-key, {CANARY}]", "E608"),
        (LLAMA_K8S, f"cluster.annotations={{example.com/api-token: {CANARY}}}", "E608"),
        (LLAMA_K8S, f"cluster.custom_labels={{password: {CANARY}}}", "E608"),
        (LLAMA_K8S, f"container=https://me:{CANARY}@host/image:1", "E305"),
        (LLAMA_K8S, f"cluster.custom_labels={{token: '{CANARY} !'}}", "E303 E608"),
        (LLAMA_K8S, f"cluster.command=[train, --token={CANARY}]", "E001"),  # no value in Hydra's grammar
        (SCRIPT, f"training_cfg.script_args=[{{--lr: 1}}, {{--hfToken: {CANARY}}}]", "E608"),
        (SCRIPT, f"training_cfg.script_args=[{{--store: 'https://me:{CANARY}@host'}}]", "E608"),
    ],
    ids=lambda word: word.lstrip("+").partition("=")[0] if isinstance(word, str) else "",
)
def test_a_secret_in_clear_is_refused_unseen(tmp_path, base, override, code):
    with pytest.raises(ProblemsFound) as caught:
        pipeline.prepare((*base, override), frozen_context(tmp_path))
    assert [problem.code for problem in caught.value.problems] == code.split()
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("base", "override"),
    [
        (LLAMA_K8S, "+recipes.pre_script=['export HF_TOKEN=\"$OTHER\"', 'login --token $(cat /run/hf)']"),
        (LLAMA_K8S, "+recipes.pre_script=['pip install tokenizers', 'x --max-tokens 5 --pad-token a']"),
        (LLAMA_K8S, "recipes.training_config.training_args.use_wandb='true'"),
        (SCRIPT, "training_cfg.script_args=[{--eos_token: eos}, {--use_auth_token: true}, {--token-file: /run/t}]"),
    ],
    ids=["references", "other-words", "wandb", "arguments"],
)
def test_what_only_looks_like_a_secret_is_let_through(tmp_path, base, override):
    assert pipeline.prepare((*base, override), frozen_context(tmp_path))


@pytest.fixture
def mlflow(tmp_path_factory):
    """Start an MLflow server; return its address and the folder of all it keeps."""
    folder = tmp_path_factory.mktemp("mlflow")
    with mlflow_server.running(folder) as url:
        yield url, folder


def test_no_output_of_a_followed_and_tracked_job_holds_a_secret(space, mlflow, monkeypatch, capfd, logged):
    url, store = mlflow
    logging.root.setLevel(logging.DEBUG)
    admit(space)
    space.kubeconfig(CANARY)
    space.make("Secret", "all", stringData={"token": CANARY})
    for name in ("HF_TOKEN", "WANDB_API_KEY", "GIT_TOKEN", "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.setenv(name, CANARY)
    monkeypatch.chdir(space.folder)
    reference = "{secretKeyRef: {name: all, key: token}}"
    words = [
        *("debug=true", "wait=true", f"recipes.training_config.mlflow.tracking_uri={url}"),
        *(f"{key}={reference}" for key in ("recipes.run.hf_access_token", "git.token", "+env_vars.WANDB_API_KEY")),
    ]
    place = (f"cluster.namespace={space.name}", "git.repo_url_or_path=https://host/me/repo.git")
    codes = Collected(launch.main([*LLAMA_K8S, *place, *words]) for _ in range(1))
    await_true(lambda: space.names(JOB) or codes.got)
    assert not codes.got, capfd.readouterr()
    (name,) = space.names(JOB)
    pod = space.pod(space.get(JOB, name))
    space.run_container(pod)
    space.conditions(name, "Created", "Running")
    space.cluster.kubelet.write(pod, "hello from the pod")
    for command in (["status", name, "--json"], ["logs", name], ["events", name], ["jobs", "--json"]):
        assert cli.run(command) == 0
    for status in (401, 403, 422):
        space.cluster.proxy.fail(path="/pods", status=status, times=10**6)
        assert cli.run(["status", name]) == 2
        space.cluster.proxy.faults.clear()
    space.end_container(pod, exit_code=1)
    space.conditions(name, "Failed")
    assert codes.result(60) == [3]
    shown = "".join([*capfd.readouterr(), logged.getvalue()])
    kept = b"".join(path.read_bytes() for folder in (space.folder / "results", store) for path in files(folder))
    assert "hello from the pod" in shown and name.encode() in kept and b"secretKeyRef" in kept
    assert CANARY not in shown and CANARY.encode() not in kept


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def admit(space):
    """Let the one whose token is the canary do everything in the test's namespace."""
    api = "rbac.authorization.k8s.io"
    body = {
        "apiVersion": f"{api}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "canary"},
        "subjects": [{"kind": "User", "name": "canary", "apiGroup": api}],
        "roleRef": {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": api},
    }
    space.admin.apply(f"/apis/{api}/v1/namespaces/{space.name}/rolebindings/canary", body, "test")
