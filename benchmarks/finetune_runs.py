"""One training of a rehearsal's model on the CPU: `finetune_runs.py ours|trl FOLDER OFF|ON`.

Prints the seconds, wall and of the processor, between the ends of the first few and of the last optimizer step, and
the tokens trained in between. The third argument is whether activations are recomputed, as the recipe wants.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.trl_sft import trl_trainer
from launcher.runtime import process_group
from launcher.runtime.finetune.data.prepared import Prepared, PreparedConversations
from launcher.runtime.finetune.inputs import Inputs, inputs_of, prepared_data
from launcher.runtime.finetune.settings import Settings, settings_of

WARMUP_STEPS = 3
RECIPE = Path(__file__).parent.parent / "tests" / "runtime" / "finetune" / "config.yaml"
"""Supervised fine-tuning of Llama 3.2 1B with adapters, as compiled."""


def settings(recomputes: bool) -> tuple[dict[str, Any], Settings]:
    """Return the recipe for one epoch, and its settings."""
    config = yaml.safe_load(RECIPE.read_text())
    config["training_config"]["training_args"] |= {"max_epochs": 1, "gradient_checkpointing": recomputes}
    config["training_config"]["datasets"]["train_val_split_ratio"] = 1.0
    return config, settings_of(config, 1)


class Clock:
    """Notes the time after each optimizer step."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def tick(self, *_: Any, **__: Any) -> None:
        self.times.append((time.perf_counter(), time.process_time()))

    def result(self, samples: PreparedConversations, batch: int) -> str:
        """Return the figures as JSON."""
        (began, cpu_began), (ended, cpu_ended) = self.times[WARMUP_STEPS - 1], self.times[-1]
        steps = len(self.times) - WARMUP_STEPS
        tokens = len(samples.ids) / len(samples) * batch * steps
        return json.dumps({"wall_s": ended - began, "cpu_s": cpu_ended - cpu_began, "tokens": tokens, "steps": steps})


def ours(inputs: Inputs, found: Settings, data: Prepared, folder: Path) -> Clock:
    """Train with the open trainer."""
    from launcher.runtime.finetune.trainer import FineTuning

    clock = Clock()
    training = FineTuning(found, inputs, process_group.place_from_env(), folder, data)
    training.optimizer.register_step_post_hook(clock.tick)
    training.run()
    return clock


def theirs(inputs: Inputs, found: Settings, data: Prepared, folder: Path) -> Clock:
    """Train with TRL's trainer: the same model, samples, batch and optimizer."""
    clock, cpu = Clock(), torch.device("cpu")
    trl_trainer(inputs, found, data.train, folder, cpu, clock.tick, num_train_epochs=1).train()
    return clock


def main() -> None:
    """Run one training."""
    who, folder, recomputes = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "ON"
    config, found = settings(recomputes)
    process_group.join()
    inputs = inputs_of(config, found, folder, rehearse=True)
    data = prepared_data(inputs, is_node_first=True)
    data = replace(data, validation=None)
    clock = (ours if who == "ours" else theirs)(inputs, found, data, folder)
    print(clock.result(data.train, found.shares.samples_per_step), flush=True)
    process_group.leave()


if __name__ == "__main__":
    main()
