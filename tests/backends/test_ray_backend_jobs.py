"""Jobs of a real Ray cluster: the suite that every backend passes, training by actors, and refusals."""

import json
import re
from pathlib import Path

import pytest
from conftest import ROOT, written
from job_suite import *  # noqa: F403  # with this module's stage
from job_suite import NODES, WORKER, OrderedStage, running
from log_texts import log_texts

from launcher import pipeline
from launcher.backends.ray import client
from launcher.backends.ray.backend import RayBackend
from launcher.cli import main as cli
from launcher.common.problems import ProblemsFound
from launcher.job_store import registry
from launcher.model.job_spec import JobState

pytestmark = [pytest.mark.whole_job, pytest.mark.filterwarnings("ignore:ssl=None is deprecated")]  # in Ray's client
pytest_plugins = ("ray_fixtures",)

SCRIPT = ("recipes=training/custom/script", "cluster=ray", "training_cfg.entry_script=train.py")
GRPO = "recipes=fine-tuning/llama/verl-grpo-rlvr-llama-3-dot-1-8b-instruct-lora"


def script_bundle(folder, address, text, name, *words):
    code = folder / name
    code.mkdir()
    (code / "train.py").write_text(text)
    own = (f"cluster.working_dir={name}", f"training_cfg.run.name={name}")
    return written(folder, *SCRIPT, *own, *words, f"cluster.address={address}")


class RayStage(OrderedStage):
    """Jobs whose driver does as a file tells it: the only rank with a log."""

    num_ranks = 1

    def __init__(self, folder, address):
        self._folder, self._address = folder, address

    def backend(self):
        return RayBackend(poll_s=0.1)

    def bundle(self, name):
        orders = f"training_cfg.script_args=[{{--orders: {self._folder}/{name}.orders}}]"
        return script_bundle(self._folder, self._address, WORKER, name, f"training_cfg.run.nodes={NODES}", orders)

    def orders(self, handle, rank):
        return self._folder / f"{handle.job_name.rpartition('-')[0]}.orders"


@pytest.fixture(scope="module")
def stage(ray_address, tmp_path_factory):
    return RayStage(tmp_path_factory.mktemp("conformance"), ray_address)


def finished(backend, record):
    *_, status = backend.wait(record.handle, timeout_s=120)
    return status


def test_a_job_keeps_its_size(stage, submitted):
    record, backend = submitted["stays"], stage.backend()
    running(stage, record)
    with pytest.raises(ProblemsFound, match="E413") as refused:
        backend.scale(record.handle, 5)
    assert refused.value.problems[0].allowed == str(NODES)


def test_two_actors_train_with_the_accelerators_of_two_nodes(tmp_path, ray_address, monkeypatch):
    """The variable that Ray's client prefers to an address names no cluster here."""
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:9")
    words = ("training_cfg.run.nodes=2", "training_cfg.run.ntasks_per_node=8")
    words += ("training_cfg.script_args=[{--configs: bundle:configs}]",)
    training = (ROOT / "examples" / "train_ray.py").read_text()
    bundle = script_bundle(tmp_path, ray_address, training, "trains", *words)
    backend = RayBackend(poll_s=0.1)
    record = pipeline.submit(bundle, backend)
    status = finished(backend, record)
    lines = list(log_texts(backend, record.handle, follow=True))
    assert status.state is JobState.SUCCEEDED, lines
    slopes = [float(found[1]) for line in lines if (found := re.match(r"step \d+ slope (.*)", line))]
    assert len(slopes) == 40 and abs(slopes[-1] - 3) < 0.01 < abs(slopes[0] - 3)
    assert f"accelerators {sorted([*range(8), *range(8)])}" in lines
    assert lines[-1].startswith("event  Succeeded: ")
    assert [each.kind for each in backend.events(record.handle, follow=False)] == ["Submitted", "Succeeded"]


def test_an_ended_job_is_launched_again_under_another_id(tmp_path, ray_address):
    backend = RayBackend(poll_s=0.1)
    bundle = script_bundle(tmp_path, ray_address, "print('once')", "again")
    first = pipeline.submit(bundle, backend)
    assert finished(backend, first).state is JobState.SUCCEEDED
    assert not backend.submit(bundle).is_new
    backend.clear(first.handle)
    backend.clear(first.handle)
    second = pipeline.submit(bundle, backend)
    assert second.handle.is_new and second.handle.native_id == f"{first.handle.native_id}-2"
    assert finished(backend, second).state is JobState.SUCCEEDED
    assert list(log_texts(backend, second.handle, follow=False))[-1] == "once"


def test_a_secret_is_in_the_job_and_in_no_file(tmp_path, ray_address, monkeypatch):
    text = "import os; print(os.environ['TOKEN'][::-1], os.environ['PLAIN'])"
    words = ("++env_vars.TOKEN={env: MINE}", "++env_vars.PLAIN=yes")
    bundle = script_bundle(tmp_path, ray_address, text, "secret", *words)
    backend = RayBackend(poll_s=0.1)
    assert [each.code for each in backend.validate(bundle)] == ["E448"]
    with pytest.raises(ProblemsFound, match="E448 env_vars.TOKEN"):
        pipeline.submit(bundle, backend)
    assert registry.read(bundle.directory) is None
    monkeypatch.setenv("MINE", "hunter-two")
    assert backend.validate(bundle) == ()
    record = pipeline.submit(bundle, backend)
    assert finished(backend, record).state is JobState.SUCCEEDED
    assert list(log_texts(backend, record.handle, follow=False))[-1] == "owt-retnuh yes"
    assert not [path for path in bundle.directory.rglob("*") if path.is_file() and "hunter" in path.read_text()]


def test_code_is_copied_without_what_git_ignores(tmp_path, ray_address):
    text = "import os; print(sorted(os.listdir('.')), sorted(os.listdir('recipes-configs')))"
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / ".gitignore").write_text("*.bin\nrecipes-configs")
    (tmp_path / "big" / ".rayignore").write_text("*.yaml")
    (tmp_path / "big" / "large.bin").write_text("…")
    (tmp_path / "big" / "train.py").write_text(text)
    (tmp_path / "big" / "nowhere").symlink_to("absent")
    words = ("cluster.working_dir=big", "training_cfg.run.name=ignores", "base_results_dir=big/results")
    bundle = written(tmp_path, *SCRIPT, *words, f"cluster.address={ray_address}")
    backend = RayBackend(poll_s=0.1)
    record = pipeline.submit(bundle, backend)
    assert finished(backend, record).state is JobState.SUCCEEDED
    assert list(log_texts(backend, record.handle, follow=False))[-1] == (
        "['.gitignore', '.rayignore', 'recipes-configs', 'train.py'] ['config.yaml']"
    )


def grpo(folder, address, *words):
    data = tuple(f"recipes.training_config.data.{kind}_files=/fsx/{kind}.parquet" for kind in ("train", "val"))
    return written(folder, GRPO, "cluster=ray", *data, *words, f"cluster.address={address}")


def test_too_few_accelerators_are_found_before_a_job_waits_for_them(tmp_path, ray_address, capsys):
    backend = RayBackend()
    bundle = grpo(tmp_path, ray_address, "recipes.trainer.num_nodes=4", "recipes.run.name=large")
    (problem,) = backend.validate(bundle)
    assert (problem.code, problem.value, problem.allowed) == ("E829", "4 with 8 GPU", "8, 8")
    with pytest.raises(ProblemsFound, match="E829"):
        pipeline.submit(bundle, backend)
    fitting = grpo(tmp_path, ray_address, "recipes.trainer.num_nodes=2", "recipes.run.name=fits")
    assert backend.validate(fitting) == ()
    words = ("recipes.trainer.num_nodes=4", "cluster.autoscaled=true", "recipes.run.name=grows")
    assert backend.validate(grpo(tmp_path, ray_address, *words)) == ()
    assert "N190 the job needs nodes: 4 with 8 GPU" in " ".join(capsys.readouterr().err.split())


def test_the_driver_of_grpo_finds_its_configuration(tmp_path, ray_address):
    """Without verl: a module of its name prints what it is given."""
    package = tmp_path / "code" / "verl" / "trainer"
    package.mkdir(parents=True)
    text = (
        "import sys, pathlib; print(sys.argv[1::2], len(pathlib.Path(sys.argv[2], 'verl_config.yaml').read_text()))"
    )
    (package / "main_ppo.py").write_text(text)
    bundle = grpo(tmp_path, ray_address, "recipes.trainer.num_nodes=1", "cluster.working_dir=code")
    backend = RayBackend(poll_s=0.1)
    record = pipeline.submit(bundle, backend)
    assert finished(backend, record).state is JobState.SUCCEEDED
    size = len(bundle.files["configs/verl_config.yaml"])
    assert list(log_texts(backend, record.handle, follow=False))[-1] == f"['--config-path', '--config-name'] {size}"


def test_a_job_that_the_cluster_has_not_is_deleted_and_one_of_its_name_is_not_taken(tmp_path, ray_address):
    backend = RayBackend(poll_s=0.1)
    bundle = script_bundle(tmp_path, ray_address, "print()", "taken")
    handle = backend.intent(bundle, None)
    assert backend.status(handle).state is JobState.DELETED
    assert list(log_texts(backend, handle, follow=True)) == [] == list(backend.events(handle, follow=True))
    client.Cluster(ray_address).submit(
        {"entrypoint": "true", "submission_id": handle.native_id, "runtime_env": {}}, tmp_path / "taken"
    )
    assert backend.status(handle).state is JobState.DELETED
    with pytest.raises(ProblemsFound, match="E827"):
        pipeline.submit(bundle, backend)


def test_a_driver_that_waits_for_resources_cannot_be_stopped(tmp_path, ray_address, monkeypatch):
    monkeypatch.setattr("launcher.backends.ray.backend._STOP_PATIENCE_S", 0.5)
    backend = RayBackend(poll_s=0.1)
    bundle = script_bundle(tmp_path, ray_address, "print()", "waits", "cluster.entrypoint_num_gpus=99")
    record = pipeline.submit(bundle, backend)
    status = backend.status(record.handle)
    assert status.state is JobState.PENDING and "waiting for resources" in status.message
    with pytest.raises(ProblemsFound, match="E824"):
        backend.cancel(record.handle)


def test_commands_run_a_job_from_its_launch_to_its_end(tmp_path, ray_address, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", ray_address)
    Path("code").mkdir()
    Path("code", "train.py").write_text("print('trained')")
    words = (*SCRIPT, "cluster.working_dir=code", "training_cfg.run.name=by-command")
    assert cli.run(("run", *words, "wait=true")) == 0, capsys.readouterr()
    (folder,) = Path("results").glob("by-command-*")
    assert json.loads((folder / "ray" / "request.json").read_text())["address"] is None
    capsys.readouterr()
    assert cli.run(("status", folder.name)) == 0 and "succeeded" in capsys.readouterr().out
    assert cli.run(("logs", folder.name)) == 0 and "trained" in capsys.readouterr().out
    assert cli.run(("events", folder.name)) == 0 and "Succeeded" in capsys.readouterr().out
