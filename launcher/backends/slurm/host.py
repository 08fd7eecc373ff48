"""A login node that is reached by ssh: bundles are copied there, and what their jobs write is copied back.

What a job has written is copied into its bundle's run folder, each time only what is new. Where both machines have
rsync, that copies; otherwise a script there answers with what files have gained.
"""

import contextlib
import functools
import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from launcher.backends.slurm import code, programs
from launcher.backends.slurm.code import CODE_DIR
from launcher.backends.slurm.place import HERE, Place
from launcher.backends.slurm.programs import Answer
from launcher.backends.slurm.run_files import Wanted
from launcher.backends.slurm.ssh import ENV_CONFIG, Connection
from launcher.bundle.manifest import MANIFEST
from launcher.common.locks import locked
from launcher.common.names import RUN_DIR
from launcher.common.paths import PACKAGE, package_files
from launcher.common.problems import fail
from launcher.common.templating import render_template
from launcher.model.job_spec import Bundle

DIGITS = 12
"""Digits of a digest in the name of a job, an array or a folder on a login node."""
_KEY = "cluster.ssh_folder"
_EXISTS = 'for path; do [[ -d $path ]]; printf "%d" "$?"; done'
_REPLACE = 'cd -- "$1" && printf %s "$3" > ".$2.$$" && mv -T -- ".$2.$$" "$2"'
_GROWING = (".jsonl", ".log", ".err")
"""Ends of names of files that only grow; others are replaced, and copied completely each time."""
_MOST_BYTES = 32 * 2**20
"""Bytes of one answer; more answers follow until nothing is missing."""
_LOCK = ".mirror.lock"
_FETCH_S = 600.0
"""Time limit of one answer."""


class LoginNode(Place):
    """A login node and a folder there, in the file system that its cluster's nodes share.

    Every method raises ProblemsFound if the node is not reached or the connection was lost (E455), or if it refuses
    the login (E456).

    Args:
        name: `user@host`, or a name from the configuration of OpenSSH.
        folder: The folder; relative to the user's home there.
    """

    poll_s = 1.0

    def __init__(self, name: str, folder: str):
        self.name = name
        self._connection = Connection(name)
        self._folder = folder

    @property
    def user(self) -> str:
        """Name of the user there."""
        return self._connection.login.user

    def run(
        self, *words: str, folder: str | None = None, env: Mapping[str, str] | None = None, text: str = ""
    ) -> Answer:
        """Run a command of Slurm there and return its answer."""
        done = self._connection.run(
            words, folder=folder or "", env=env, data=text.encode(), timeout_s=programs.PATIENCE_S
        )
        if done.code in programs.NOT_STARTED:
            return programs.not_started(words[0], done.code, self.name)
        return programs.answer(words[0], done.code, done.out.decode(errors="replace"), done.error)

    def folder_of(self, bundle_dir: Path) -> str:
        """Return the folder there of a bundle's copy; E703 if the bundle is damaged."""
        return f"{self._root}/{unique_name(bundle_dir)}"

    @property
    def _root(self) -> str:
        return self._folder if self._folder.startswith("/") else f"{self._connection.login.home}/{self._folder}"

    @property
    def _package(self) -> str:
        """Folder there of this launcher, which has the digest of its files."""
        return f"{self._root}/.launcher/{_package_digest()}"

    def send(self, bundle: Bundle) -> str:
        """Copy a bundle, its code, and this launcher there, unless they exist; E457 if they cannot be written."""
        source, target, package = bundle.directory.resolve(), self.folder_of(bundle.directory), self._package
        found = self._connection.run(("bash", "-c", _EXISTS, "bash", target, package)).out.decode()
        if found[1:] != "0":
            self._unpack(package, ((PACKAGE, PACKAGE.name),), is_new=False)
        if found[:1] != "0":
            files = [(source / name, name) for name in bundle.files]
            self._unpack(target, (*files, (source / RUN_DIR, RUN_DIR)), is_new=False)
        if code.of_bundle(bundle):
            self._unpack(f"{target}/{CODE_DIR}", ((source / CODE_DIR, "."),), is_new=True)
        return target

    def send_array(self, folder: Path, bundles: Sequence[Bundle]) -> str:
        """Copy the folder of an array there, beside the bundles; its links lead to their copies."""
        target = f"{self._root}/{folder.parent.name}/{folder.name}"
        files = [(path, path.name) for path in folder.iterdir() if not path.is_symlink()]
        links = {str(task): f"../../{unique_name(each.directory)}" for task, each in enumerate(bundles)}
        self._unpack(target, files, links, is_new=True)
        return target

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the variable with which the nodes find the copy of this launcher."""
        return {"RECIPES_PYTHONPATH": self._package}

    def fetch(self, bundle_dir: Path, files: Wanted) -> None:
        """Copy what files of a job have gained into the bundle's run folder."""
        refresh(self._connection, f"{self.folder_of(bundle_dir)}/{RUN_DIR}", bundle_dir / RUN_DIR, files)

    def put(self, bundle_dir: Path, name: str, text: str) -> None:
        """Replace a file in the job's run folder there atomically; E457 if that cannot be written."""
        folder = f"{self.folder_of(bundle_dir)}/{RUN_DIR}"
        self._change(("bash", "-c", _REPLACE, "bash", folder, name, text))

    def remove(self, bundle_dir: Path, names: Sequence[str]) -> None:
        """Remove files of an earlier job from the run folder, there and here; E457 if that cannot be written."""
        HERE.remove(bundle_dir, names)
        folder = f"{self.folder_of(bundle_dir)}/{RUN_DIR}"
        self._change(("rm", "-f", "--", *(f"{folder}/{name}" for name in names)))

    def _unpack(
        self, target: str, parts: Iterable[tuple[Path, str]], links: Mapping[str, str] | None = None, *, is_new: bool
    ) -> None:
        """Copy files and folders, and make links, in a folder there, which appears complete or not at all."""
        with tempfile.TemporaryFile() as archive:
            _pack(archive, parts, links or {})
            words = ("bash", "-c", render_template("slurm/ssh_send.sh.j2"), "bash", target)
            self._change((*words, "again" if is_new else "once"), archive)

    def _change(self, words: Sequence[str], data: bytes | IO[bytes] = b"") -> None:
        """Run a command that writes files there, or raise why they cannot be written (E457)."""
        done = self._connection.run(words, data=data)
        if done.code:
            said = "; ".join(done.error.strip().splitlines()[-2:]) or f"exit code {done.code}"
            remedy = "a folder that you may write, in the file system that the cluster's nodes share"
            raise fail("E457", _KEY, f"cannot be written on {self.name}: {said}", value=self._folder, remedy=remedy)


@functools.cache
def _login_node(name: str, folder: str, _: str | None) -> LoginNode:
    return LoginNode(name, folder)


def place_of(cluster: Mapping[str, Any]) -> Place:
    """Return where the jobs of a `cluster` section are submitted and followed."""
    # A name means another node in another configuration of OpenSSH.
    config = os.environ.get(ENV_CONFIG)
    return _login_node(cluster["ssh"], cluster["ssh_folder"], config) if cluster.get("ssh") else HERE


@contextlib.contextmanager
def damage_refused(bundle_dir: Path) -> Iterator[None]:
    """Raise a Problem if files of a bundle that are read within the block are missing or damaged (E703)."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise fail("E703", str(bundle_dir), f"is not a bundle directory: {error}") from error


def unique_name(bundle_dir: Path) -> str:
    """Return the name of a bundle's job with a digest, by which no other bundle's job is taken for it."""
    with damage_refused(bundle_dir):
        manifest = json.loads((bundle_dir / MANIFEST).read_text(encoding="utf-8"))
        return f"{manifest['job_name']}-{manifest['digest'][:DIGITS]}"


def _pack(archive: IO[bytes], parts: Iterable[tuple[Path, str]], links: Mapping[str, str]) -> None:
    """Write a compressed archive of links, files and folders, without what Python compiled and what jobs write."""
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=3) as packed:
        for path, name in parts:
            packed.add(path, arcname=name, recursive=name != RUN_DIR, filter=_anonymous)
        for name, target in links.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            packed.addfile(link)
    archive.seek(0)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if "__pycache__" in entry.name.split("/"):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


@functools.cache
def _package_digest() -> str:
    digest = hashlib.sha256()
    for path in package_files():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(PACKAGE)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:DIGITS]


def refresh(connection: Connection, folder: str, run_dir: Path, files: Wanted) -> None:
    """Copy what files of a run folder there have gained into the run folder here."""
    run_dir.mkdir(exist_ok=True)
    # Other commands that follow the same job would copy the same bytes.
    with locked(run_dir / _LOCK, flags=os.O_WRONLY | os.O_CREAT):
        if _synchronised(connection, folder, run_dir, files):
            return
        while _fetch(connection, folder, run_dir, files):
            pass


def _synchronised(connection: Connection, folder: str, run_dir: Path, files: Wanted) -> bool:
    """Copy files by rsync; return whether that was possible."""
    names = b"".join(os.fsencode(place) + b"\0" for place in files.places)
    growing = [pattern for pattern in files.patterns if pattern.endswith(_GROWING)]
    # Without the first copy both sides would read the whole of each log to find what is new. It leaves out files that
    # are shorter than before, which the second copies, as it does those that are replaced.
    for patterns, options in ((growing, ("--append",)), (files.patterns, ())):
        # In a pattern, * is any part of a path, as for find.
        wanted = [f"--include=/{pattern.replace('*', '**')}" for pattern in patterns]
        filters = ("--ignore-missing-args", "--include=*/", *wanted, "--exclude=*")
        if not connection.rsync((*options, *filters), folder, run_dir, names):
            return False
    return True


def _fetch(connection: Connection, folder: str, run_dir: Path, files: Wanted) -> bool:
    """Copy the next part; return whether more follows."""
    sizes = "".join(f"{size} {path}\0" for path, size in _sizes(run_dir, files))
    marker = os.urandom(16).hex()
    arguments = (folder, marker, str(_MOST_BYTES), *files.patterns, "--", *files.places)
    words = ("bash", "-c", render_template("slurm/ssh_fetch.sh.j2", growing=_GROWING), "bash", *arguments)
    done = connection.run(words, data=os.fsencode(sizes), timeout_s=_FETCH_S)
    return _written(done.out, marker.encode(), run_dir)


def _sizes(run_dir: Path, files: Wanted) -> Iterator[tuple[str, int]]:
    """Yield path and size of each file that is here and only grows."""
    for place in files.places:
        top = run_dir / place
        for path in top.rglob("*") if top.is_dir() else (top,):
            if path.suffix in _GROWING and path.is_file():
                yield str(path.relative_to(run_dir)), path.stat().st_size


def _written(answer: bytes, marker: bytes, run_dir: Path) -> bool:
    """Write the parts of an answer; return whether more follows. An incomplete part is left for the next time."""
    while True:
        line, found, answer = answer.partition(b"\0")
        fields = line.decode(errors="surrogateescape").split(" ", 4)
        if not found or fields[0] == "end":
            return found != b"" and fields[1] != "0"
        kind, start, count, time, path = fields
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or not parts:
            raise fail("E455", "cluster.ssh", "names a file outside the job's folder", value=path)
        target = run_dir / path
        if kind == "d":
            target.mkdir(parents=True, exist_ok=True)
            continue
        content, answer = answer[: int(count)], answer[int(count) :]
        if not answer.startswith(marker):
            return False  # the file was shortened meanwhile
        answer = answer[len(marker) :]
        _write(target, int(start), content, float(time))


def _write(path: Path, start: int, content: bytes, time_s: float) -> None:
    """Write a part of a file that grows, or the whole of one that is replaced, which is read by others meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_growing = path.suffix in _GROWING
    target = path if is_growing else path.with_name(f".{path.name}.partial")
    with target.open("r+b" if is_growing and start and path.exists() else "wb") as file:
        file.seek(start)
        file.write(content)
    os.utime(target, (time_s, time_s))
    if not is_growing:
        target.replace(path)
