"""Pods pass the restricted Pod Security profile, but for what the recipe asks for and the report names."""

import json

import pytest
from conftest import ELASTIC, LLAMA_K8S
from manifest_schemas import beyond_restricted, templates

from launcher.common import yaml_io

SCRIPT_K8S = (
    "recipes=training/custom/script",
    "training_cfg.entry_module=train",
    "training_cfg.run.ntasks_per_node=8",
    "cluster=k8s",
    "container=me/image:1",
)
OWN = (*LLAMA_K8S, "cluster.run_as_root=false")
ARGS = "recipes.training_config.training_args"
STRICT = (
    "allowPrivilegeEscalation: false, runAsNonRoot: true, capabilities: {drop: [ALL]},"
    " seccompProfile: {type: RuntimeDefault}"
)
CAPABILITIES = {"Capabilities: add", "Running as Non-root"}


@pytest.fixture
def pods(render):
    """Return a function from overrides to the controls that refuse a job's pods, and its notices about them."""

    def found(*overrides):
        files = render(*overrides).files
        pods = [template["spec"] for template in templates(yaml_io.load(files["manifests/job.yaml"]))]
        refused = {control for pod in pods for control in beyond_restricted(pod)}
        said = [note["message"] for note in json.loads(files["plan.json"])["notices"] if note["code"] == "N117"]
        assert all(f"- N117 {message}" in files["plan.md"] for message in said)
        return refused, said

    return found


@pytest.mark.parametrize(
    "overrides",
    [
        SCRIPT_K8S,
        (*SCRIPT_K8S, "training_cfg.run.nodes=4"),
        (*SCRIPT_K8S, "cluster.run_as_user=1000", "cluster.fs_group=1000"),
        (*SCRIPT_K8S, "cluster.use_hyperpod_pytorch_job=false", "training_cfg.run.nodes=2"),
        (*SCRIPT_K8S, "cluster.persistent_volume_claims=[{claimName: c, mountPath: /c}]"),
        (*SCRIPT_K8S, "cluster.service_account_name=trainer"),
        OWN,
        (*OWN, ELASTIC),
        (*LLAMA_K8S, ELASTIC, "cluster.run_as_user=1000"),
        (
            *LLAMA_K8S,
            "cluster.security_context={allowPrivilegeEscalation: false, runAsNonRoot: true,"
            " capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}, seccompProfile: {type: RuntimeDefault}}",
        ),
    ],
    ids=["script", "efa", "user", "kubeflow", "claim", "account", "own_image", "elastic", "own_user", "own_context"],
)
def test_pods_are_restricted(pods, overrides):
    assert pods(*overrides) == (set(), [])


@pytest.mark.parametrize(
    ("overrides", "controls", "says"),
    [
        (LLAMA_K8S, CAPABILITIES, ["root", "the published image of llm_finetuning_aws"]),
        ((*SCRIPT_K8S, "cluster.run_as_root=true"), CAPABILITIES, ["root", "cluster.run_as_root=true"]),
        ((*OWN, "cluster.hostNetwork=true"), {"Host Namespaces"}, ["cluster.hostNetwork=true"]),
        (
            (*OWN, "cluster.volumes=[{volumeName: a, hostPath: /mnt/x, mountPath: /b}]"),
            {"Volume Types"},
            ["/mnt/x of the node (cluster.volumes.0)"],
        ),
        (
            (*LLAMA_K8S, "cluster.security_context={privileged: true}"),
            {
                "Privileged Containers",
                "Privilege Escalation",
                "Running as Non-root",
                "Seccomp",
                "Capabilities: drop",
            },
            [
                "privileged",
                "allowPrivilegeEscalation",
                "root",
                "capabilities",
                "seccomp",
                "(cluster.security_context)",
            ],
        ),
        (
            (
                *LLAMA_K8S,
                "cluster.security_context={allowPrivilegeEscalation: false, runAsNonRoot: false, runAsUser: 0,"
                " capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}, procMount: Default,"
                " appArmorProfile: {type: Unconfined}, seLinuxOptions: {user: u}}",
            ),
            {"Running as Non-root", "Running as Non-root user", "AppArmor", "SELinux"},
            ["user 0", "AppArmor", "may run as root", "seLinuxOptions"],
        ),
        (
            (*LLAMA_K8S, f"cluster.security_context={{{STRICT}, seLinuxOptions: {{role: r}}}}"),
            {"SELinux"},
            ["seLinux"],
        ),
        (
            (*LLAMA_K8S, f"cluster.security_context={{{STRICT}, seLinuxOptions: {{type: spc_t}}}}"),
            {"SELinux"},
            ["seLinux"],
        ),
    ],
    ids=["published_image", "asked_for", "host_network", "host_path", "privileged", "own_context", "role", "type"],
)
def test_each_exception_is_named(pods, overrides, controls, says):
    refused, said = pods(*overrides)
    assert refused == controls
    assert len(said) == 1
    assert all(part in said[0] for part in says)


def test_a_user_of_the_recipe_s_own_is_that_of_the_container(render):
    (template,) = templates(yaml_io.load(render(*OWN, "cluster.run_as_user=1000").files["manifests/job.yaml"]))
    (container,) = template["spec"]["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_what_root_gets_names_efa_memory_only_where_there_is_efa(pods):
    (_, several), (_, one) = pods(*LLAMA_K8S, ELASTIC), pods(*LLAMA_K8S, "recipes.trainer.num_nodes=1")
    assert any("IPC_LOCK" in message for message in several)
    assert not any("IPC_LOCK" in message for message in one)
    _, two = pods(*LLAMA_K8S, "recipes.trainer.num_nodes=2", f"{ARGS}.train_batch_size=16")
    assert any("IPC_LOCK" in message for message in two)


def test_a_secret_s_value_is_in_no_file(render, monkeypatch):
    canary = "canary-4f1d9c"
    monkeypatch.setenv("HF_TOKEN", canary)
    files = render(
        *LLAMA_K8S,
        "recipes.run.hf_access_token={secretKeyRef: {name: hf, key: token}}",
        "+env_vars.WANDB_API_KEY={secretKeyRef: {name: wandb, key: k}}",
    ).files
    assert not [name for name, text in files.items() if canary in text]


@pytest.mark.parametrize(
    "override",
    [
        "recipes.run.hf_access_token=canary-4f1d9c",
        "git.token=canary-4f1d9c",
        "+env_vars.API_KEY=canary-4f1d9c",
        "+env_vars.HF_TOKEN={secretKeyRef: {name: hf, key: k, value: canary-4f1d9c}}",
        "git.repo_url_or_path=https://me:canary-4f1d9c@host/r",
    ],
    ids=["hf_token", "git_token", "variable", "reference", "url"],
)
def test_a_secret_that_is_refused_is_not_repeated(problems, override):
    found = problems(*LLAMA_K8S, override)
    assert found
    assert "canary-4f1d9c" not in "\n".join(map(str, found))
