"""A bundle records its code, data, image and packages; a job is launched once more, or what has changed is named."""

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ELASTIC, LLAMA, RATE, SHORT, composed, shipped

import launcher
from launcher import ProblemsFound
from launcher.api import reproducing
from launcher.api.session import Session
from launcher.bundle import store
from launcher.common import redaction
from launcher.common.names import METRICS_FILE, REPRODUCE_FILE, RUN_DIR
from launcher.model.backend_registry import descriptions
from launcher.model.config_tree import leaves
from launcher.model.family_registry import recipe_model
from launcher.reproduction import digests as digests_module
from launcher.reproduction.code import DIFF_BYTES, code_state
from launcher.reproduction.digests import Budget, combined, digests, file_digest
from launcher.reproduction.packages import versions

SCRIPT = ("training/custom/script", "cluster=local", "training_cfg.run.ntasks_per_node=1")
JOBS = {
    "local": ("tiny_lm_cpu", ELASTIC),
    "k8s": (LLAMA, ELASTIC),
    "slurm": (LLAMA,),
    "sm_jobs": (
        *(LLAMA, "cluster.sm_jobs_config.output_path=s3://bucket/out"),
        "cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/train",
    ),
    "sm_local": (LLAMA, "cluster.sm_jobs_config.output_path=s3://bucket/out", "rehearse=true"),
    "ray": (
        *("training/custom/script", "training_cfg.entry_script=/a.py", "cluster.address=http://127.0.0.1:1"),
        "training_cfg.run.ntasks_per_node=1",
    ),
}
"""A job for each choice of `cluster`."""
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----\n"


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(("git", *identity, "-C", folder, *words), check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path, recipes) -> Path:
    """Return a git repository with a script and a module, in which the tests' commands run."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "train.py").write_text("import lib.model\n")
    (tmp_path / "lib" / "model.py").write_text("WIDTH = 1\n")
    (tmp_path / ".gitignore").write_text("*.pt\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def rendered(recipes, *words: str) -> Path:
    before = set(Path("results").glob("*/bundle.json"))
    code, _, errors = recipes("render", *words)
    assert code == 0, errors
    (made,) = set(Path("results").glob("*/bundle.json")) - before
    return made.parent.absolute()


def script(recipes, *words: str) -> Path:
    return rendered(recipes, *SCRIPT, "training_cfg.entry_script=train.py", *words)


def record(folder: Path) -> dict:
    return json.loads((folder / REPRODUCE_FILE).read_text())


def changed(folder: Path) -> dict[str, list[str]]:
    found = reproducing.since(folder).sections
    return {name: [each.key for each in changes] for name, changes in found.items() if changes}


def test_a_clean_work_tree_is_its_revision(project, recipes):
    found = record(script(recipes))["code"]["script"]
    assert found["kind"] == "git" and found["revision"] == git(project, "rev-parse", "HEAD")
    assert found["files"] == {} and found["diff"] == ""


def test_changed_and_new_files_of_the_complete_work_tree_are_recorded_with_the_diff(project, recipes):
    (project / "lib" / "model.py").write_text("WIDTH = 2\n")
    (project / "new\nname.py").write_text("x = 1\n")
    (project / "weights.pt").write_text("ignored")
    (project / "train.py").unlink()
    (project / "train.py").symlink_to("lib/model.py")
    found = record(script(recipes))["code"]["script"]
    assert set(found["files"]) == {"lib/model.py", "new\nname.py", "train.py"}
    assert "+WIDTH = 2" in found["diff"] and "-WIDTH = 1" in found["diff"]


def test_a_secret_in_a_diff_is_masked(project, recipes, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "correct-horse-battery")
    redaction._process.read(os.environ, keep=False)
    (project / "train.py").write_text(
        f"TOKEN = '{TOKEN}'\npassword = 'correct-horse-battery'\nKEY = '''{KEY}'''\nlr = 0.1\n"
        "secret = (\n    'hunter2mmm'\n)\n"
    )
    folder = script(recipes)
    monkeypatch.delenv("DB_PASSWORD")
    redaction._process.read(os.environ, keep=False)
    diff = record(folder)["code"]["script"]["diff"]
    assert "+TOKEN" in diff and "+KEY" in diff and "+lr = 0.1" in diff
    for secret in (TOKEN, TOKEN[4:], "correct-horse", "MIIEvQ", "hunter2mmm"):
        assert not any(secret in each.read_text() for each in folder.rglob("*") if each.is_file()), secret


@pytest.mark.slow
def test_a_huge_diff_is_cut_and_its_files_still_count(project, recipes):
    big = project / "lib" / "model.py"
    lines = [f"X_{i} = {random.random()}\n" for i in range(90_000)]
    big.write_text("".join(lines))
    folder = script(recipes)
    found = record(folder)["code"]["script"]
    assert len(found["diff"].encode()) <= DIFF_BYTES and "is cut at 256 KiB" in found["note"]
    big.write_text("".join([*lines[:-1], "X = 2\n"]))
    assert changed(folder) == {"code": ["script/lib/model.py"]}


@pytest.mark.parametrize("variable", ["GIT_DIR", "GIT_INDEX_FILE", "GIT_CONFIG_COUNT"])
def test_the_variables_of_a_git_hook_do_not_lead_to_another_repository(project, recipes, monkeypatch, variable):
    monkeypatch.setenv(variable, "/nowhere" if "COUNT" not in variable else "many")
    assert record(script(recipes))["code"]["script"]["kind"] == "git"


def test_a_repository_starts_no_hook_viewer_or_monitor_when_it_is_read(project, recipes):
    marker = project.parent / "started"
    hook = project / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch '{marker}'\n")
    hook.chmod(0o755)
    for key in ("core.fsmonitor", "diff.external", "diff.mine.textconv", "core.pager"):
        git(project, "config", key, str(hook))
    (project / ".gitattributes").write_text("*.py diff=mine\n")
    (project / "lib" / "model.py").write_text("WIDTH = 3\n")
    assert "+WIDTH = 3" in record(script(recipes))["code"]["script"]["diff"]
    assert not marker.exists()


@pytest.mark.slow
def test_without_git_the_files_of_the_folder_count(tmp_path, recipes):
    (tmp_path / "train.py").write_text("x = 1\n")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "train.pyc").write_text("compiled")
    folder = script(recipes)
    found = record(folder)["code"]["script"]
    assert found["kind"] == "folder" and set(found["files"]) == {"train.py"}
    assert changed(folder) == {}  # its own bundle is no code
    (tmp_path / "train.py").write_text("x = 2\n")
    assert changed(folder) == {"code": ["script/train.py"]}


def test_a_repository_that_git_cannot_read_counts_by_its_files(project, recipes):
    (project / ".git" / "HEAD").write_text("nothing\n")
    found = record(script(recipes))["code"]["script"]
    assert found["kind"] == "folder" and found["note"].startswith("git: ") and "train.py" in found["files"]


def test_links_that_go_round_pipes_and_unreadable_files_do_not_stop_a_record(tmp_path, recipes):
    (tmp_path / "train.py").write_text("x = 1\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "round").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to("self")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"not-\xff-utf8")).write_text("x")
    secret = tmp_path / "unreadable"
    secret.write_text("x")
    secret.chmod(0)
    files = record(script(recipes))["code"]["script"]["files"]
    assert files["pipe"] == "not a regular file"
    assert files["self"].startswith("unreadable: ")
    assert os.geteuid() == 0 or files["unreadable"].startswith("unreadable: ")
    assert [name for name in files if name.endswith("train.py")] == ["train.py"]
    assert os.fsdecode(b"not-\xff-utf8") in files


def test_a_folder_with_too_many_files_is_bounded_and_says_so(tmp_path):
    for number in range(6):
        (tmp_path / str(number)).write_text("x")
    found = code_state(str(tmp_path), str(tmp_path / "results"), Budget(num_files=4))
    assert len(found["files"]) == 4 and "too many files" in found["note"]
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "first")
    found = code_state(str(tmp_path), str(tmp_path / "results"), Budget(num_files=4))
    assert found["kind"] == "git" and len(found["files"]) == 4 and "too many changed files" in found["note"]


def test_a_large_file_is_sampled_and_its_time_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(digests_module, "COMPLETE_BYTES", 10_000)
    path = tmp_path / "large"
    path.write_bytes(os.urandom(4_000_000))
    first = file_digest(str(path), Budget())
    assert first.startswith("sampled:") and file_digest(str(path), Budget()) == first
    seen = path.stat()
    with path.open("r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert file_digest(str(path), Budget()) != first
    os.utime(path)
    budget = Budget(num_bytes=100)
    assert file_digest(str(path), budget).startswith("sampled:")


def test_the_digest_of_a_folder_depends_on_names_and_content(tmp_path):
    (tmp_path / "a").write_text("1")
    before = combined(digests(str(tmp_path), Budget()))
    (tmp_path / "a").rename(tmp_path / "b")
    renamed = combined(digests(str(tmp_path), Budget()))
    (tmp_path / "b").write_text("2")
    assert len({before, renamed, combined(digests(str(tmp_path), Budget()))}) == 3


def test_versions_are_those_of_the_metadata():
    from importlib import metadata

    found = versions(("PyYAML", "pydantic_core", "no-such-package"))
    assert found["pyyaml"] == metadata.version("pyyaml")
    assert found["pydantic-core"] == metadata.version("pydantic-core") and "no-such-package" not in found
    assert versions(None).items() >= {key: found[key] for key in ("pyyaml", "python")}.items()


@pytest.mark.slow
def test_local_data_counts_by_its_content_and_an_output_folder_does_not(project, recipes):
    (project / "data").mkdir()
    (project / "data" / "part-1.jsonl").write_text("{}\n")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "data")
    arguments = "training_cfg.script_args=[{--data: data},{--output-dir: lib},{--later: made},{--lr: 0.1}]"
    folder = script(recipes, arguments)
    assert set(record(folder)["data"]) == {"recipes.training_cfg.script_args.data"}
    (project / "made").mkdir()
    (project / "made" / "result.pt").write_text("x")
    assert changed(folder) == {}
    (project / "data" / "part-1.jsonl").write_text('{"a": 1}\n')
    found = changed(folder)
    assert found["data"] == ["recipes.training_cfg.script_args.data/part-1.jsonl"]


@pytest.mark.slow
def test_the_data_of_a_recipe_counts_and_a_model_on_the_hub_has_no_known_revision(recipes, tmp_path):
    data = tmp_path / "train.jsonl"
    data.write_text(json.dumps({"messages": [{"role": "user", "content": "a"}]}) + "\n")
    model = "meta-llama/Llama-3.1-8B-Instruct"
    prefix = "recipes.training_config"
    words = (f"{prefix}.model_config.model_name_or_path={model}", f"{prefix}.datasets.train_data.file_path={data}")
    folder = rendered(recipes, LLAMA, "cluster=local", *words)
    found = record(folder)["data"]
    assert found[f"{prefix}.datasets.train_data.file_path"]["digest"].startswith("sha256:")
    assert found[f"{prefix}.model_config.model_name_or_path"]["kind"] == "hub"
    assert any("does not have its revision" in note for note in reproducing.since(folder).notes)
    with data.open("a") as file:
        file.write(data.read_text())
    assert changed(folder) == {"data": [f"{prefix}.datasets.train_data.file_path.digest"]}


@pytest.mark.slow
@pytest.mark.crossed
@pytest.mark.parametrize("cluster", [each.choice for each in descriptions()])
def test_a_job_of_every_cluster_compiles_to_the_same_bytes_and_with_an_override_to_others(recipes, cluster):
    folder = rendered(recipes, *JOBS[cluster], f"cluster={cluster}")
    comparison = reproducing.since(folder)
    assert comparison.changes == ()
    found = reproducing.rerun(folder, {"training_config.training_args.learning_rate": 0.25})
    assert found.comparison.changes == ()
    again = found.write()
    assert again.directory != folder and again.directory.parent == folder.parent
    old, new = (store.read(each)[0].files for each in (folder, again.directory))
    text = new["recipe.yaml"].replace(again.job_name, folder.name)
    assert "0.25" in text and text != old["recipe.yaml"]


@pytest.mark.slow
def test_a_bundle_gives_the_same_bytes_again_whoever_compiles_it(project, recipes):
    folder = script(recipes, "training_cfg.script_args=[{--lr: 0.1}]")
    found = reproducing.rerun(folder, session=Session(suffix=lambda: "aaaaa"))
    again = found.write(name="second")
    name = folder.name
    old = {path: (folder / path).read_text() for path in store.read(folder)[0].files if path != "bundle.json"}
    new = {path: (again.directory / path).read_text() for path in old}
    assert {path: text.replace(again.job_name, name) for path, text in new.items()} == {
        path: text.replace("dry_run: true", "dry_run: false").replace("- dry_run=true\n", "")
        for path, text in old.items()
    }
    assert store.locate("second") == Path("results", again.job_name)


def test_a_launched_job_is_the_same_but_for_its_mlflow_run(recipes, tmp_path, monkeypatch):
    folder = rendered(recipes, "training/tiny/tiny_lm_cpu", "cluster=local")
    store.assign_run(store.read(folder)[0], "0123456789abcdef0123456789abcdef")
    assert changed(folder) == {}


@pytest.mark.slow
def test_an_edited_recipe_is_named_by_its_key(recipes, tmp_path):
    recipe = tmp_path / "mine.yaml"
    text = "defaults:\n  - /recipes/training/tiny/tiny_lm_cpu@_here_\n  - _self_\nrun: {name: %s}\n"
    recipe.write_text(text % "then")
    folder = rendered(recipes, "mine.yaml")
    recipe.write_text(text % "now")
    assert "recipes.run.name" in changed(folder)["configuration"]
    recipe.unlink()
    with pytest.raises(ProblemsFound):
        reproducing.rerun(folder)


def test_another_content_of_a_file_that_no_configuration_explains_is_named(recipes, monkeypatch):
    from launcher.bundle import render

    folder = rendered(recipes, SHORT, "cluster=k8s")
    monkeypatch.setattr(render.access, "files", lambda job: {"manifests/job.yaml": "kind: Other\n"})
    monkeypatch.setattr(render.plan_report, "plan_markdown", lambda job: "other\n")
    assert changed(folder) == {"files": ["plan.md"]}


@pytest.mark.slow
def test_rerun_names_changed_code_exits_with_2_and_writes_nothing(project, recipes):
    folder = script(recipes)
    before = sorted(Path("results").iterdir())
    (project / "lib" / "model.py").write_text("WIDTH = 2\n")
    code, out, errors = recipes("rerun", folder.name, "dry_run=true")
    assert code == 2 and "+ code script/lib/model.py: sha256:" in out
    assert "\nE731 " in f"\n{errors}" and "--allow-changes" in errors
    assert sorted(Path("results").iterdir()) == before
    code, out, _ = recipes("rerun", folder.name, "dry_run=true", "--allow-changes")
    assert code == 0 and len(list(Path("results").iterdir())) == len(before) + 1


@pytest.mark.slow
def test_rerun_of_the_same_reports_so_and_takes_the_folder_it_was_launched_from(
    project, recipes, monkeypatch, tmp_path_factory
):
    folder = script(recipes)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    code, _, errors = recipes("rerun", str(folder), "dry_run=true", "training_cfg.script_args=[{--lr: 0.5}]")
    assert code == 0 and "compiles to the same bytes" in errors
    (new,) = set(folder.parent.iterdir()) - {folder}
    assert str(project / "train.py") in (new / "plan.json").read_text() + "".join(
        each.read_text() for each in new.rglob("*") if each.is_file()
    )
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.slow
def test_rerun_with_a_bad_override_or_name_writes_nothing(project, recipes):
    folder = script(recipes)
    for words, code in ((["trainer.num_nodes=two"], "E102"), (["--name", "not a name"], "E717")):
        assert recipes("rerun", folder.name, "dry_run=true", *words)[0] == 2
        assert list(Path("results").iterdir()) == [Path("results", folder.name)], code
    assert recipes("rerun", "nothing")[2].startswith("E703")


@pytest.mark.slow
def test_a_bundle_of_an_earlier_version_has_no_record_and_is_compiled_nevertheless(project, recipes):
    folder = script(recipes)
    (folder / REPRODUCE_FILE).unlink()
    (project / "train.py").write_text("changed\n")
    code, _, errors = recipes("rerun", folder.name, "dry_run=true")
    assert code == 0 and "has no record of its code" in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": 1}', '{"format": 1, "sources": 3}', pytest.param("[" * 100_000, id="nested")]
)
def test_a_damaged_record_is_a_problem(project, recipes, text):
    folder = script(recipes)
    (folder / REPRODUCE_FILE).write_text(text)
    assert recipes("rerun", folder.name, "dry_run=true")[2].startswith("E711")


def test_references_to_secrets_are_recorded_so_that_the_job_compiles_again(recipes):
    reference = "recipes.run.hf_access_token={secretKeyRef: {name: hub, key: token}}"
    folder = rendered(recipes, SHORT, "cluster=k8s", reference)
    assert reference in record(folder)["sources"]["overrides"]
    assert changed(folder) == {}


def test_an_override_whose_value_was_hidden_is_asked_for(recipes):
    folder = rendered(recipes, SHORT, "cluster=k8s")
    fields = record(folder)
    fields["sources"]["overrides"].append("recipes.run.hf_access_token…")
    (folder / REPRODUCE_FILE).write_text(json.dumps(fields))
    assert recipes("rerun", folder.name, "dry_run=true")[2].startswith("E732")


@pytest.mark.slow
def test_an_image_without_a_digest_is_said_to_be_unknown(recipes):
    digest = f"sha256:{'0' * 64}"
    for image, is_known in (("me/image:1", False), (f"me/image@{digest}", True)):
        folder = rendered(recipes, SHORT, "cluster=k8s", f"container={image}")
        assert record(folder)["image"].get("digest") == (digest if is_known else None)
        assert any("has no digest" in note for note in reproducing.since(folder).notes) is not is_known


def metrics_of(folder: Path, *losses: float) -> None:
    (folder / RUN_DIR).mkdir()
    lines = [json.dumps({"step": i, "time": 1.0 * i, "loss": loss, "loader": None}) for i, loss in enumerate(losses)]
    (folder / RUN_DIR / METRICS_FILE).write_text("\n".join([*lines, '{"step": 9, "lo']))


@pytest.mark.slow
def test_two_jobs_differ_in_configuration_code_and_metrics(project, recipes):
    one = script(recipes, "training_cfg.script_args=[{--lr: 0.1}]")
    (project / "train.py").write_text("import lib.model  # changed\n")
    two = script(recipes, "training_cfg.script_args=[{--lr: 0.2}]")
    metrics_of(one, 3.0, 1.0, 2.0)
    metrics_of(two, 3.0, 0.5, float("nan"))
    code, out, _ = recipes("diff", one.name, two.name, "--json", "--exit-code")
    found = json.loads(out)
    assert code == 1
    assert [each["key"] for each in found["sections"]["code"]] == ["script/train.py"]
    metrics = {each["key"]: (each["before"], each["after"]) for each in found["sections"]["metrics"]}
    assert metrics == {"loss.last": ("2", "nan"), "loss.lowest": ("1", "0.5")}
    assert [each["key"] for each in found["sections"]["configuration"]] == ["recipes.training_cfg.script_args"]
    code, out, _ = recipes("diff", one.name, two.name)
    lines = out.splitlines()
    assert lines[:2] == [f"--- {one.name}", f"+++ {two.name}"] and "+ metrics loss.lowest: 0.5" in lines
    comparison = launcher.Job(one).diff(launcher.Job(two))
    assert [each.key for each in comparison.sections["code"]] == ["script/train.py"]


@pytest.mark.slow
def test_two_launches_of_the_same_job_do_not_differ(project, recipes):
    one, two = script(recipes), script(recipes)
    assert reproducing.of_jobs(one, two).changes == ()


@pytest.mark.slow
def test_names_with_line_breaks_and_control_characters_stay_in_their_line(project, recipes):
    folder = script(recipes)
    (project / "a\n+ code\x1b[31m.py").write_text("x")
    code, out, _ = recipes("diff", folder.name)
    assert code == 0 and "\x1b" not in out and "\n+ code\n" not in out
    assert len([line for line in out.splitlines() if line.startswith("+ ")]) == 1


@pytest.mark.slow
def test_a_launch_renews_the_record_and_the_digest_stays(project, recipes):
    from launcher.reproduction import record as records

    folder = script(recipes)
    digest = store.read(folder)[0].digest
    (project / "train.py").write_text("changed before the launch\n")
    records.renew(store.read(folder)[0])
    assert set(record(folder)["code"]["script"]["files"]) == {"train.py"}
    assert store.read(folder)[0].digest == digest
    shutil.copytree(folder, folder.parent / "copied")
    assert changed(folder) == {}


@pytest.mark.whole_job
def test_a_job_runs_again_from_another_folder_and_its_metrics_are_compared(
    project, recipes, tmp_path_factory, monkeypatch
):
    pytest.importorskip("hyperpod_elastic_agent")
    (project / "train.py").write_text(
        "import json, os, sys\n"
        "with open(os.path.join(os.environ['RECIPES_RUN_DIR'], 'metrics.jsonl'), 'a') as file:\n"
        "    file.write(json.dumps({'step': 1, 'loss': float(sys.argv[2]), 'cwd': os.getcwd()}) + '\\n')\n"
    )
    given = {"training_cfg.entry_script": "train.py", "training_cfg.run.ntasks_per_node": 1}
    arguments = "training_cfg.script_args"
    plan = launcher.compile(
        SCRIPT[0], [*(f"{key}={value}" for key, value in given.items()), f"{arguments}=[{{--rate: 3}}]"]
    )
    first = plan.submit()
    first.result(timeout=120)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert first.changed().changes == ()
    second = first.rerun([f"{arguments}=[{{--rate: 2}}]"], name="second")
    second.result(timeout=120)
    assert second.metrics()[0]["cwd"] == str(project)
    changes = {each.key: (each.before, each.after) for each in first.diff(second).sections["metrics"]}
    assert changes["loss.last"] == ("3", "2")
    assert first.diff(second.folder).changes == first.diff(second).changes
    with pytest.raises(ProblemsFound, match="E703"):
        first.diff("an unknown job")
    (project / "train.py").write_text("other\n")
    with pytest.raises(ProblemsFound, match="E731"):
        first.rerun()


@pytest.mark.slow
def test_each_key_of_a_family_s_inputs_is_one_of_its_recipes():
    known: dict[type, set[str]] = {}
    for entry in shipped():
        known.setdefault(recipe_model(entry.model_type), set()).update(
            path for path, _ in leaves(composed(entry.name).tree["recipes"])
        )
    for family, paths in known.items():
        assert set(family.keys.inputs) <= paths, family


def test_the_rate_of_an_elastic_job_is_one_changed_key(recipes):
    one = rendered(recipes, SHORT, "cluster=k8s", ELASTIC)
    two = rendered(recipes, SHORT, "cluster=k8s", ELASTIC, f"{RATE}=0.3")
    found = reproducing.of_jobs(one, two).sections["configuration"]
    assert {each.key for each in found} >= {RATE}
