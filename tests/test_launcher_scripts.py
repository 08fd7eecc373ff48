import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import LLAMA, ROOT

from launcher.compose import recipe_names

SCRIPTS = sorted((ROOT / "launcher_scripts").rglob("*.sh"))
LLAMA_SCRIPT = next(script for script in SCRIPTS if LLAMA.rpartition("/")[2] in script.name)
VARIABLES = {
    "TRAIN_DATA_NAME": "123",
    "TRAIN_DIR": "/fsx/it's a train, set",
    "VAL_DATA_NAME": "val",
    "VAL_DIR": "/fsx/val",
    "EXP_DIR": "/fsx/exp=1",
    "MODEL_NAME_OR_PATH": "/fsx/model",
    "CONTAINER": "registry:5000/me/image:1",
    "CONTAINER_MOUNT": "/fsx",
}


def run(script, *arguments, cwd, **variables):
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, **variables}
    return subprocess.run([script, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


def test_every_recipe_has_a_script():
    assert {script.stem.removeprefix("run_") for script in SCRIPTS} == {
        name.rpartition("/")[2] for name in recipe_names()
    }


def test_unset_variables_are_named_all_at_once(tmp_path):
    result = run(LLAMA_SCRIPT, cwd=tmp_path, TRAIN_DIR="/x", VAL_DIR="")
    assert result.returncode == 2
    assert "unset: TRAIN_DATA_NAME VAL_DATA_NAME VAL_DIR EXP_DIR" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_scripts_run_through_to_a_bundle_from_any_folder(script, tmp_path):
    arguments = [f"base_results_dir={tmp_path}", "dry_run=true", "cluster=k8s"]
    if script != LLAMA_SCRIPT:
        arguments += ["container=me/image:1", "instance_type=ml.m5.2xlarge"]
    result = run(script, *arguments, cwd=tmp_path, **(VARIABLES if script == LLAMA_SCRIPT else {}))
    assert result.returncode == 0, result.stderr
    (bundle,) = tmp_path.iterdir()
    assert json.loads((bundle / "bundle.json").read_text())["overrides"][-len(arguments) :] == arguments


def test_variables_arrive_as_they_are(tmp_path):
    from launcher import yamlio

    result = run(LLAMA_SCRIPT, f"base_results_dir={tmp_path}", "dry_run=true", "cluster=k8s", cwd="/", **VARIABLES)
    assert result.returncode == 0, result.stderr
    (bundle,) = tmp_path.iterdir()
    tree = yamlio.load((bundle / "recipe.yaml").read_text())
    training = tree["recipes"]["training_config"]
    assert training["datasets"]["train_data"] == {"name": "123", "file_path": VARIABLES["TRAIN_DIR"], "limit": None}
    assert training["training_args"]["training_dir"] == VARIABLES["EXP_DIR"]
    assert tree["container"] == VARIABLES["CONTAINER"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_scripts_are_clean(script):
    if not shutil.which("shellcheck"):
        pytest.skip("apt-get install shellcheck")
    subprocess.run(["shellcheck", script], check=True)
