"""Places of what a job produces: adapters, models, checkpoints, further output, from its bundle alone.

A place is a folder, or an address of a store. What the program of an image decides itself is not known here.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from launcher.bundle import store
from launcher.common import yaml_io
from launcher.common.names import CHECKPOINT_DIR, RUN_DIR
from launcher.model import family_registry
from launcher.model.backend import BackendDescription
from launcher.model.backend_registry import described
from launcher.model.config_tree import get
from launcher.model.job_spec import OPEN, Bundle, ResultKind
from launcher.operator.job_request import LOCAL_FILE

_MERGED = "merged"
"""In a folder of adapters: the model with them. Source: `launcher.runtime.finetune.export`."""
_FILE = "file://"


class Result(NamedTuple):
    """A place that a job writes to.

    Args:
        kind: `checkpoints` of the training state, `adapters`, a `model`, or further `output`.
        path: The folder or file, or the address. In a container it is named as the job sees it.
        exists: Whether it exists on this machine now; None if this machine does not see it.
    """

    kind: ResultKind
    path: str
    exists: bool | None


def results(bundle: Bundle) -> tuple[Result, ...]:
    """Return every place that a bundle on disk names, each once."""
    plan = bundle.plan
    description = described(plan["backend"])
    is_here = _sees_files(bundle, description)
    kept = tuple(description.files.outputs(bundle))
    written = _of_program(bundle, plan, bundle.directory / RUN_DIR if is_here else None)
    if kept:  # the program's own folders are uploaded there
        written = ((kind, path) for kind, path in written if "://" in path)
    places = {path: kind for kind, path in (*written, *kept)}
    return tuple(Result(kind, path, _exists(path, is_here=is_here)) for path, kind in places.items())


def _sees_files(bundle: Bundle, description: BackendDescription[Any]) -> bool:
    """Return whether this machine sees the files of a job, at the same paths."""
    try:
        options = description.options().model_validate(store.config_of(bundle)["cluster"])
    except ValidationError:  # of a bundle of another version
        return False
    return description.files.are_shared(options)


def _exists(path: str, *, is_here: bool) -> bool | None:
    file = path.removeprefix(_FILE)
    if not os.path.isabs(file) or not (is_here or file != path):
        return None
    return os.path.exists(file)


def _of_program(bundle: Bundle, plan: Mapping[str, Any], run_dir: Path | None) -> Iterator[tuple[ResultKind, str]]:
    """Yield what the training program writes.

    Args:
        run_dir: The job's run folder, if this machine sees it.
    """
    config = _config(bundle)
    keys = family_registry.recipe_model(plan["model_type"]).keys
    tier = get(config, "checkpointing.persistent.path")
    folder = _in_full(bundle, get(config, keys.training_dir) if keys.training_dir else None)
    if tier:
        yield "checkpoints", f"{tier.rstrip('/')}/{get(config, 'checkpointing.namespace')}"
    if plan["trainer"] == OPEN:
        yield from _of_open_trainer(bundle, plan, config, run_dir, has_tier=bool(tier))
    elif not tier and folder:
        yield "checkpoints", folder
    elif not tier and keys.training_dir and plan["trainer"] is None and run_dir:  # no image has a default of its own
        yield "checkpoints", str(run_dir / CHECKPOINT_DIR)
    yield from (("output", str(value)) for key in keys.results if (value := get(config, key)))


def _of_open_trainer(
    bundle: Bundle, plan: Mapping[str, Any], config: Mapping[str, Any], run_dir: Path | None, *, has_tier: bool
) -> Iterator[tuple[ResultKind, str]]:
    """Yield what `launcher.runtime.finetune` writes. Source: its `inputs` and `export`."""
    given = family_registry.open_recipe_of(plan["model_type"])
    training = (given.trained(config) if given else config)["training_config"]
    args, model = training["training_args"], training["model_config"]
    folder = _in_full(bundle, args["training_dir"])
    if not (folder or run_dir):
        return
    if not has_tier:
        yield "checkpoints", folder or str(run_dir and run_dir / CHECKPOINT_DIR)
    name = model["model_save_name"] or config["run"]["name"]
    if plan["rehearsal"]:
        name = f"rehearsal-{name.replace('/', '-')}"
    place = f"{folder or (run_dir and run_dir / 'model')}/{name}"
    is_full = args["strategy"]["fsdp_config"]["state_dict_type"] == "FULL_STATE_DICT"
    if model["peft_config"] or model["lora_checkpoint_file_path"]:
        yield "adapters", place
        if is_full or args.get("merge_weights"):
            yield "model", f"{place}/{_MERGED}"
    elif is_full or args["save_hf_ckpt"] or args["disable_ds_ckpt"]:
        yield "model", place


def _config(bundle: Bundle) -> Mapping[str, Any]:
    """Return the recipe as the job's processes read it, at one of its sizes."""
    configs = bundle.configs
    found: Mapping[str, Any] = yaml_io.load(configs[min(name for name in configs if name.endswith(".yaml"))])
    return found


def _in_full(bundle: Bundle, folder: str | None) -> str | None:
    """Return a folder that a recipe names; of a job on this machine it starts where the job was launched."""
    local = json.loads(bundle.files.get(LOCAL_FILE, "{}")).get("checkpoints")
    return (local or folder) if folder else None
