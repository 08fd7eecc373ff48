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
    if module.name != "launcher.runtime.hyperpodrun":  # the agent itself, whose server needs pydantic
        importlib.import_module(module.name)
print(*sorted(name for name in sys.modules if name.startswith("launcher.") and "runtime" not in name))
"""


def test_the_runtime_imports_without_hydra_pydantic_and_mlflow():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["launcher.common", "launcher.common.names", "launcher.common.prctl"]


def test_the_documented_names_of_earlier_versions_still_import():
    from launcher.runtime.tiers import settings, tier_settings

    assert settings.TierSettings is tier_settings.TierSettings and settings.Cadence is tier_settings.Cadence
