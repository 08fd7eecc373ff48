"""A job's output: the model and other files of all hosts combined, and the failure reason.

Source: How Amazon SageMaker Processes Training Output; Amazon SageMaker API, OutputDataConfig.
"""

import contextlib
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from launcher.backends.sagemaker.request import output_uri
from launcher.backends.sagemaker_local import files
from launcher.backends.sagemaker_local.objects import Stores
from launcher.backends.sagemaker_local.optml import Host
from launcher.backends.sagemaker_local.record import MOST_REASON
from launcher.runtime.file_kinds import irregular

MODEL, DATA = "model", "output/data"
"""Folders of /opt/ml that are uploaded."""

Merged: TypeAlias = dict[str, tuple[Host, Path]]
"""A folder of /opt/ml of all hosts together: path inside it to the entry's host and real path, sorted."""

_COMPRESSION = 6
"""Level of gzip: its default, a fifth slower than the fastest level, with output a tenth smaller."""


def gather(hosts: Sequence[Host], folder: str) -> tuple[Merged, list[str]]:
    """Return the contents of a folder, and messages about entries that several hosts have: the first's is kept."""
    found: Merged = {}
    clashes = []
    for host in hosts:
        top, dropped = host.root / folder, set()
        for path in _below(top):
            name = str(path.relative_to(top))
            if name.rpartition("/")[0] in dropped:
                dropped.add(name)  # below a file of another host, which has been reported
            elif name not in found:
                found[name] = (host, path)
            elif not (_is_folder(path) and _is_folder(found[name][1])):
                dropped.add(name)
                clashes.append(f"{folder}/{name} is on {found[name][0].name} and on {host.name}: the first is kept")
    return dict(sorted(found.items())), clashes


def archive(entries: Merged, path: Path) -> None:
    """Write a merged folder to a .tar.gz."""
    with tarfile.open(path, "w:gz", compresslevel=_COMPRESSION) as tar:
        for name, (_, source) in entries.items():
            tar.add(source, arcname=name, recursive=False, filter=_as_root)


def publish(request: Mapping[str, Any], hosts: Sequence[Host], stores: Stores, scratch: Path) -> list[str]:
    """Upload a job's output to the request's location, each object atomically; return messages for the user.

    Archives are in `scratch` while they are written.

    Raises:
        ProblemsFound: The store refuses.
        OSError: This machine's disk refuses.
    """
    base, is_plain = output_uri(request), request["OutputDataConfig"].get("CompressionType") == "NONE"
    model, model_clashes = gather(hosts, MODEL)
    data, data_clashes = gather(hosts, DATA)
    if is_plain:
        lost = _put_files(model, f"{base}/model", stores)
    else:
        lost = _put_archive(MODEL, model, f"{base}/model.tar.gz", stores, scratch)
    lost += _put_archive(DATA, data, f"{base}/output.tar.gz", stores, scratch)
    return [*model_clashes, *data_clashes, *lost]


def failure_reason(hosts: Iterable[Host], code: int) -> str:
    """Return why a job's program failed: the message of the first of these hosts that wrote one, or the exit code."""
    for host in hosts:
        path = host.led(host.root / "output" / "failure")
        # A FIFO would block the job's end. A character has at most four bytes.
        with contextlib.suppress(OSError), files.open_regular(str(path)) as file:
            if text := file.read(4 * MOST_REASON).decode(errors="replace"):
                return text[:MOST_REASON]
    return f"AlgorithmError: , exit code: {code}"


def _put_files(entries: Merged, base: str, stores: Stores) -> list[str]:
    """Upload files, and the files that links lead to; return messages about entries that are not files."""
    lost = []
    for name, (host, path) in entries.items():
        source = host.led(path)
        if source.is_file():
            stores.put(source, f"{base}/{name}")
        elif kind := irregular(path, follow_links=False) or ("a link to no file" if path.is_symlink() else None):
            lost.append(f"{MODEL}/{name} is {kind}, which a store cannot hold, so it is left out")
    return lost


def _put_archive(folder: str, entries: Merged, uri: str, stores: Stores, scratch: Path) -> list[str]:
    """Upload a folder as an archive; return messages about entries that an archive cannot hold."""
    if not entries:
        return []
    path = scratch / uri.rpartition("/")[2]
    try:
        archive(entries, path)
        stores.put(path, uri)
    finally:
        path.unlink(missing_ok=True)
    kinds = {name: irregular(source, follow_links=False) for name, (_, source) in entries.items()}
    return [f"{folder}/{name} is {kind}, so it is left out of the archive" for name, kind in kinds.items() if kind]


def _below(top: Path) -> Iterator[Path]:
    """Yield the entries below a folder, each folder before its contents."""
    if not _is_folder(top):
        return
    for path in sorted(top.iterdir()):
        yield path
        yield from _below(path)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return an archive's member as a container would write it; None for sockets and FIFOs."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member if member.isreg() or member.isdir() or member.issym() or member.islnk() else None
