"""The program of the container: `python -m launcher.runtime.entrypoint --config-path DIR [--rehearse]`.

DIR holds one configuration per cluster size; the one for the current size is used. Its `run.model_type` chooses the
trainer. With --rehearse, the trainer of fine-tuning recipes trains a small random model on samples that it makes up;
with `--model NAME`, that published model where the recipe leaves the model open.

The imports below `main` take seconds: the handler of the stop signal must be installed before them. A worker that is
forked from a warm process needs none of them.
"""

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.common import names
from launcher.runtime.imports import without_collections
from launcher.runtime.warm_client import run_warm

if TYPE_CHECKING:
    import torch

    from launcher.runtime.process_group import Place
    from launcher.runtime.trainer import Prepared


def main() -> None:
    """Train the configuration of this cluster size and end the process."""
    run_warm()
    from launcher.runtime import agent

    # First: until the handler is installed, the agent's stop signal kills this process.
    agent.install_event_handler()
    train()


def train() -> None:
    """Do the work of `main` in a process that already handles the stop signal."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m launcher.runtime.entrypoint", description=__doc__)
    parser.add_argument("--config-path", type=Path, required=True, help="folder of the configurations")
    parser.add_argument("--rehearse", action="store_true", help="train a small random model on made-up samples")
    parser.add_argument("--model", default="", help="published model to rehearse, where the recipe leaves it open")
    parser.add_argument("--rehearsal-samples", type=int, metavar="N", help="make up N samples, in place of 240")
    args = parser.parse_args()

    with without_collections():
        from torch.distributed.elastic.multiprocessing.errors import record

        from launcher.runtime import in_place
        from launcher.runtime.process_group import leave

    work = functools.partial(
        _train, args.config_path, rehearse=args.rehearse, model=args.model, samples=args.rehearsal_samples
    )
    record(in_place.run)(work, functools.partial(_prepare, args.config_path))
    leave()


def _train(config_dir: Path, *, rehearse: bool, model: str, samples: int | None) -> None:
    import yaml

    from launcher.runtime import in_place
    from launcher.runtime.process_group import affordable, join, place_from_env

    place = place_from_env()
    _share_cores(place)
    config = yaml.safe_load(names.config_path(config_dir, place.nodes).read_text(encoding="utf-8"))
    is_fine_tuning = config["run"]["model_type"] == names.FINE_TUNING
    if rehearse or not is_fine_tuning:
        place = affordable(place)
    if is_fine_tuning:
        if not in_place.stays():  # otherwise they were, before this start
            _import_fine_tuning(config)
        from launcher.runtime.finetune import trainer

        trainer.run(config, join(place), names.run_dir(), rehearse=rehearse, model=model, samples=samples)
    else:
        from launcher.runtime.trainer import Trainer
        from launcher.runtime.training_config import settings_of

        settings = settings_of(config, place.world_size)
        prepared = _prepared(config_dir, place.device) if in_place.is_on() else None
        Trainer(settings, join(place), names.run_dir(), prepared=prepared).run()


@functools.cache
def _prepared(config_dir: Path, device: "torch.device") -> "Prepared":
    """Return what a process makes once for all sizes, with the configuration of any."""
    from launcher.runtime.trainer import prepare
    from launcher.runtime.training_config import settings_of

    config = _any_config(config_dir)
    ranks = config["trainer"]["num_nodes"] * config["trainer"]["devices"]
    return prepare(settings_of(config, ranks), device)


@functools.cache
def _any_config(config_dir: Path) -> Any:
    import yaml

    return yaml.safe_load(min(config_dir.glob("*.yaml")).read_text(encoding="utf-8"))


def _prepare(config_dir: Path) -> None:
    """Prepare a worker that will wait for its start, so that the others train meanwhile."""
    import torch

    config = _any_config(config_dir)
    if config["run"]["model_type"] == names.FINE_TUNING:
        _import_fine_tuning(config)
    elif not torch.cuda.is_available():  # otherwise its device follows from its rank, which is not known yet
        _prepared(config_dir, torch.device("cpu"))


def _import_fine_tuning(config: Any) -> None:
    with without_collections():
        from launcher.runtime.finetune import trainer  # noqa: F401
        from launcher.runtime.finetune.models import import_libraries

        import_libraries(config)


def _share_cores(place: "Place") -> None:
    """Divide the cores among the processes of this node, unless the environment says how many threads each has.

    PyTorch starts a thread for each core in every process. A warm process has read an environment of its own.
    """
    import torch

    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(int(threads) if threads else max(1, cores // place.local_world_size))


if __name__ == "__main__":
    main()
