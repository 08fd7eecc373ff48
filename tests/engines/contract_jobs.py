"""Training jobs under the container contract, for tests: their bundles, and what they leave."""

import os
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from background import await_true

from launcher import pipeline
from launcher.backends.sagemaker_local import record
from launcher.backends.sagemaker_local.backend import ContractBackend
from launcher.common.names import LOG_DIR, RUN_DIR
from launcher.model.context import LaunchContext
from launcher.model.job_spec import JobHandle

J = "cluster.sm_jobs_config"
TIMEOUT_S = 200.0
TINY = (
    "recipes=training/tiny/tiny_lm_cpu",
    "cluster=local",
    "cluster.contract=sagemaker",
    "instance_type=m5.2xlarge",
    "recipes.elastic_policy.is_elastic=false",
    "recipes.trainer.devices=1",
    "recipes.training_config.training_args.train_batch_size=64",
    "recipes.training_config.training_args.micro_train_batch_size=1",
)


@dataclass(frozen=True)
class Started:
    """A job that was submitted, and where its output goes."""

    backend: ContractBackend
    handle: JobHandle
    out: Path

    @property
    def run_dir(self) -> Path:
        return self.handle.bundle_dir / RUN_DIR

    def end(self, timeout_s: float = TIMEOUT_S):
        """Wait until the job has ended; return its last status."""
        *_, status = self.backend.wait(self.handle, timeout_s=timeout_s)
        assert status.state.is_final, (status, self.log())
        return status

    def described(self) -> dict:
        return record.read(self.run_dir)

    def statuses(self) -> list[str]:
        return [each["Status"] for each in self.described()["SecondaryStatusTransitions"]]

    def log(self, host: str = "algo-1", attempt: int = 0) -> str:
        path = self.run_dir / LOG_DIR / f"{host}-{attempt:02}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def await_line(self, line: str) -> None:
        """Return when the first host's program has written a line."""
        await_true(lambda: line in self.log().splitlines())

    def archived(self, name: str = "model.tar.gz") -> dict[str, str]:
        """Return the files of an archive of the job's output, name to text."""
        with tarfile.open(self.out / self.handle.job_name / "output" / name) as tar:
            return {m.name: tar.extractfile(m).read().decode() for m in tar if m.isreg()}

    def told(self) -> str:
        return " ".join(each["StatusMessage"] for each in self.described()["SecondaryStatusTransitions"])


def write_bundle(folder: Path, program: str | None, *overrides: str, nodes: int = 1):
    """Write the bundle of a job that runs a Python program on every host; its output goes to `folder`/out."""
    words = [*TINY, f"recipes.trainer.num_nodes={nodes}", f'{J}.output_path="file://{folder}/out"', *overrides]
    if program is not None:
        script = folder / "program.py"
        script.write_text(program, encoding="utf-8")
        words.append(f'{J}.container_entrypoint=[{sys.executable},"{script}"]')
    context = LaunchContext(folder, "x068q", "2026-01-02T03:04:05+00:00", "ada", lambda: "0" * 40, {})
    bundle = pipeline.render(pipeline.prepare(words, context), context)
    pipeline.write(bundle)
    return bundle


def start(folder: Path, program: str | None, *overrides: str, nodes: int = 1, backend=None, **options) -> Started:
    """Submit such a job."""
    bundle = write_bundle(folder, program, *overrides, nodes=nodes)
    backend = backend or ContractBackend(**options)
    return Started(backend, backend.submit(bundle), folder / "out")


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of processes that name a folder, or have its files open as output."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            output = os.readlink(entry / "fd/1")
        except OSError:
            continue
        if str(folder) in line or str(folder) in output:
            found.append(line)
    return found


def operator_of(folder: Path) -> int | None:
    """Return the number of the process that plays SageMaker for a bundle, None where it has ended."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"launcher.backends.sagemaker_local.operator" in words[:4] and bytes(folder) in words:
                return int(entry.name)
    return None
