"""Which samples a rank trained on, for whoever wants to see that each was taken once."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from launcher.common import names
from launcher.runtime import process_group, startup_timing
from launcher.runtime.sampler import Draw


@dataclass(frozen=True, slots=True)
class SampleLog:
    """Writes `run/samples/rank-<r>.jsonl`: one JSON object per forward pass. Its time, in seconds since the epoch,
    tells the launches of a bundle apart.

    Args:
        run_dir: The job's.
    """

    run_dir: Path

    def note(self, step: int, draw: Draw) -> None:
        """Write down the samples that the loader drew for a forward pass of optimizer step `step`."""
        folder = self.run_dir / names.SAMPLES_DIR
        folder.mkdir(parents=True, exist_ok=True)
        record = {"time": time.time(), "attempt": startup_timing.attempt(), "step": step}
        record |= {"position": draw.batch.positions.start, "samples": draw.samples}
        with (folder / f"rank-{process_group.rank()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
