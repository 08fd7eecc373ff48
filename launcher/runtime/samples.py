"""Which samples a rank trained on, for whoever wants to see that each was taken once."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from launcher import contract
from launcher.runtime import process_group, starts
from launcher.runtime.sampler import Batch, SampleStream


@dataclass(frozen=True, slots=True)
class SampleLog:
    """Writes `run/samples/rank-<r>.jsonl`: one JSON object per forward pass. Its time, in seconds since the epoch,
    tells the launches of a bundle apart.

    Args:
        run_dir: The job's.
        stream: Gives the dataset's index at each position.
    """

    run_dir: Path
    stream: SampleStream

    def note(self, step: int, batch: Batch) -> None:
        """Write down the samples of a forward pass of optimizer step `step`."""
        folder = self.run_dir / contract.SAMPLES_DIR
        folder.mkdir(parents=True, exist_ok=True)
        samples = self.stream.indices(batch.positions).tolist()
        record = {"time": time.time(), "attempt": starts.attempt(), "step": step}
        record |= {"position": batch.positions.start, "samples": samples}
        with (folder / f"rank-{process_group.rank()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
