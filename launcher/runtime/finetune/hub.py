"""A model on the Hugging Face Hub: which files of it are fetched, and which commit a job trains."""

import fnmatch
import glob
import json
import os
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.runtime import process_group
from launcher.runtime.durable import write_text
from launcher.runtime.finetune.architectures import CONFIG_FILE
from launcher.runtime.finetune.weight_files import INDEX, PICKLED, WeightsInvalid, indexed

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


def wanted_files(files: Iterable[str], in_index: Collection[str] = ()) -> list[str]:
    """Return the files of a repository that training needs: descriptions, and the weights in one format.

    Folders, such as `original`, hold the same weights in other formats. Pickled weights are fetched where there are
    no safetensors files; transformers reads them.

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

    Raises:
        ModelMissing: The Hub has no such model or revision, or is not reachable and the model not in its cache.
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
    import httpx  # huggingface_hub's client
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

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
    except (OSError, OfflineModeIsEnabled, LocalEntryNotFoundError, httpx.TransportError) as error:
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
