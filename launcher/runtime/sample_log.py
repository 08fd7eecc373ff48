"""A log of the samples that a rank trained on, which shows that each was taken once."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from launcher.common import names
from launcher.runtime import process_group, startup_timing
from launcher.runtime.sampler import Draw


@dataclass(frozen=True, slots=True)
class SampleLog:
    """Writes `run/samples/rank-<r>.jsonl`: one JSON object per forward pass, with its time since the epoch.

    Args:
        run_dir: Of the job.
    """

    run_dir: Path

    def append(self, step: int, draw: Draw) -> None:
        """Log the samples that the loader drew for a forward pass of optimizer step `step`."""
        folder = self.run_dir / names.SAMPLES_DIR
        folder.mkdir(parents=True, exist_ok=True)
        record: dict[str, object] = {"time": time.time(), "attempt": startup_timing.attempt(), "step": step}
        record |= {"position": draw.batch.positions.start, "samples": draw.samples}
        with (folder / f"rank-{process_group.rank()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
