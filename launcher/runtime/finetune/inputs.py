"""Where the model, its tokenizer and the samples of a job come from: the recipe's, or those of a rehearsal."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.runtime import process_group
from launcher.runtime.finetune import hub
from launcher.runtime.finetune.architectures import is_hub_name, read_config, rehearsal_config
from launcher.runtime.finetune.data.preparation import prepare
from launcher.runtime.finetune.data.prepared import Prepared, load
from launcher.runtime.finetune.data.settings import CHANNELS, DataSettings
from launcher.runtime.finetune.hub import ModelMissing
from launcher.runtime.finetune.rehearsal_data import NUM_SAMPLES, VOCABULARY, write_rehearsal_data
from launcher.runtime.finetune.settings import Settings

REHEARSAL = "rehearsal"
"""Begins the name of every folder of a rehearsal's results."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a job reads.

    Args:
        tokenizer: Its folder.
        config: The model's configuration, as in config.json.
        weights: Folder of the model's weights; None for random ones.
        prepared: Folder for prepared samples.
        results: Their folder.
        is_rehearsal: Whether model and samples are made up.
        commit: Of a model on the Hub; empty for a folder.
    """

    data: DataSettings
    tokenizer: Path
    config: Mapping[str, Any]
    weights: Path | None
    prepared: Path
    results: Path
    is_rehearsal: bool
    commit: str = ""


def inputs_of(
    config: Mapping[str, Any],
    settings: Settings,
    run_dir: Path,
    *,
    rehearse: bool,
    model: str = "",
    samples: int | None = None,
) -> Inputs:
    """Return what a job reads. Collective: the first rank of the job, or of each node, writes what is missing.

    A rehearsal makes `samples` up, and its model has the architecture of the recipe's, or of the published `model`.

    Raises:
        ModelMissing: The recipe names no model that can be had.
        ModelUnknown: Its architecture is not known.
    """
    data = _with_channels(DataSettings.of(config["training_config"]))
    prepared = Path(data.data_dir) if data.data_dir else run_dir / "prepared"
    results = Path(os.environ.get("SM_MODEL_DIR") or settings.saving.folder or run_dir / "model")
    name = settings.model.save_name or settings.name
    if rehearse:
        made = process_group.of_first_rank(
            lambda: write_rehearsal_data(run_dir / REHEARSAL, data.technique, settings.seed, samples or NUM_SAMPLES)
        )
        small = rehearsal_config(settings.model.path, model or settings.name, VOCABULARY)
        data = replace(data, train_path=str(made.train_file), validation_path="", max_lost_share=1.0)
        folder = results / f"{REHEARSAL}-{name.replace('/', '-')}"
        return Inputs(data, made.tokenizer_folder, small, None, prepared, folder, is_rehearsal=True)
    folder, commit = model_folder(settings.model.path, settings.model.revision, run_dir)
    return Inputs(
        data, folder, read_config(folder), folder, prepared, results / name, is_rehearsal=False, commit=commit
    )


def prepared_data(inputs: Inputs, *, is_node_first: bool) -> Prepared:
    """Return the prepared samples. Collective: the first rank prepares them, and those of nodes that lack them."""
    patient = process_group.patient_group()

    def prepared_folder() -> Path:
        return prepare(inputs.data, inputs.tokenizer, inputs.prepared).folder

    folder = process_group.of_first_rank(prepared_folder, group=patient)
    if is_node_first and not folder.exists():
        prepared_folder()
    process_group.barrier(patient)
    return load(folder)


def model_folder(path: str, revision: str | None, run_dir: Path) -> tuple[Path, str]:
    """Return the folder of a model, and its commit, or "" for a folder of the user's. Collective.

    What is not a folder is a name on the Hub: `run_dir` then records the commit, which each node downloads.

    Raises:
        ModelMissing: There is no such folder, and it is not a name on the Hub that can be had.
    """
    if not path:
        raise ModelMissing("model_name_or_path is empty: give a model's folder, or its name on the Hugging Face Hub")
    if Path(path).is_dir():
        if revision:
            raise ModelMissing(f"model_revision={revision!r}: {path} is a folder here, and a folder has no revisions")
        return Path(path), ""
    if not is_hub_name(path):
        raise ModelMissing(f"model_name_or_path={path!r}: there is no such folder")
    found = hub.pinned(path, revision, run_dir)
    return hub.downloaded(path, found), found.commit


def _with_channels(data: DataSettings) -> DataSettings:
    """Return the settings with the folders of data channels where the recipe names no file."""
    found: dict[str, Any] = {}
    for key, channels in CHANNELS.items():
        folders = filter(None, (os.environ.get(f"SM_CHANNEL_{name.upper()}") for name in channels))
        found[key] = getattr(data, key) or next(folders, "")
    return replace(data, **found)
