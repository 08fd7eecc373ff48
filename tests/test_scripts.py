"""The launcher scripts: as generated, clean, and each of them through to a bundle."""

import contextlib
import functools
import gc
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CACHE, LLAMA, ROOT, frozen_context, needed_by, shipped

from launcher.api.checking import whole
from launcher.api.generated import scripts
from launcher.common import yaml_io
from launcher.config.catalogue import recipe_tree
from launcher.model import family_registry
from launcher.model.backend_registry import described
from launcher.model.config_tree import ABSENT, lookup
from launcher.model.recipe import RecipeBase

FOLDER = ROOT / scripts.FOLDER
ENTRIES = {entry.name: entry for entry in shipped()}
CUSTOM_SCRIPT = FOLDER / "custom" / "run_script.sh"
LLAMA_SCRIPT = FOLDER / "llama" / f"run_{LLAMA.rpartition('/')[2]}.sh"
GPT_OSS_SCRIPT = FOLDER / "gpt_oss" / "run_llmft_gpt_oss_120b_seq4k_gpu_dpo.sh"
UNRENDERED = ("nova_lite_2_0_p5_gpu_rft", "nova_lite_2_0_p5_gpu_lora_rft")
"""Ends of names of recipes whose programs are not rendered for any cluster."""
VARIABLES = {
    "TRAIN_DATA_NAME": "123",
    "TRAIN_DIR": "/fsx/it's a train, set",
    "VAL_DATA_NAME": "val",
    "VAL_DIR": "/fsx/val",
    "EXP_DIR": "/fsx/exp=1",
    "MODEL_NAME_OR_PATH": "/fsx/model",
    "CONTAINER": "registry:5000/me/image:1",
    "CONTAINER_MOUNT": "/fsx",
    "ENTRY_MODULE": "json.tool",
}


@pytest.fixture(scope="module", autouse=True)
def generated_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "scripts", functools.cache(scripts.scripts))
        yield


def run(script, *arguments, cwd, **variables):
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, **variables}
    return subprocess.run([script, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="session")
def recorder(tmp_path_factory):
    """Return a program that, in the place of Python, prints its words with a NUL after each."""
    program = tmp_path_factory.mktemp("recorder") / "python"
    program.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def execute(monkeypatch):
    """Return a function that runs a Python program with its arguments in this process, and returns its exit code.

    Importing the launcher takes ten times as long as one launch; it is done once for all scripts this way.
    """

    def executed(program, *arguments):
        monkeypatch.setattr(sys, "argv", [program, *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as end:
            runpy.run_path(program, run_name="__main__")
        return end.value.code

    threshold = gc.get_threshold()
    yield executed
    gc.unfreeze()
    gc.set_threshold(*threshold)


JOB = (
    "cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/train",
    "cluster.sm_jobs_config.output_path=s3://results/out",
    "cluster.sm_jobs_config.inputs.s3={train: s3://data/prompts}",
)


def words_for(entry, folder, cluster="k8s"):
    own = JOB if cluster == "sm_jobs" else ()
    return [f"base_results_dir={folder}", "dry_run=true", f"cluster={cluster}", *own, *needed_by(entry, cluster)]


def cluster_of(entry):
    """Return a cluster that a recipe runs on: Kubernetes, unless its program cannot."""
    base = whole([f"recipes={entry.name}"], frozen_context(ROOT), CACHE)
    return described(base.backend).choice


@pytest.mark.slow
def test_scripts_are_as_generated():
    assert scripts.stale(FOLDER) == []


@pytest.mark.slow
def test_every_recipe_has_a_script_under_its_published_name():
    assert {path.as_posix() for path in scripts.scripts()} == {"launch.sh"} | {
        f"{name.split('/')[-2]}/run_{name.split('/')[-1]}.sh" for name in ENTRIES
    }


@pytest.mark.slow
def test_stale_scripts_are_found_and_written_anew(tmp_path):
    folder = tmp_path / "launcher_scripts"
    shutil.copytree(FOLDER, folder)
    tiny = Path("tiny", "run_tiny_lm_cpu.sh")
    llama = LLAMA_SCRIPT.relative_to(FOLDER)
    gpt_oss = GPT_OSS_SCRIPT.relative_to(FOLDER)
    (folder / tiny).unlink()
    (folder / llama).write_text("echo edited\n")
    (folder / gpt_oss).chmod(0o644)
    (folder / "tiny" / "run_gone.sh").touch()
    expected = sorted([tiny, llama, gpt_oss, Path("tiny", "run_gone.sh")])
    assert scripts.stale(folder) == expected
    assert scripts.write(folder) == expected
    assert scripts.stale(folder) == []
    assert os.access(folder / gpt_oss, os.X_OK)
    assert scripts.write(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_every_script_runs_through_to_a_bundle(name, tmp_path, recorder, execute):
    entry = ENTRIES[name]
    words = words_for(entry, tmp_path, cluster_of(entry))
    script = FOLDER / entry.family / f"run_{entry.path.stem}.sh"
    recorded = run(script, *words, cwd=tmp_path, **VARIABLES | {"CONTAINER": "me/image:1", "PYTHON": recorder})
    assert recorded.returncode == 0, recorded.stderr
    program, *arguments = recorded.stdout.split("\0")[:-1]
    assert Path(program) == ROOT / "main.py"
    code = execute(program, *arguments)
    if name.endswith(UNRENDERED):
        assert (code, list(tmp_path.iterdir())) == (2, [])
        return
    assert code == 0
    (bundle,) = tmp_path.iterdir()
    manifest = json.loads((bundle / "bundle.json").read_text())
    assert manifest["recipe"] == name
    assert manifest["overrides"][-len(words) :] == words


@pytest.mark.slow
@pytest.mark.parametrize("script", [LLAMA_SCRIPT, FOLDER / "tiny" / "run_tiny_lm_cpu.sh"], ids=lambda s: s.stem)
def test_a_script_runs_in_its_own_processes_from_any_folder(script, tmp_path):
    entry = next(entry for entry in ENTRIES.values() if entry.path.stem == script.stem.removeprefix("run_"))
    words = words_for(entry, tmp_path)
    result = run(script, *words, cwd=tmp_path, **(VARIABLES if script == LLAMA_SCRIPT else {}))
    assert result.returncode == 0, result.stderr
    (bundle,) = tmp_path.iterdir()
    assert json.loads((bundle / "bundle.json").read_text())["overrides"][-len(words) :] == words


OF_SOME_RECIPES = {"DATA_S3_PATH", "OUTPUT_S3_PATH", "REWARD_LAMBDA_ARN"}
"""Variables for keys that not every technique of their family reads: set for another, they are a Problem (E564)."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [n for n in family_registry.names() if family_registry.recipe_model(n).script_variables]
)
def test_a_variable_of_a_family_sets_a_key_that_its_recipes_have(family):
    model = family_registry.recipe_model(family)
    own = [entry for entry in ENTRIES.values() if family_registry.name_of(entry.model_type) == family]
    had = set()
    for entry in own:
        tree = recipe_tree(entry)
        for variable, key in model.script_variables[model.script_kind(tree)].items():
            is_there = lookup(tree, key) is not ABSENT
            assert is_there or variable in OF_SOME_RECIPES, (entry.name, variable)
            had |= {(variable, key)} if is_there else set()
    assert had == {item for variables in model.script_variables.values() for item in variables.items()}


def test_unset_variables_are_named_all_at_once(tmp_path):
    result = run(LLAMA_SCRIPT, cwd=tmp_path, TRAIN_DIR="/x", VAL_DIR="")
    assert result.returncode == 2
    assert "unset: TRAIN_DATA_NAME VAL_DATA_NAME VAL_DIR EXP_DIR;" in result.stderr
    assert f"TRAIN_DIR=/fsx/data/train {LLAMA_SCRIPT}" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_without_weights_needs_them(tmp_path):
    variables = {name: value for name, value in VARIABLES.items() if name != "MODEL_NAME_OR_PATH"}
    result = run(GPT_OSS_SCRIPT, cwd=tmp_path, **variables)
    assert result.returncode == 2
    assert "unset: MODEL_NAME_OR_PATH;" in result.stderr
    lacking = {name for name, entry in ENTRIES.items() if not entry.model_name_or_path}
    assert {path for path, text in scripts.scripts().items() if ' without_weights "$@"' in text} == {
        Path(name.split("/")[-2], f"run_{name.split('/')[-1]}.sh") for name in lacking if "llmft" in name
    }


def test_a_family_without_variables_has_scripts_that_name_the_image(tmp_path, recorder):
    assert RecipeBase.script_kind({}) == "plain"
    words = (FOLDER / "launch.sh", "training/mine/recipe", "plain", "a=b")
    recorded = run(*words, cwd=tmp_path, PYTHON=recorder, CONTAINER="me/image:1", TRAIN_DIR="/unread")
    assert recorded.returncode == 0, recorded.stderr
    _, recipe, results, *rest = recorded.stdout.split("\0")[:-1]
    assert (recipe, rest) == ("recipes=training/mine/recipe", ["container='me/image:1'", "a=b"])
    assert results.startswith("base_results_dir=")


def test_a_script_of_your_own_is_needed(tmp_path):
    result = run(CUSTOM_SCRIPT, cwd=tmp_path, ENTRY_SCRIPT="")
    assert result.returncode == 2
    assert "unset: ENTRY_SCRIPT or ENTRY_MODULE;" in result.stderr


@pytest.mark.parametrize("mpi", ["true", "false", ""])
def test_a_script_of_your_own_is_started_as_its_variables_say(tmp_path, recorder, execute, mpi):
    (tmp_path / "it's mine.py").touch()
    variables = {"ENTRY_SCRIPT": "it's mine.py", "NUM_NODES": "2", "NPROC_PER_NODE": "8", "MPI": mpi}
    words = [f"base_results_dir={tmp_path}/r", "dry_run=true", "cluster=slurm", "instance_type=ml.p5.48xlarge"]
    recorded = run(CUSTOM_SCRIPT, *words, cwd=tmp_path, **variables, PYTHON=recorder)
    with contextlib.chdir(tmp_path):
        assert execute(*recorded.stdout.split("\0")[:-1]) == 0
    (bundle,) = (tmp_path / "r").glob("custom-script-*")
    tree = yaml_io.load((bundle / "recipe.yaml").read_text())
    assert tree["recipes"]["training_cfg"]["entry_script"] == "it's mine.py"
    script = (bundle / "slurm" / "job.sh").read_text()
    assert "#SBATCH --nodes=2\n" in script
    assert ("mpirun" in script) is (mpi == "true")


def test_variables_arrive_as_they_are(tmp_path, recorder, execute):
    words = [f"base_results_dir={tmp_path}", "dry_run=true", "cluster=k8s"]
    recorded = run(LLAMA_SCRIPT, *words, cwd="/", **VARIABLES | {"PYTHON": recorder})
    assert execute(*recorded.stdout.split("\0")[:-1]) == 0
    (bundle,) = tmp_path.iterdir()
    tree = yaml_io.load((bundle / "recipe.yaml").read_text())
    training = tree["recipes"]["training_config"]
    assert training["datasets"]["train_data"] == {"name": "123", "file_path": VARIABLES["TRAIN_DIR"], "limit": None}
    assert training["training_args"]["training_dir"] == VARIABLES["EXP_DIR"]
    assert training["model_config"]["model_name_or_path"] == VARIABLES["MODEL_NAME_OR_PATH"]
    assert tree["container"] == VARIABLES["CONTAINER"]


@pytest.mark.parametrize("name", ["it's mine", "$HOME `id` \\", 'quote"d', "ünï"])
def test_arguments_are_passed_on_as_they_are(tmp_path, recorder, name):
    recorded = run(
        LLAMA_SCRIPT, f"recipes.run.name={name}", "a b", "", cwd=tmp_path, **VARIABLES | {"PYTHON": recorder}
    )
    assert recorded.stdout.split("\0")[-4:-1] == [f"recipes.run.name={name}", "a b", ""]


@pytest.mark.slow
def test_scripts_are_clean(shellcheck):
    shellcheck(*sorted(FOLDER.rglob("*.sh")))
