"""An image of one's own: its build context read by linters, its entrypoint run as process 1 with the real agent."""

import ast
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import psutil
import pytest
from conftest import ELASTIC, LLAMA_K8S, ROOT
from contained import Contained
from ports import free_ports

from launcher.api.files import write_new
from launcher.bundle import container
from launcher.cli import main as cli
from launcher.common import yaml_io
from launcher.common.problems import ProblemsFound
from launcher.model.interface import is_published_image
from launcher.operator.agent_client import AgentClient, AgentUnreachable
from launcher.operator.types import AgentState

BASE = "me/torch:2.9.0"
OWN = ("cluster.runtime=launcher", f"container={BASE}")
PROGRAM = """
import os, pathlib, sys, time
import launcher
text = f"{launcher.__file__} {os.environ['WORLD_SIZE']} {sys.argv[1:]}"
pathlib.Path(f"rank-{os.environ['RANK']}").write_text(text)
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a folder as an image's /opt/recipes would be."""
    folder = tmp_path_factory.mktemp("image")
    write_new(folder, container.files(BASE))
    return folder


class Pod(Contained):
    """The entrypoint as a container would start it. Of the launcher it finds only what the image has."""

    def __init__(self, built, work, program, start=(), **variables):
        self.port, self.master = free_ports(2)
        self.short = tempfile.mkdtemp()  # the agent's socket is named by its pid, which is 1 in every pod
        path = os.pathsep.join([str(built / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {
            "PATH": path,
            "PYTHONPATH": str(built / "lib"),
            "HOME": str(work),
            "TMPDIR": self.short,
            "AGENT_HOST": "127.0.0.1",
            "AGENT_PORT": str(self.port),
            **variables,
        }
        # The folder that the agent writes to is the image's, which this machine does not have.
        words = [built / "bin/entrypoint", f"--rdzv-conf=resource_config_dir={work}", *program]
        super().__init__(work, [*start, *words], environment)
        self.agent = AgentClient("127.0.0.1", self.port)

    def __exit__(self, *error):
        super().__exit__(*error)
        self.agent.close()
        shutil.rmtree(self.short)

    def state(self):
        try:
            return self.agent.status().state
        except AgentUnreachable:
            return None

    def start(self):
        self.until(lambda: self.state() is AgentState.READY)
        self.agent.start(rank=0, hosts=["127.0.0.1"], attempt=0, master=("127.0.0.1", self.master))


@pytest.fixture
def work(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.slow
def test_the_entrypoint_runs_commands_workers_and_commands_from_what_is_in_the_image(built, work):
    variables = {
        "NPROC_PER_NODE": "2",
        "PRE_SCRIPT_COMMANDS": "echo 'it is' > pre\necho \"$0 $#\" >> pre",
        "POST_SCRIPT_COMMANDS": "cat rank-* > post",
    }
    with Pod(built, work, ["train.py", "0", "--name=two words"], **variables) as pod:
        pod.start()
        pod.until(lambda: pod.state() is AgentState.COMPLETED)
        pod.agent.shutdown()
        assert pod.wait() == 0
    ranks = [(work / f"rank-{rank}").read_text() for rank in range(2)]
    assert ranks == [f"{built / 'lib/launcher/__init__.py'} 2 ['0', '--name=two words']"] * 2
    assert (work / "pre").read_text() == "it is\nbash 0\n"
    assert (work / "post").read_text() == "".join(ranks)


@pytest.mark.slow
def test_commands_that_fail_fail_the_node_before_its_workers(built, work):
    with Pod(built, work, ["train.py", "0"], NPROC_PER_NODE="1", PRE_SCRIPT_COMMANDS="false\ntouch pre") as pod:
        pod.start()
        pod.until(lambda: pod.state() is AgentState.FAULTED)
    assert not (work / "pre").exists() and not (work / "rank-0").exists()


@pytest.mark.slow
def test_the_agent_is_the_process_that_the_kubelet_started_and_ends_while_it_waits(built, work):
    with Pod(built, work, ["train.py", "0"], NPROC_PER_NODE="1") as pod:
        pod.until(lambda: pod.state() is AgentState.READY)
        main = pod.main_process()
        assert main.cmdline()[1:3] == ["-m", "launcher.backends.kubernetes.process_one"]
        if pod.is_process_one:
            assert re.search(r"NSpid:\t\d+\t1\n", Path(f"/proc/{main.pid}/status").read_text())
        main.send_signal(signal.SIGTERM)
        status = pod.wait()
    assert status == 128 + signal.SIGTERM


@pytest.mark.slow
def test_sigterm_ends_the_agent_while_it_imports(built, work):
    with Pod(built, work, ["train.py", "0"], NPROC_PER_NODE="1") as pod:
        pod.until(lambda: any("process_one" in " ".join(p.cmdline()) for p in [pod.main_process()]))
        catches = re.compile(r"SigCgt:\t([0-9a-f]+)")
        bit = 1 << (signal.SIGTERM - 1)
        pod.until(
            lambda: int(catches.search(Path(f"/proc/{pod.main_process().pid}/status").read_text())[1], 16) & bit
        )
        pod.main_process().send_signal(signal.SIGTERM)
        assert pod.wait() == 128 + signal.SIGTERM


@pytest.mark.slow
def test_sigterm_ends_the_workers_and_then_the_agent(built, work):
    with Pod(built, work, ["train.py", "600"], NPROC_PER_NODE="2") as pod:
        pod.start()
        pod.until((work / "rank-1").exists)
        workers = pod.main_process().children(recursive=True)
        assert len(workers) >= 2
        pod.main_process().send_signal(signal.SIGTERM)
        status = pod.wait()
        assert not [worker for worker in workers if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE]
    assert status == 128 + signal.SIGTERM


@pytest.mark.slow
def test_the_image_trains_a_recipe_with_what_is_in_it(built, work, prepare):
    job = prepare("recipes=training/tiny/tiny_lm_cpu", "recipes.training_config.training_args.max_epochs=1")
    configs = work / "configs"
    configs.mkdir()
    (configs / "config.yaml").write_text(yaml_io.dump(job.scales[0].config))
    words = ["-m", "launcher.runtime.entrypoint", f"--config-path={configs}"]
    variables = {"NPROC_PER_NODE": "1", "RECIPES_RUN_DIR": str(work), "OMP_NUM_THREADS": "1"}
    with Pod(built, work, words, **variables) as pod:
        pod.start()
        pod.until(lambda: (work / "metrics.jsonl").exists() and (work / "metrics.jsonl").read_text().count("\n") >= 3)


@pytest.mark.slow
def test_a_pod_that_waits_for_the_operator_ends_at_once(built, work, render):
    words = ("recipes=training/tiny/tiny_lm_cpu", "++recipes.elastic_policy.is_elastic=true")
    start = work / "start.sh"
    manifest = render(*words, "cluster=k8s", "instance_type=ml.m5.2xlarge", *OWN).files["manifests/configmap.yaml"]
    start.write_text(yaml_io.load(manifest)["data"]["start.sh"])
    with Pod(built, work, ["train.py", "0"], start=("/bin/bash", start), NPROC_PER_NODE="1") as pod:
        pod.until(lambda: pod.state() is AgentState.READY)
        pod.main_process().send_signal(signal.SIGTERM)
        assert pod.wait() == 128 + signal.SIGTERM


@pytest.mark.slow
def test_a_pod_that_is_deleted_saves_what_it_trained_since_its_last_checkpoint(built, work, prepare, render):
    """The whole of it: the rendered start script, the image's entrypoint, the real agent, the real trainer."""
    words = (
        "recipes=training/tiny/tiny_lm_cpu",
        "++recipes.elastic_policy.is_elastic=true",
        "recipes.training_config.training_args.save_steps=0",
        "recipes.training_config.training_args.max_epochs=100",
        f"recipes.training_config.training_args.training_dir={work / 'checkpoints'}",
    )
    cluster = ("cluster=k8s", "instance_type=ml.m5.2xlarge", *OWN)
    start = work / "start.sh"
    start.write_text(yaml_io.load(render(*words, *cluster).files["manifests/configmap.yaml"])["data"]["start.sh"])
    configs = work / "configs"
    configs.mkdir()
    (configs / "config.yaml").write_text(yaml_io.dump(prepare(*words).scales[0].config))
    program = ["-m", "launcher.runtime.entrypoint", f"--config-path={configs}"]
    variables = {"NPROC_PER_NODE": "2", "RECIPES_RUN_DIR": str(work), "OMP_NUM_THREADS": "1"}
    variables["HYPERPOD_SIGNAL_COORDINATION"] = "distributed"
    metrics = work / "metrics.jsonl"
    with Pod(built, work, program, start=("/bin/bash", start), **variables) as pod:
        pod.start()
        pod.until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 3)
        assert not list((work / "checkpoints").glob("*/*"))
        pod.main_process().send_signal(signal.SIGTERM)
        assert pod.wait() == 128 + signal.SIGTERM
    last = json.loads(metrics.read_text().splitlines()[-1])["step"]
    assert [path.name for path in (work / "checkpoints").iterdir() if str(last) in path.name]


def test_an_entrypoint_without_a_program_says_what_it_takes(built):
    done = subprocess.run([built / "bin/entrypoint"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 2 and done.stderr.startswith("usage: entrypoint SCRIPT")


# The build context


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["hadolint", "shellcheck"])
def test_linters_find_nothing(built, tool):
    program = Path(sys.executable).parent / tool
    if not program.exists():
        pytest.skip(f"{tool} is missing: pip install '.[test]'")
    files = [built / "Dockerfile"] if tool == "hadolint" else sorted((built / "bin").iterdir())
    done = subprocess.run([program, *files], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_linter_would_find_a_fault(built, tmp_path):
    program = Path(sys.executable).parent / "hadolint"
    if not program.exists():
        pytest.skip("hadolint is missing: pip install '.[test]'")
    faulty = tmp_path / "Dockerfile"
    faulty.write_text((built / "Dockerfile").read_text().replace(BASE, "torch:latest"))
    assert subprocess.run([program, faulty], capture_output=True, timeout=200).returncode == 1


def test_the_image_ends_as_a_user_that_is_not_root_and_starts_the_entrypoint(built):
    lines = (built / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("FROM")] == [f"FROM {BASE}"]
    assert [line for line in lines if line.startswith("USER")][-1] == f"USER {container.UID}:{container.UID}"
    assert lines[-1] == f'ENTRYPOINT ["{container.HOME}/bin/entrypoint"]'
    assert "USER 1000:1000" in lines and "EXPOSE 8080" in lines
    copied = [line.split()[-2] for line in lines if line.startswith("COPY")]
    assert sorted(copied) == sorted(path.name for path in built.iterdir() if path.name != "Dockerfile")


def test_what_is_installed_is_what_the_agent_needs():
    assert f"AGENT := {container.AGENT}" in (ROOT / "Makefile").read_text()
    needs = importlib.metadata.requires("hyperpod-elastic-agent")
    without = [need for need in needs if re.match(r"[a-z]+", need)[0] not in ("pip", "torch")]
    assert set(without) <= set(container.REQUIREMENTS)


@pytest.mark.slow
def test_the_library_is_the_runtime_and_no_more():
    library = {Path(name): text for name, text in container.files(BASE).items() if name.startswith("lib/launcher/")}
    places = {path.relative_to("lib/launcher"): text for path, text in library.items()}
    assert {path.parts[0] for path in places} == {"__init__.py", "backends", "common", "runtime"}
    for path, text in places.items():
        assert (ROOT / "launcher" / path).read_text(encoding="utf-8") == text
    runtime = {path.relative_to(ROOT / "launcher") for path in (ROOT / "launcher/runtime").rglob("*.py")}
    assert runtime == {path for path in places if path.parts[0] == "runtime" and path.suffix == ".py"}


def nodes_that_run(text: str):
    """Yield the nodes of a module but those of its `if TYPE_CHECKING:`."""
    pending: list[ast.AST] = [ast.parse(text)]
    while pending:
        yield (node := pending.pop())
        is_typing = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        pending += node.orelse if is_typing else ast.iter_child_nodes(node)


@pytest.mark.slow
def test_every_module_of_the_launcher_that_the_library_imports_is_in_it():
    library = {name.removeprefix("lib/"): text for name, text in container.files(BASE).items()}
    imported = {
        (f"{node.module}.{each.name}", str(node.module))
        for name, text in library.items()
        for node in (nodes_that_run(text) if name.endswith(".py") else ())
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("launcher")
        for each in node.names
    }
    places = {pair: [module.replace(".", "/") for module in pair] for pair in imported}
    ends = (".py", "/__init__.py")
    assert len(imported) > 100
    assert [pair for pair in imported if not any(f"{p}{end}" in library for p in places[pair] for end in ends)] == []


def test_the_trainer_extra_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]["trainer"]) <= set(container.REQUIREMENTS)


@pytest.mark.slow
def test_the_entrypoint_s_modules_are_all_in_the_library(tmp_path):
    for name, text in container.files(BASE).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    program = "import launcher.runtime.entrypoint as module; print(module.__file__)"
    packages = str(Path(pytest.__file__).parent.parent)
    environment = {"PYTHONPATH": f"{tmp_path / 'lib'}:{packages}", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-S", "-c", program]  # without the .pth file of this checkout
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == str(tmp_path / "lib/launcher/runtime/entrypoint.py"), result.stderr


@pytest.mark.parametrize(
    "base",
    ["torch", "torch:latest", "registry:5000/torch", "a:1\nRUN x", "a:1 b", "", "a@sha256:12", "a:"],
    ids=["no-tag", "latest", "port-only", "second-line", "second-word", "empty", "short-digest", "empty-tag"],
)
def test_a_base_that_moves_is_refused(base):
    with pytest.raises(ProblemsFound, match="E366"):
        container.files(base)


@pytest.mark.slow
@pytest.mark.parametrize(
    "base", ["torch:2.9", "a.b:5000/c/d:1_x", f"a/b@sha256:{'0' * 64}"], ids=["tag", "port", "digest"]
)
def test_a_base_that_stays_is_taken(base):
    assert f"\nFROM {base}\n" in container.files(base)["Dockerfile"]


@pytest.mark.slow
def test_the_command_writes_a_folder_to_build_in(tmp_path, capsys):
    assert cli.run(["container", "--base", BASE, "--out", str(tmp_path / "image")]) == 0
    assert "docker build" in capsys.readouterr().out
    assert os.access(tmp_path / "image/bin/entrypoint", os.X_OK)
    assert cli.run(["container", "--base", "torch", "--out", str(tmp_path / "other")]) == 2
    assert not (tmp_path / "other").exists()


# Jobs in such an image


def pod_of(bundle):
    job = yaml_io.load(bundle.files["manifests/job.yaml"])
    spec = job["spec"].get("replicaSpecs") or list(job["spec"]["pytorchReplicaSpecs"].values())
    (found,) = spec[0]["template"]["spec"]["containers"]
    return found


def test_a_recipe_runs_in_an_image_of_ones_own(render):
    published, own = (pod_of(render(*LLAMA_K8S, ELASTIC, *words)) for words in ((), OWN))
    assert own["image"] == BASE
    program = ["-m", "amzn_awsllm_fine_tuning.train_hp", "--config-path=/config"]
    assert own["command"] == ["/bin/bash", "/config/start.sh", f"{container.HOME}/bin/entrypoint", *program]
    assert own["volumeMounts"] == published["volumeMounts"]
    names = {entry["name"]: entry.get("value") for entry in own["env"]}
    assert (names["NNODES"], names["NPROC_PER_NODE"], names["SHUTDOWN_TIMEOUT"]) == ("1", "8", "600")
    assert names["HYPERPOD_SIGNAL_COORDINATION"] == "distributed" and "GIT_REPO_URL" not in names


def test_a_job_in_an_image_of_ones_own_needs_no_root(render):
    assert pod_of(render(*LLAMA_K8S, *OWN))["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_commands_before_and_after_reach_the_entrypoint(render):
    words = ("++recipes.pre_script=[a b, 'c; d']", "++recipes.post_script=[e]")
    names = {entry["name"]: entry.get("value") for entry in pod_of(render(*LLAMA_K8S, *OWN, *words))["env"]}
    assert (names["PRE_SCRIPT_COMMANDS"], names["POST_SCRIPT_COMMANDS"]) == ("a b\nc; d", "e")


def test_commands_around_a_script_of_ones_own_reach_the_entrypoint_too(render, problems):
    script = ("recipes=training/custom/script", "training_cfg.entry_script=/app/train.py", "cluster=k8s")
    words = (*script, "container=me/image:1", "instance_type=ml.m5.2xlarge", "++recipes.pre_script=[a]")
    pod = pod_of(render(*words, "cluster.runtime=launcher"))
    assert {"name": "PRE_SCRIPT_COMMANDS", "value": "a"} in pod["env"]
    assert pod["command"][2:4] == ["/opt/recipes/bin/entrypoint", "/app/train.py"]
    assert [problem.code for problem in problems(*words)] == ["E108"]


def test_the_users_own_command_still_wins(render):
    assert pod_of(render(*LLAMA_K8S, *OWN, "cluster.command=[python3, x.py]"))["command"] == ["python3", "x.py"]


def test_kubeflow_starts_the_program_of_such_an_image_by_torchrun(render):
    command = pod_of(render(*LLAMA_K8S, *OWN, "cluster.use_hyperpod_pytorch_job=false"))["command"]
    assert command[2] == "torchrun"
    assert command[-3:] == ["-m", "amzn_awsllm_fine_tuning.train_hp", "--config-path=/config"]


@pytest.mark.parametrize(
    ("image", "is_published"),
    [
        ("327873000638.dkr.ecr.us-east-1.amazonaws.com/hyperpod-recipes:llmft-v1.0.0", True),
        ("327873000638.dkr.ecr.us-east-1.amazonaws.com/hyperpod-recipes:verl-v1.0.0-eks", True),
        ("327873000638.dkr.ecr.us-east-1.amazonaws.com/hyperpod-recipes-verl-0-7-0:verl-v1.1.0-smtj-tf58", True),
        ("327873000638.dkr.ecr.us-east-1.amazonaws.com/hyperpod-checkpointless-training:v1.0.0", True),
        ("763104351884.dkr.ecr.us-east-1.amazonaws.com/sagemaker-evaluation:latest", True),
        ("me/hyperpod-recipes-own:1", False),
        ("me/own:hyperpod-recipes", False),
    ],
)
def test_a_published_image_is_known_by_its_name(image, is_published):
    assert is_published_image(image) is is_published


def test_what_such_an_image_cannot_do_is_a_problem(problems):
    found = problems(*LLAMA_K8S, "cluster.runtime=launcher", "git.repo_url_or_path=https://host/repo", "git.branch=b")
    assert [(problem.code, problem.path) for problem in found] == [
        ("E367", "git.repo_url_or_path"),
        ("E367", "git.branch"),
        ("E367", "container"),
    ]
    assert [problem.value for problem in found[:2]] == ["https://host/repo", "b"]
    assert is_published_image(found[2].value)
