"""What this machine has for a job: room for its checkpoints, and where the job runs here, memory and packages."""

import errno
import importlib.metadata
import os
import platform
import shutil
import socket
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from launcher.checkpointing.architecture import UnknownArchitecture
from launcher.checkpointing.forecast import Forecast, forecast
from launcher.common import os_errors
from launcher.common.problems import Problem
from launcher.common.texts import counted, size_text
from launcher.model.backend_registry import described
from launcher.model.config_tree import get
from launcher.model.family_registry import interface, recipe_model
from launcher.model.finding import Answer, Question, ok, or_ok, warning
from launcher.pipeline import Prepared

DISK, MEMORY, PORTS, VERSIONS = "disk", "memory", "ports", "versions"
_KEPT = "training_config.training_args.max_ckpt_num"
_BUNDLE_BYTES = 2**20
"""Room for a bundle and the first lines of its log. Our own choice; most bundles take some 100 KiB."""
_FREE = "MemAvailable:"
"""Source: proc(5), /proc/meminfo."""
_AGENT = "hyperpod-elastic-agent"


def questions(prepared: Prepared) -> Iterator[Question]:
    """Yield the questions about this machine, as far as the job uses it."""
    backend = described(prepared.job.backend)
    if backend.runs_here or backend.files.are_shared(prepared.job.settings):
        yield Question(DISK, partial(_disk, prepared))
    if backend.runs_here:
        yield Question(MEMORY, partial(_memory, prepared))
        yield Question(PORTS, _ports)
        yield Question(VERSIONS, partial(_versions, prepared))


def _expected(prepared: Prepared) -> Forecast | None:
    """Return the forecast for the job's checkpoints; None if it is unknown. A rehearsal's are small."""
    if prepared.job.is_rehearsal:
        return None
    try:
        return forecast(prepared.checked)
    except UnknownArchitecture:
        return None


def _kept(prepared: Prepared) -> int:
    """Return how many checkpoints are kept, with the one that is written before the oldest is removed."""
    section = prepared.checked.recipe.checkpointing
    tier = section.persistent.retention if section and section.persistent else None
    kept = tier or get(prepared.job.scales[0].config, _KEPT)
    return 1 + (kept if isinstance(kept, int) else 1)


def _disk(prepared: Prepared) -> Iterator[Answer]:
    """Yield whether the folders of results and checkpoints can be written, and hold the checkpoints that are kept."""
    job, key = prepared.job, recipe_model(prepared.job.model_type).keys.training_dir
    folder = str(get(job.config, f"recipes.{key}") or "") if key else ""
    places = {"base_results_dir": job.base_results_dir}
    if folder and not folder.startswith("/opt/ml/"):
        places[f"recipes.{key}"] = Path(folder)
    for name, path in places.items():
        place, number = _nearest(job.cwd / path)
        if number:
            reason, remedy = os_errors.described(OSError(number, ""), place)
            yield Problem("E702", name, reason, value=str(path), remedy=remedy)
        elif name == list(places)[-1]:
            yield from _room(prepared, name, place)


def _nearest(folder: Path) -> tuple[Path, int | None]:
    """Return a folder, or the nearest above it that exists, and the error of writing there; None without one."""
    for place in (folder, *folder.parents):
        try:
            mode = place.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:  # such as no permission, or a name that is too long
            return place, error.errno
        return place, _refusal(place) if stat.S_ISDIR(mode) else errno.ENOTDIR
    return folder, errno.ENOENT


def _refusal(folder: Path) -> int | None:
    """Return the error of writing to a folder; None if this user may write there. Tries nothing."""
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return errno.EROFS
    return None if os.access(folder, os.W_OK | os.X_OK) else errno.EACCES


def _room(prepared: Prepared, key: str, place: Path) -> Iterator[Answer]:
    free, expected = shutil.disk_usage(place).free, _expected(prepared)
    has = f"{size_text(free)} free at {place}"
    refused = partial(
        Problem, "E433", key, value=str(place), remedy="make room there, or choose a location on another disk"
    )
    if expected is None:
        is_small = prepared.job.is_rehearsal
        size = "a rehearsal's checkpoints are small" if is_small else "the size of checkpoints is unknown"
        yield refused(f"{has}: not even a bundle fits") if free < _BUNDLE_BYTES else ok(DISK, f"{has}; {size}")
        return
    each, kept = expected.content.total_bytes, _kept(prepared)
    need = f"a checkpoint takes {size_text(each)}, and {kept} exist at a time"
    if free < each:
        yield refused(f"{has}, but {need}")
    elif free < kept * each:
        yield warning(DISK, f"{has}, but {need}", "make room there, or keep fewer checkpoints")
    else:
        yield ok(DISK, f"{has}; {need}")


def _memory(prepared: Prepared) -> Iterator[Answer]:
    """Yield whether the states of all ranks fit this machine's memory, if no accelerator holds them."""
    job, expected = prepared.job, _expected(prepared)
    with open("/proc/meminfo", encoding="ascii") as file:
        free = next(int(line.split()[1]) * 1024 for line in file if line.startswith(_FREE))
    ranks = job.max_nodes * job.nproc_per_node
    has = f"{size_text(free)} free, {counted(os.cpu_count() or 1, 'processor')} for {counted(ranks, 'rank')}"
    if expected is None:
        yield ok(MEMORY, has)
        return
    held = ranks * expected.share(job.max_nodes).held
    need = f"weights and optimizer of all ranks take {size_text(held)}"
    if held > free and not os.path.exists("/dev/nvidiactl"):
        yield warning(MEMORY, f"{has}, but {need}", "fewer ranks, sharded states, or rehearse=true")
    else:
        yield ok(MEMORY, f"{has}; {need}")


def _ports() -> Iterator[Answer]:
    """Yield whether processes can meet on the loopback address; each chooses a port that is free."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        yield ok(PORTS, "processes can meet on 127.0.0.1, each on a port that is free")
    except OSError as error:
        message, remedy = f"processes cannot meet on 127.0.0.1: {error.strerror or error}", "ip link set lo up"
        yield Problem("E434", "cluster", message, remedy=remedy)


def _versions(prepared: Prepared) -> Iterator[Answer]:
    """Yield the versions that act, and packages of versions that this launcher does not support."""
    from launcher import NAME

    needed = ("torch", _AGENT, *interface(prepared.job).needs)
    have = {name: version for name in dict.fromkeys(needed) if (version := _version(name))}
    try:
        required = importlib.metadata.requires(NAME) or []
    except importlib.metadata.PackageNotFoundError:
        required = []
    listed = ", ".join(f"{name} {version}" for name, version in have.items())
    wrong = [text.partition(";")[0].strip() for text in required if _is_unsupported(text, have)]
    faults = [warning(VERSIONS, f"{listed}: this launcher needs {each}", f"pip install '{each}'") for each in wrong]
    message = f"Python {platform.python_version()}, {listed or 'no package of the trainer'}"
    return or_ok(VERSIONS, faults, message)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_unsupported(text: str, have: dict[str, str]) -> bool:
    """Return whether a requirement of this launcher names an installed package of another version."""
    try:
        from packaging.requirements import Requirement
    except ImportError:  # a development machine has it; without, nothing is compared
        return False
    wanted = Requirement(text)
    return wanted.name in have and not wanted.specifier.contains(have[wanted.name], prereleases=True)
