"""Where the model, its tokenizer and the samples of a job come from: the recipe's, or those of a rehearsal."""

import fnmatch
import glob
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from launcher.runtime import process_group
from launcher.runtime.durable import write_text
from launcher.runtime.finetune.architectures import CONFIG_FILE, read_config, rehearsal_config
from launcher.runtime.finetune.data.preparation import prepare
from launcher.runtime.finetune.data.prepared import Prepared, load
from launcher.runtime.finetune.data.settings import CHANNELS, DataSettings
from launcher.runtime.finetune.rehearsal_data import NUM_SAMPLES, VOCABULARY, write_rehearsal_data
from launcher.runtime.finetune.settings import Settings
from launcher.runtime.finetune.weight_files import INDEX, PICKLED, WeightsInvalid, indexed
from launcher.runtime.model_configs import is_on_hub

REHEARSAL = "rehearsal"
"""Begins the name of every folder of a rehearsal's results."""
RECORD = "base-model.json"
"""In the job's run folder: name, wanted revision, commit and files of the model."""
_DESCRIPTIONS = ("*.json", "*.jinja", "*.model", "*.txt")
_SERVER_FAILS = 500
"""The first HTTP status that blames the server."""
_LATER = (408, 429)
"""Statuses below it that ask for another try: a timeout, too many requests."""
_WEIGHTS = ("model*.safetensors", PICKLED)


class ModelMissing(ValueError):
    """The recipe names no model, or one that cannot be had."""


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
        ModelMissing: The folder does not exist, and the Hub has no such model, or is not reachable.
    """
    if not path:
        raise ModelMissing("model_name_or_path is empty: give a model's folder, or its name on the Hugging Face Hub")
    if Path(path).is_dir():
        if revision:
            raise ModelMissing(f"model_revision={revision!r}: {path} is a folder here, and a folder has no revisions")
        return Path(path), ""
    if not is_on_hub(path):
        raise ModelMissing(f"model_name_or_path={path!r}: there is no such folder")
    found = pinned(path, revision, run_dir)
    return downloaded(path, found), found.commit


def _with_channels(data: DataSettings) -> DataSettings:
    """Return the settings with the folders of data channels where the recipe names no file."""
    found: dict[str, Any] = {}
    for key, channels in CHANNELS.items():
        folders = filter(None, (os.environ.get(f"SM_CHANNEL_{name.upper()}") for name in channels))
        found[key] = getattr(data, key) or next(folders, "")
    return replace(data, **found)


def wanted_files(files: Iterable[str], in_index: Collection[str] = ()) -> list[str]:
    """Return the files of a repository that training needs: descriptions, and the weights in one format.

    Folders, such as `original`, hold the same weights in other formats. Pickled weights are fetched where safetensors
    files are missing; transformers reads them.

    `in_index` are the files of weights that the index of the repository names, if it has one.
    """
    top = sorted(file for file in files if "/" not in file)
    formats = (in_index, *(fnmatch.filter(top, pattern) for pattern in _WEIGHTS))
    weights = next(filter(None, formats), ())
    return [file for file in top if file in weights or any(fnmatch.fnmatch(file, each) for each in _DESCRIPTIONS)]


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a job trains of a model on the Hub: a commit of its repository, and the files that are fetched of it."""

    commit: str
    files: tuple[str, ...]


def pinned(name: str, revision: str | None, run_dir: Path) -> Pinned:
    """Return commit and files of the model that this job trains, on all ranks. Collective.

    The first start records them in `run_dir`: a branch may move before a restart, or between two nodes' downloads.
    """

    def pin() -> Pinned:
        try:
            found = _recorded(run_dir / RECORD, name, revision) or _resolved(name, revision)
        except WeightsInvalid as error:
            raise ModelMissing(str(error)) from error
        record = {"model": name, "revision": revision} | asdict(found)
        run_dir.mkdir(parents=True, exist_ok=True)
        write_text(run_dir / RECORD, json.dumps(record) + "\n")
        return found

    return process_group.of_first_rank(pin, ModelMissing)


def _recorded(file: Path, name: str, revision: str | None) -> Pinned | None:
    """Return what an earlier start recorded; None without a readable record of this model."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        is_same = (record["model"], record["revision"]) == (name, revision)
        return Pinned(str(record["commit"]), tuple(map(str, record["files"]))) if is_same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _resolved(name: str, revision: str | None) -> Pinned:
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    from huggingface_hub.errors import HTTPError as NotReached  # type: ignore[attr-defined]  # of its client

    try:
        info = HfApi().model_info(name, revision=revision)
        hf_hub_download(name, CONFIG_FILE, revision=revision)  # the cache then knows the branch's commit
        commit, files = str(info.sha), [each.rfilename for each in info.siblings or ()]
        index = indexed(Path(hf_hub_download(name, INDEX, revision=commit))) if INDEX in files else {}
        return Pinned(commit, tuple(wanted_files(files, set(index.values()))))
    except (HfHubHTTPError, HFValidationError) as error:
        response = getattr(error, "response", None)
        if isinstance(error, HfHubHTTPError) and (
            response is None or response.status_code >= _SERVER_FAILS or response.status_code in _LATER
        ):
            return _cached(name, revision, error)
        at = f" at model_revision={revision!r}" if revision else ""
        raise ModelMissing(
            f"model_name_or_path={name!r}{at}: the Hub refuses it ({type(error).__name__}: {error}); correct the "
            "name or the revision, or give a token by run.hf_access_token"
        ) from error
    except (OSError, NotReached) as error:  # offline mode is an OSError
        return _cached(name, revision, error)


def _cached(name: str, revision: str | None, reason: Exception) -> Pinned:
    """Return what this node's cache holds of a model while the Hub is not reachable."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, CONFIG_FILE, revision=revision)
    if not isinstance(found, str):
        raise ModelMissing(
            f"model_name_or_path={name!r}: the Hub cannot be reached ({reason}), and this node has no copy"
        ) from reason
    folder = Path(found).parent
    files = [str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()]
    index = indexed(folder / INDEX) if INDEX in files else {}
    return Pinned(folder.name, tuple(wanted_files(files, set(index.values()))))


def downloaded(name: str, found: Pinned) -> Path:
    """Return the folder of a model in this node's cache; one rank of a node downloads what it lacks. Collective."""
    from huggingface_hub import snapshot_download  # start-up time: a local folder does without

    patterns = [glob.escape(file) for file in found.files]
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        snapshot_download(name, revision=found.commit, allow_patterns=patterns)
    process_group.barrier(process_group.patient_group())
    return Path(snapshot_download(name, revision=found.commit, allow_patterns=patterns, local_files_only=True))
