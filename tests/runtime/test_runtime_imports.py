"""The runtime is installed in images without the launcher's own dependencies."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import importlib, pkgutil, sys

BLOCKED = {"hydra", "omegaconf", "pydantic", "mlflow", "jinja2", "typer", "rich", "boto3", "psutil"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
import launcher.runtime
for module in pkgutil.walk_packages(launcher.runtime.__path__, "launcher.runtime."):
    # The agent itself, whose server needs pydantic; and the open trainer, which has an extra of its own.
    if not module.name.startswith(("launcher.runtime.hyperpodrun", "launcher.runtime.finetune")):
        importlib.import_module(module.name)
print(*sorted(name for name in sys.modules if name.startswith("launcher.") and "runtime" not in name))
"""


def test_the_runtime_imports_without_hydra_pydantic_and_mlflow():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    modules = ("launcher.common", "launcher.common.names", "launcher.common.prctl", "launcher.common.yaml_io")
    assert run.stdout.split() == list(modules)


OPEN_TRAINER = """
import importlib, sys
for name in ("transformers.modeling_utils", "peft", "launcher.runtime.finetune.trainer"):
    importlib.import_module(name)
print(*sorted({name.partition(".")[0] for name in sys.modules} | {name for name in sys.modules if "trainer" in name}))
"""


def test_a_training_process_of_the_open_trainer_imports_no_other_trainer_and_no_launcher():
    run = subprocess.run([sys.executable, "-c", OPEN_TRAINER], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    unwanted = {"hydra", "omegaconf", "mlflow", "datasets", "trl", "typer", "transformers.trainer"}
    assert unwanted.isdisjoint(run.stdout.split()) and "launcher.runtime.finetune.trainer" in run.stdout
