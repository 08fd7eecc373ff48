"""A model on the Hugging Face Hub: which files of it are fetched, and which commit a job trains."""

import fnmatch
import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from launcher.runtime import process_group
from launcher.runtime.durable import write_text
from launcher.runtime.finetune.weight_files import INDEX, PICKLED, indexed

RECORD = "base-model.json"
"""In the job's run folder: name, wanted revision and commit of the model."""
_DESCRIPTIONS = ("*.json", "*.jinja", "*.model", "*.txt")
_WEIGHTS = ("model*.safetensors", PICKLED)


class ModelMissing(ValueError):
    """The recipe names no model, or one that cannot be had."""


def wanted_files(files: Iterable[str], in_index: Collection[str] = ()) -> list[str]:
    """Return the files of a repository that training needs: descriptions, and the weights in one format.

    Folders, such as `original`, hold the same weights in other formats. Pickled weights are fetched where there are
    no safetensors files; transformers reads them.

    Args:
        files: Paths in the repository.
        in_index: The files of weights that its index names, if it has one.
    """
    top = sorted(file for file in files if "/" not in file)
    formats = (in_index, *(fnmatch.filter(top, pattern) for pattern in _WEIGHTS))
    weights = next(filter(None, formats), ())
    return [file for file in top if file in weights or any(fnmatch.fnmatch(file, each) for each in _DESCRIPTIONS)]


def commit_of(name: str, revision: str | None, run_dir: Path) -> str:
    """Return the commit of a model that this job trains, on all ranks. Collective.

    The first start records it: a branch may move before a restart, or between the downloads of two nodes.

    Args:
        name: On the Hub.
        revision: Branch, tag or commit; None for the default branch.
        run_dir: Of the job.

    Raises:
        ModelMissing: The Hub has no such model or revision, or is not reachable and the model not in its cache.
    """
    found = problem = ""
    if process_group.rank() == 0:
        try:
            found = _recorded(run_dir / RECORD, name, revision) or _resolved(name, revision)
            record = {"model": name, "revision": revision, "commit": found}
            run_dir.mkdir(parents=True, exist_ok=True)
            write_text(run_dir / RECORD, json.dumps(record) + "\n")
        except ModelMissing as error:
            problem = str(error)
    found, problem = process_group.share((found, problem))
    if problem:
        raise ModelMissing(problem)
    return found


def _recorded(file: Path, name: str, revision: str | None) -> str:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    if not isinstance(record, dict) or (record.get("model"), record.get("revision")) != (name, revision):
        return ""
    return str(record.get("commit") or "")


def _resolved(name: str, revision: str | None) -> str:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return str(HfApi().model_info(name, revision=revision).sha)
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code < 500:
            raise ModelMissing(_refused(name, revision, error)) from error
        reason: Exception = error
    except (OSError, OfflineModeIsEnabled, _transport_error()) as error:
        reason = error
    try:  # the Hub is not reachable: the copy on this node counts
        return Path(snapshot_download(name, revision=revision, local_files_only=True)).name
    except LocalEntryNotFoundError as error:
        message = f"model_name_or_path={name!r}: the Hub cannot be reached ({reason}), and this node has no copy"
        raise ModelMissing(message) from error


def _refused(name: str, revision: str | None, error: Exception) -> str:
    at = f" at model_revision={revision!r}" if revision else ""
    return (
        f"model_name_or_path={name!r}{at}: the Hub refuses it ({type(error).__name__}: {error}); correct the name or "
        "the revision, or give a token by run.hf_access_token"
    )


def _transport_error() -> type[Exception]:
    import httpx  # huggingface_hub's client

    return httpx.TransportError


def downloaded(name: str, commit: str) -> Path:
    """Return the folder of a commit in this node's cache; one rank of each node downloads what it lacks. Collective.

    Args:
        name: On the Hub.
        commit: As `commit_of` returns it.

    Raises:
        WeightsInvalid: The repository's index of weights is damaged.
    """
    from huggingface_hub import snapshot_download  # start-up time: a local folder does without

    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        _download(name, commit)
    process_group.barrier(process_group.patient_group())
    return Path(snapshot_download(name, revision=commit, local_files_only=True))


def _download(name: str, commit: str) -> None:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        siblings = HfApi().model_info(name, revision=commit).siblings or []
    except (HfHubHTTPError, OSError, OfflineModeIsEnabled, _transport_error()):
        return  # the copy on this node counts, which `downloaded` looks for
    files = [each.rfilename for each in siblings]
    index = indexed(Path(hf_hub_download(name, INDEX, revision=commit))) if INDEX in files else {}
    files = wanted_files(files, set(index.values()))
    snapshot_download(name, revision=commit, allow_patterns=[_literal(file) for file in files])


def _literal(name: str) -> str:
    """Return the pattern that matches a name alone."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in name)
