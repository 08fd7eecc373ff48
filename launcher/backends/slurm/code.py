"""The code that a job runs, copied into its bundle's run folder before submission: later edits do not change the job.

    run/code/tree           the files: of a revision, or of the work tree that the job was launched from
    run/code/cwd            link to the folder of it in which processes start
    run/code/revision.txt   the commit, and where it comes from
    run/code/changes.diff   what the work tree changes in it

It is not part of the bundle's digest: reading it at each rendering would cost seconds, and each launch has its own
bundle. A bundle that is launched again copies the code again.
"""

import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from launcher.backends.slurm.options import slurm_options
from launcher.bundle.manifest import MANIFEST
from launcher.common import os_errors, variables
from launcher.common.names import RUN_DIR
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.model.backend_registry import described
from launcher.model.config_tree import get
from launcher.model.job_spec import Bundle, JobSpec
from launcher.model.work_tree import git_environment, work_tree
from launcher.runtime import file_kinds

CODE_FILE = "slurm/code.json"
"""In a bundle: where its job's code comes from; absent if processes start where the code is."""
CODE_DIR = f"{RUN_DIR}/code"
"""Folder of the code in a bundle."""
CWD = f"{CODE_DIR}/cwd"
"""Folder in which the processes of a job with code start."""
MOST_BYTES = 500 * 2**20
"""Limit of a job's code."""
_KEY = "cluster.code"
_REPOSITORY = "git.repo_url_or_path"
_SCRIPT = "recipes.training_cfg.entry_script"
_LARGEST = 3
_DRAFT = ".code-"
_PROTOCOLS = "file:git:http:https:ssh"
_HELPER = '!f() { echo username=oauth2; echo "password=$RECIPES_GIT_TOKEN"; }; f'
"""Answers git's question for a password from its environment. Source: gitcredentials(7)."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a job's code comes from.

    Args:
        repository: Address or folder of a repository; None for the work tree of `folder`.
        branch: None for the repository's default.
        commit: None for the branch's newest.
        token: Variable of this process's environment that holds the token of the repository; None without.
        folder: Folder that the job is launched from.
    """

    repository: str | None
    branch: str | None
    commit: str | None
    token: str | None
    folder: str


def source_of(job: JobSpec) -> Source | None:
    """Return where a job's code comes from; None if its processes start where the code is, or it is in the image."""
    repository = get(job.config, _REPOSITORY)
    if not repository and described(job.backend).files.code_folder(job.settings, job.trainer) is None:
        return None
    token = get(job.config, "git.token") or {}
    branch, commit = get(job.config, "git.branch"), get(job.config, "git.commit")
    return Source(repository, branch, commit, token.get("env"), str(job.cwd))


def problems(job: JobSpec) -> Iterator[Problem]:
    """Yield why a job's code cannot be copied, and a script that would not be run from the copy. Runs no program."""
    source = source_of(job)
    is_snapshot = source is not None and source.repository is None
    top = work_tree(job.cwd.resolve())
    if is_snapshot and top is None:
        yield from no_work_tree(job.cwd).problems
    script = Path(get(job.config, _SCRIPT) or "")
    is_here = script.parts[:1] == ("~",) and slurm_options(job).ssh is not None
    if is_here or (is_snapshot and top and script.expanduser().is_absolute() and top in script.expanduser().parents):
        message = "is a path of this machine, where the job does not run it"
        yield Problem("E461", _SCRIPT, message, value=str(script), allowed="a path relative to the current folder")


def as_file(source: Source) -> str:
    """Return the content of CODE_FILE."""
    return json.dumps(asdict(source), indent=2) + "\n"


def of_bundle(bundle: Bundle) -> Source | None:
    """Return where the code of a bundle's job comes from; None if it is not copied."""
    text = bundle.files.get(CODE_FILE)
    return Source(**json.loads(text)) if text else None


def place(source: Source, bundle_dir: Path) -> list[str]:
    """Copy a job's code into its bundle, atomically; it replaces that of an earlier job.

    Returns the entries of the work tree that a copy cannot hold and git does not ignore, each with what it is.

    Raises:
        ProblemsFound: There is no work tree (E458), the code is too large (E459), git fails (E460), or the disk
            refuses (E702).
    """
    target = bundle_dir / CODE_DIR
    left_out: list[str] = []
    with os_errors.refusing("E702", _KEY, target):
        target.parent.mkdir(exist_ok=True)
        for left in target.parent.glob(f"{_DRAFT}*"):  # by a launch that was killed
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix=_DRAFT, dir=target.parent) as draft:  # with mode 0700
            made = Path(draft) / "new"
            made.mkdir(mode=0o700)
            if source.repository:
                revision, cwd = _check_out(source, source.repository, made / "tree"), Path()
            else:
                revision, cwd, left_out = _snapshot(Path(source.folder), made, bundle_dir.parent)
            (made / "cwd").symlink_to("tree" / cwd)
            (made / "revision.txt").write_text(f"{revision}\n", encoding="utf-8", errors="surrogateescape")
            if target.exists():
                target.rename(Path(draft) / "old")
            made.rename(target)
    return left_out


def _check_out(source: Source, repository: str, tree: Path) -> str:
    """Check a revision out, without its history; return its commit, and where it comes from."""
    address = repository if _is_address(repository) else str(Path(source.folder) / Path(repository).expanduser())
    words = ["clone", "--quiet", "--no-checkout", *(("--depth=1",) if not source.commit else ())]
    words += [f"--branch={source.branch}"] if source.branch else []
    _git(*words, "--", address, str(tree), key=_REPOSITORY, env=_credentials(address, source.token))
    name = f"{source.commit or 'HEAD'}^{{commit}}"
    commit = _git("-C", str(tree), "rev-parse", "--verify", "--end-of-options", name, key="git.commit").strip()
    _git("-C", str(tree), "checkout", "--quiet", "--detach", commit, key=_REPOSITORY)
    shutil.rmtree(tree / ".git")
    files = (path for path in tree.rglob("*") if not path.is_dir())
    _refuse_large({path.relative_to(tree): path.lstat().st_size for path in files}, _REPOSITORY)
    return f"{commit} {repository}"


def _is_address(repository: str) -> bool:
    """Return whether a repository is on a server. Source: git-clone(1), Git URLs."""
    host, colon, _ = repository.partition(":")
    return "://" in repository or bool(colon and "/" not in host)


def _snapshot(folder: Path, made: Path, results: Path) -> tuple[str, Path, list[str]]:
    """Copy what git tracks, and what it neither tracks nor ignores, from the work tree of a folder.

    Returns its commit, and where it comes from; the folder in it; and the entries that are left out because they are
    neither files nor links.
    """
    top = work_tree(folder.resolve())
    if top is None:
        raise no_work_tree(folder)
    here, results = folder.resolve(), results.resolve()
    files = {path: (top / path).lstat() for path in _files(top) if not _is_result(top / path, results, here)}
    _refuse_large({path: seen.st_size for path, seen in files.items()}, _KEY)
    tree = made / "tree"
    (tree / here.relative_to(top)).mkdir(parents=True, exist_ok=True)
    for path, seen in files.items():
        if stat.S_ISREG(seen.st_mode) or stat.S_ISLNK(seen.st_mode):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(top / path, tree / path, follow_symlinks=False)
    commit = _git("-C", str(top), "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True).strip()
    diff = ("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD")
    changes = _git("-C", str(top), *diff) if commit else ""
    (made / "changes.diff").write_text(changes, encoding="utf-8", errors="surrogateescape")
    left_out = _irregular(top, lambda path: _is_result(path, results, here))
    return f"{commit or 'no commit'} {top}", here.relative_to(top), left_out


def _irregular(top: Path, is_result: Callable[[Path], bool]) -> list[str]:
    """Return the FIFOs, sockets and devices of a work tree that git does not ignore; it does not list them itself."""
    options = ("--others", "--ignored", "--exclude-standard", "--directory")
    ignored = {top / name.rstrip("/") for name in _git("-C", str(top), "ls-files", "-z", *options).split("\0")[:-1]}
    found = {}
    for where, folders, names in os.walk(top):
        here = Path(where)
        folders[:] = [each for each in folders if each != ".git" and here / each not in ignored]
        for path in sorted(here / name for name in names):
            if (kind := file_kinds.irregular(path, follow_links=False)) and not is_result(path):
                found[str(path.relative_to(top))] = kind
    skipped = (
        _git("-c", "core.quotePath=false", "-C", str(top), "check-ignore", "--", *found, may_fail=True).splitlines()
        if found
        else ()
    )
    return [f"{name} is {kind}" for name, kind in found.items() if name not in skipped]


def no_work_tree(folder: Path) -> ProblemsFound:
    """Return the Problem of a folder of which no snapshot can be taken."""
    message = "the folder that you launch from is not in a git work tree, so no snapshot of it can be taken"
    remedy = "git init there, or cluster.code=folder: processes start in a folder that has the code"
    return fail("E458", _KEY, message, value=str(folder), remedy=remedy)


def _files(top: Path) -> Iterator[Path]:
    """Yield the existing files of a work tree and its submodules that git does not ignore, relative to it."""
    listed = _git("-C", str(top), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in dict.fromkeys(listed.split("\0")[:-1]):
        path = top / name
        if path.is_dir() and not path.is_symlink():
            if (path / ".git").exists():
                yield from (Path(name) / each for each in _files(path))
        elif os.path.lexists(path):
            yield Path(name)


def _is_result(path: Path, results: Path, folder: Path) -> bool:
    """Return whether a file is in the folder of bundles, or in a bundle if that folder has the code too."""
    if results not in path.parents:
        return False
    if results not in (folder, *folder.parents):
        return True
    own = results / path.relative_to(results).parts[0]
    return own.name.startswith(".") or (own / MANIFEST).exists()


def _refuse_large(sizes: Mapping[Path, int], key: str) -> None:
    """Raise a Problem if a job's code is too large (E459)."""
    total = sum(sizes.values())
    if total <= MOST_BYTES:
        return
    largest = sorted(sizes, key=lambda path: -sizes[path])[:_LARGEST]
    shown = ", ".join(map(str, largest))
    message = f"the code is {total / 2**20:.0f} MiB; the largest files are {shown}"
    allowed = f"at most {MOST_BYTES / 2**20:.0f} MiB"
    remedy = "name data in .gitignore, or put the code on the cluster and set cluster.code=folder"
    raise fail("E459", key, message, allowed=allowed, remedy=remedy)


def _credentials(repository: str, token: str | None) -> dict[str, str]:
    """Return the variables by which git logs in to a server with a token, and to no other; none without a token."""
    address = urlsplit(repository)
    if not token or address.scheme != "https":
        return {}
    own = f"credential.https://{address.netloc}.helper"
    pairs = (("credential.helper", ""), (own, _HELPER))  # no helper of the user's stores the token
    named = {f"GIT_CONFIG_KEY_{i}": key for i, (key, _) in enumerate(pairs)}
    values = {f"GIT_CONFIG_VALUE_{i}": value for i, (_, value) in enumerate(pairs)}
    password = variables.current().get(token, "")
    return {"GIT_CONFIG_COUNT": str(len(pairs)), "RECIPES_GIT_TOKEN": password, **named, **values}


def _git(*words: str, key: str = _KEY, env: Mapping[str, str] | None = None, may_fail: bool = False) -> str:
    """Run git, which asks no question, and return its output.

    Args:
        key: The key that a failure is about (E460).
        may_fail: Whether a failure is an answer too, an empty one.
    """
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": _PROTOCOLS, "GIT_OPTIONAL_LOCKS": "0"}
    full = {"GIT_SSH_COMMAND": "ssh -o BatchMode=yes", **git_environment(), **quiet, **(env or {})}
    try:
        done = subprocess.run(("git", *words), env=full, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise fail("E460", key, "git is not installed on this machine") from error
    if done.returncode and not may_fail:
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        raise fail("E460", key, "git: " + ("; ".join(lines[-2:]) or f"exit code {done.returncode}"))
    return "" if done.returncode else os.fsdecode(done.stdout)
