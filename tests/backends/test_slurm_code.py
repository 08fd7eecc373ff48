"""The code that a job on Slurm runs: a folder, a snapshot of it, or a revision of a repository."""

import os
import subprocess
import sys

import pytest
import slurm_cluster
from background import await_true
from conftest import rendered, written
from log_texts import log_texts
from test_slurm_jobs import SCRIPT, finished
from test_slurm_rendering import PUBLISHED, files, problem

from launcher import pipeline
from launcher.backends.slurm import code
from launcher.backends.slurm.backend import SlurmBackend
from launcher.common.names import RUN_DIR
from launcher.common.problems import ProblemsFound
from launcher.job_store import registry
from launcher.model.job_spec import JobState

JOB = (*SCRIPT, "training_cfg.entry_script=show.py", "training_cfg.run.nodes=1", f"cluster.python={sys.executable}")
SHOW = "import os; print(open('text.txt').read().strip(), os.getcwd())"


def git(folder, *words):
    """Run git as somebody; return its output."""
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    return subprocess.run(
        ("git", "-C", folder, *who, *words), check=True, capture_output=True, text=True
    ).stdout.strip()


def repository(folder, **texts):
    """Make a repository with a commit of files; return the commit."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"show.py": SHOW, "text.txt": "first", **texts}.items():
        (folder / name).write_text(text)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=first")
    return git(folder, "rev-parse", "HEAD")


def placed(bundle):
    """Copy the code of a bundle's job; return its folder."""
    source = code.of_bundle(bundle)
    code.place(source, bundle.directory)
    return bundle.directory / code.CODE_DIR


@pytest.mark.slow
def test_a_snapshot_has_what_git_tracks_or_would_track(tmp_path):
    top = tmp_path / "work tree"
    commit = repository(top, **{".gitignore": "*.bin\n", "gone.py": "", "run me.sh": "#!/bin/sh\n"})
    (top / "run me.sh").chmod(0o755)
    (top / "gone.py").unlink()
    (top / "big.bin").write_text("ignored")
    (top / "new\nline.py").write_text("untracked")
    (top / "link").symlink_to("text.txt")
    (top / "text.txt").write_text("changed")
    repository(top / "nested", only="nested")
    cwd = top / "inside"
    cwd.mkdir()
    other = written(cwd, *JOB, "recipes.run.name=other")
    (other.directory.parent / "mlflow.db").write_text("results")
    folder = placed(written(cwd, *JOB, "cluster.code=snapshot"))
    tree = folder / "tree"
    nested = {"nested/show.py", "nested/text.txt", "nested/only"}
    assert {str(path.relative_to(tree)) for path in tree.rglob("*") if not path.is_dir()} == {
        *(".gitignore", "run me.sh", "new\nline.py", "link", "text.txt", "show.py"),
        *nested,
    }
    assert (tree / "text.txt").read_text() == "changed" and (tree / "link").is_symlink()
    assert os.access(tree / "run me.sh", os.X_OK)
    assert (folder / "cwd").resolve() == tree / "inside"
    assert (folder / "revision.txt").read_text() == f"{commit} {top}\n"
    assert "-first\n" in (folder / "changes.diff").read_text()
    assert folder.stat().st_mode & 0o077 == 0


def test_a_snapshot_names_what_is_neither_a_file_nor_a_link(tmp_path):
    top = tmp_path / "tree"
    repository(top, **{".gitignore": "*.sock\nbuild/\n", "tracked.py": ""})
    (top / "tracked.py").unlink()
    for name in ("tracked.py", "new/pipe", "own.sock", "build/pipe"):
        (top / name).parent.mkdir(exist_ok=True)
        os.mkfifo(top / name)
    bundle = written(top, *JOB, "cluster.code=snapshot")
    source = code.of_bundle(bundle)
    left_out = code.place(source, bundle.directory)
    assert left_out == ["tracked.py is a FIFO", "new/pipe is a FIFO"]
    tree = bundle.directory / code.CODE_DIR / "tree"
    assert (tree / "show.py").is_file() and not (tree / "tracked.py").exists() and not (tree / "new/pipe").exists()


def test_a_work_tree_without_a_commit_has_a_snapshot_too(tmp_path):
    git(tmp_path, "init", "--quiet")
    (tmp_path / "show.py").write_text("")
    folder = placed(written(tmp_path, *JOB, "cluster.code=snapshot"))
    assert (folder / "revision.txt").read_text() == f"no commit {tmp_path}\n"
    assert [path.name for path in (folder / "tree").iterdir()] == ["show.py"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "second"),
        (("git.branch=old",), "first"),
        (("git.branch=main", "git.commit=tagged"), "first"),
    ],
    ids=["newest", "branch", "commit"],
)
@pytest.mark.parametrize("is_relative", [True, False], ids=["path", "url"])
def test_a_revision_is_checked_out_without_its_history(tmp_path, words, expected, is_relative):
    first = repository(tmp_path / "their repo")
    git(tmp_path / "their repo", "tag", "tagged")
    git(tmp_path / "their repo", "branch", "old")
    (tmp_path / "their repo" / "text.txt").write_text("second")
    git(tmp_path / "their repo", "commit", "--quiet", "--all", "--message=second")
    address = "their repo" if is_relative else (tmp_path / "their repo").as_uri()
    bundle = written(tmp_path, *JOB, f"git.repo_url_or_path='{address}'", *words)
    folder = placed(bundle)
    assert (folder / "cwd" / "text.txt").read_text() == expected
    assert not (folder / "tree" / ".git").exists()
    assert ((folder / "revision.txt").read_text() == f"{first} {address}\n") is (expected == "first")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "key", "message"),
    [
        (("git.repo_url_or_path=absent",), "git.repo_url_or_path", "does not exist"),
        (("git.repo_url_or_path='ext::sh -c touch% pwned'",), "git.repo_url_or_path", "not allowed"),
        (("git.repo_url_or_path='--upload-pack=touch pwned'",), "git.repo_url_or_path", "does not exist"),
        (("git.repo_url_or_path=.", "git.branch=absent"), "git.repo_url_or_path", "not found"),
        (("git.repo_url_or_path=.", "git.commit=absent"), "git.commit", "Needed a single revision"),
    ],
    ids=["absent", "program", "option", "branch", "commit"],
)
def test_what_git_cannot_fetch_is_a_problem(tmp_path, words, key, message):
    repository(tmp_path)
    bundle = written(tmp_path, *JOB, *words)
    with pytest.raises(ProblemsFound, match="E460") as error:
        placed(bundle)
    assert error.value.problems[0].path == key
    assert message in error.value.problems[0].message
    assert not list(tmp_path.rglob("*pwned*"))
    assert not list((bundle.directory / RUN_DIR).iterdir())


def test_a_token_goes_to_its_server_alone_and_into_no_file_or_argument(tmp_path, monkeypatch):
    monkeypatch.setenv("MINE", "s3cret")
    words = ("git.repo_url_or_path=https://example.org/a/b.git", "git.token={env: MINE}")
    bundle = written(tmp_path, *JOB, *words)
    assert not [name for name, text in bundle.files.items() if "s3cret" in text]
    assert "MINE" not in bundle.files["slurm/node.sh"]  # the job does not need it
    env = {**os.environ, "GIT_TERMINAL_PROMPT": "0", **code._credentials("https://example.org/a/b.git", "MINE")}
    assert not [
        value for name, value in env.items() if "s3cret" in value and name not in ("MINE", "RECIPES_GIT_TOKEN")
    ]
    for host, is_known in (("example.org", True), ("elsewhere.org", False)):
        asked = f"protocol=https\nhost={host}\n\n"
        done = subprocess.run(("git", "credential", "fill"), input=asked, env=env, capture_output=True, text=True)
        assert ("password=s3cret" in done.stdout) is is_known, done
    assert code._credentials("http://example.org/a", "MINE") == code._credentials("host:path", "MINE") == {}


def test_code_that_is_too_large_is_a_problem_and_leaves_nothing(tmp_path, monkeypatch):
    repository(tmp_path, data="x" * 5000)
    monkeypatch.setattr(code, "MOST_BYTES", 4000)
    for words in (("cluster.code=snapshot",), ("git.repo_url_or_path=.",)):
        bundle = written(tmp_path, *JOB, *words, f"recipes.run.name=job{len(words[0])}")
        with pytest.raises(ProblemsFound, match="E459") as error:
            placed(bundle)
        assert "the largest files are data," in error.value.problems[0].message
        assert not list((bundle.directory / RUN_DIR).iterdir())


@pytest.mark.parametrize(
    ("words", "code_", "key", "text"),
    [
        (("git.branch=main",), "E443", "git.branch", "names no repository"),
        (("git.entry_script=train.py",), "E443", "git.entry_script", "is relative"),
        (("git.update_adapter=true",), "E443", "git.update_adapter", "start script"),
        (("cluster.code=folder", "git.repo_url_or_path=x"), "E461", "cluster.code", "one of them"),
        (("cluster.code=snapshot",), "E458", "cluster.code", "git init"),
    ],
    ids=["branch", "script", "adapter", "both", "no work tree"],
)
def test_keys_of_code_that_do_not_fit_are_problems(tmp_path, words, code_, key, text):
    found = problem(tmp_path, *PUBLISHED, *words)
    assert (found.code, found.path) == (code_, key)
    assert text in str(found)


@pytest.mark.parametrize(
    ("script", "words", "is_refused"),
    [
        ("{here}/show.py", ("cluster.code=snapshot",), True),
        ("{here}/show.py", ("cluster.code=folder",), False),
        ("/elsewhere/show.py", ("cluster.code=snapshot",), False),
        ("~/show.py", ("cluster.code=folder", "cluster.ssh=login"), True),
        ("~/show.py", ("cluster.code=folder",), False),
    ],
    ids=["in the work tree", "in the folder", "elsewhere", "home there", "home here"],
)
def test_a_script_of_this_machine_would_not_be_run_from_the_copy(tmp_path, script, words, is_refused):
    repository(tmp_path)
    all_words = (*JOB, f"training_cfg.entry_script='{script.format(here=tmp_path)}'", *words)
    if is_refused:
        found = problem(tmp_path, *all_words)
        assert (found.code, found.path) == ("E461", "recipes.training_cfg.entry_script")
    else:
        files(tmp_path, *all_words)


def test_a_relative_script_on_another_machine_starts_in_its_folder(tmp_path):
    words = (*JOB, "cluster.code=folder", "cluster.ssh=login", "cluster.ssh_folder='my jobs'")
    node = files(tmp_path, *words)["slurm/node.sh"]
    assert """cd -- "$HOME"/'my jobs'\n""" in node and "\nshow.py " in node
    assert str(tmp_path) not in node
    absolute = files(tmp_path, *words, "cluster.ssh_folder=/fsx/me")["slurm/node.sh"]
    assert "cd -- /fsx/me\n" in absolute


@pytest.mark.parametrize(
    ("words", "copied"),
    [
        ((*PUBLISHED, "cluster.ssh=login"), None),
        ((*PUBLISHED, "cluster.code=snapshot"), "here"),
        ((*JOB, "cluster.ssh=login"), "here"),
        (JOB, None),
    ],
    ids=["image elsewhere", "image with a snapshot", "script elsewhere", "script here"],
)
def test_the_record_of_a_job_names_the_folder_that_is_copied(tmp_path, words, copied):
    repository(tmp_path)
    bundle = rendered(tmp_path, *words)
    assert (code.CODE_FILE in bundle.files) == (copied is not None)
    assert bundle.sources.code.get("folder") == (copied and str(tmp_path))


def test_a_repository_replaces_the_code_of_an_image(tmp_path):
    own = files(tmp_path, *PUBLISHED, "git.repo_url_or_path=https://example.org/a.git", "git.entry_script=src/t.py")
    node = own["slurm/node.sh"]
    assert '"$bundle"/run/code/cwd/src/t.py' in node
    variables = '. "${RECIPES_RUN_DIR%/run}/slurm/variables.sh"'
    assert f"""'cd -- "$RECIPES_RUN_DIR/code/cwd"\n{variables}\nexec "$@"'""" in node
    module = files(tmp_path, *PUBLISHED, "git.entry_module=mine.train")["slurm/node.sh"]
    assert "-m mine.train" in module and "code/cwd" not in module


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm_cluster.used(tmp_path_factory.mktemp("slurm"), num_nodes=2) as cluster:
        yield cluster


def output(record):
    """Return the first line that a job printed."""
    return next(iter(log_texts(SlurmBackend(), record.handle, follow=False)))


@pytest.mark.whole_job
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("cluster.code=folder",), "later"),
        (("cluster.code=snapshot",), "edited"),
        (("git.repo_url_or_path=.",), "first"),
    ],
    ids=["folder", "snapshot", "revision"],
)
def test_a_later_edit_changes_a_queued_job_in_a_folder_alone(cluster, tmp_path, words, expected):
    repository(tmp_path)
    (tmp_path / "text.txt").write_text("edited")
    record = pipeline.submit(
        written(tmp_path, *JOB, "cluster.additional_parameters={hold: true}", *words), SlurmBackend()
    )
    await_true(lambda: SlurmBackend().status(record.handle).state is JobState.PENDING)
    (tmp_path / "text.txt").write_text("later")
    cluster.command("scontrol", "release", record.handle.native_id)
    finished(record)
    text, folder = output(record).split(" ", 1)
    assert text == expected
    assert (folder == str(tmp_path)) is (expected == "later")


@pytest.mark.whole_job
def test_code_that_cannot_be_copied_submits_nothing(cluster, tmp_path):
    bundle = written(tmp_path, *JOB, "git.repo_url_or_path=absent")
    with pytest.raises(ProblemsFound, match="E460"):
        pipeline.submit(bundle, SlurmBackend())
    assert registry.read(bundle.directory) is None
    assert not cluster.command("squeue", "--noheader").strip()
