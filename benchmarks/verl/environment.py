"""verl's environment: the packages of this one, below those that verl needs in other versions."""

import hashlib
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

PACKAGES = Path(__file__).with_name("packages.txt")
_ROOT = Path(__file__).parents[2]


def interpreter() -> tuple[Path, float]:
    """Return the environment's interpreter, and the seconds that its set-up took: 0 if it existed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recipe-launcher"
    below = sysconfig.get_path("purelib")
    version = hashlib.sha256(f"{sys.version}{below}{PACKAGES.read_text()}".encode()).hexdigest()[:12]
    folder = cache / f"verl-{version}"
    python, ready = folder / "bin" / "python", folder / "ready"
    if ready.exists():
        return python, 0.0
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    site = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (site / "below.pth").write_text(f"{below}\n")  # searched after the environment's own packages
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--requirement", str(PACKAGES)], check=True)
    ready.touch()
    return python, time.perf_counter() - began


def variables() -> dict[str, str]:
    """Return the variables of everything that runs in the environment."""
    own = {"PYTHONPATH": str(_ROOT), "VERL_USE_EXTERNAL_MODULES": "benchmarks.verl.on_cpu", "OMP_NUM_THREADS": "1"}
    return os.environ | own
