"""What a process that trains imports: a restart costs what its imports cost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .cases import compiled

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]
PROGRAM = """
import os, sys
from launcher.runtime import entrypoint, process_group

def leave(code=0):
    print(*sys.modules)
    sys.stdout.flush()
    os._exit(code)

process_group.leave = leave
entrypoint.main()
"""


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_a_training_process_imports_no_other_trainer(tmp_path, lora):
    """PEFT imports accelerate itself; full fine-tuning does without both."""
    config = compiled("llama", lora=lora, max_samples=16, max_epochs=1)
    (tmp_path / "config-n1.yaml").write_text(yaml.safe_dump(config))
    environment = os.environ | {"RECIPES_RUN_DIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", PROGRAM, "--config-path", str(tmp_path), "--rehearse"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.splitlines()[-1].split())
    assert {"torch", "transformers.models.llama.modeling_llama"} <= imported and ("peft" in imported) is lora
    assert not imported & {"datasets", "trl", "transformers.trainer", "mlflow", "hydra", "pydantic", "omegaconf"}
    assert "FutureWarning" not in done.stderr and "not writable" not in done.stderr
