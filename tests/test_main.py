"""The command line as a user meets it: a process, its output and its exit code."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ELASTIC, LLAMA, LLAMA_K8S, ROOT


def main(*arguments, cwd, **variables):
    return subprocess.run(
        [sys.executable, ROOT / "main.py", *arguments],
        cwd=cwd, env=os.environ | variables, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def test_dry_run_prints_the_plan_and_writes_the_bundle(tmp_path):
    result = main(*LLAMA_K8S, ELASTIC, "dry_run=true", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].endswith("HyperPodPyTorchJob on ml.p5.48xlarge, 1 to 16 nodes")
    assert lines[4].split() == ["3", "24", "5", "on", "16,", "6", "on", "8", "6", "x", "1", "0.0004", "uneven"]
    assert "14 files" in lines[-1] and "next: kubectl apply -f results/llama-3-1-8b-instruct-" in lines[-1]
    (bundle,) = (tmp_path / "results").iterdir()
    assert len(files(bundle)) == 14 + 2  # and two folders


@pytest.mark.parametrize(
    "arguments",
    [
        ("recipes.elastic_polcy.is_elastic=true", *LLAMA_K8S),
        (f"recipes={LLAMA[:-2]}",),
        ("cluster=slurm",),
        ("recipes.trainer.devices=two",),
        ("a=[",),
        ("~cluster.nothing",),
    ],
    ids=["key", "recipe", "cluster", "type", "syntax", "delete"],
)
def test_a_mistake_is_exit_code_2_no_traceback_and_no_file(tmp_path, arguments):
    result = main(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == "" and "Traceback" not in result.stderr
    assert "nothing was written or submitted" in result.stderr
    assert files(tmp_path) == []


def test_debug_shows_the_traceback(tmp_path):
    assert "Traceback" in main("debug=true", "a=1", cwd=tmp_path).stderr


def test_an_untracked_dry_run_imports_neither_mlflow_nor_torch_nor_kubernetes(tmp_path):
    code = (
        "import sys; sys.argv = ['main.py', *sys.argv[1:]]; from launcher import run;"
        "assert run.main(sys.argv[1:]) == 0;"
        "heavy = {'mlflow', 'torch', 'kubernetes', 'boto3', 'typer', 'httpx', 'numpy'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, *LLAMA_K8S, ELASTIC, "dry_run=true"], cwd=tmp_path, check=True)


def test_k8s_without_dry_run_writes_the_bundle_and_says_that_nothing_was_submitted(tmp_path):
    result = main(*LLAMA_K8S, cwd=tmp_path)
    assert result.returncode == 2
    assert "kubectl apply -f" in result.stderr and "nothing was submitted" in result.stderr
    assert len(list((tmp_path / "results").iterdir())) == 1


def test_hydra_s_own_flags_work_from_any_folder(tmp_path):
    shown = main("--cfg", "job", *LLAMA_K8S, cwd=tmp_path)
    assert shown.returncode == 0 and "model_name_or_path: meta-llama" in shown.stdout
    helped = main("--help", cwd=tmp_path)
    assert helped.returncode == 0 and helped.stdout.startswith("Compile a recipe and launch it.")
    assert files(tmp_path) == []


def test_hydra_s_own_refusal_is_exit_code_2(tmp_path):
    result = main("--cfg", "job", "recipes=nothing/like/it", cwd=tmp_path)
    assert result.returncode == 2 and "Traceback" not in result.stderr


def test_hydra_s_flags_take_recipe_files_and_search_paths(tmp_path):
    folder = tmp_path / "it's here"
    (folder / "recipes").mkdir(parents=True)
    text = f"defaults:\n  - /recipes/{LLAMA}@_here_\n  - _self_\nrun:\n  name: mine\n"
    (folder / "recipes" / "own.yaml").write_text(text)
    search = "hydra.searchpath=['" + str(folder).replace("'", "\\'") + "']"
    shown = main("recipes=recipes/own.yaml", "--cfg", "job", cwd=folder)
    assert shown.returncode == 0 and "name: mine" in shown.stdout, shown.stderr
    for words in (("recipes=recipes/own.yaml",), (search, "recipes=own")):
        swept = main("--multirun", *words, "cluster=k8s", "dry_run=true", "debug=false,true", cwd=folder)
        assert swept.returncode == 0 and swept.stdout.count("bundle results/mine-") == 2, swept.stderr


def test_multirun_compiles_every_choice(tmp_path):
    sweep = "recipes.training_config.training_args.seed=1,2,3"
    result = main("--multirun", *LLAMA_K8S, sweep, "dry_run=true", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    bundles = sorted((tmp_path / "results").glob("llama*/bundle.json"))
    seeds = {o for b in bundles for o in json.loads(b.read_text())["overrides"] if "seed" in o}
    assert len(seeds) == 3


def test_config_dir_adds_a_recipe_folder(tmp_path):
    (tmp_path / "own" / "recipes").mkdir(parents=True)
    text = f"defaults:\n  - /recipes/{LLAMA}@_here_\n  - _self_\nrun:\n  name: mine\n"
    (tmp_path / "own" / "recipes" / "mine.yaml").write_text(text)
    result = main("--config-dir", str(tmp_path / "own"), "recipes=mine", "cluster=k8s", "dry_run=true", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("mine-")


def recipes(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "launcher", *arguments], cwd=cwd, capture_output=True, text=True, timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_render_to_stdout_prints_manifests_alone(tmp_path):
    from launcher import yamlio

    result = recipes("render", LLAMA, "cluster=k8s", ELASTIC, "--stdout", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    kinds = [document["kind"] for document in yamlio.load_documents(result.stdout)]
    assert kinds == ["ConfigMap", "HyperPodPyTorchJob"]
    assert files(tmp_path) == []


def test_stdout_leaves_nothing_behind_for_a_local_job(tmp_path):
    result = recipes("render", "training/tiny/tiny_lm_cpu", "--stdout", cwd=tmp_path)
    assert result.returncode == 0 and "hyperpodrun" in result.stdout
    assert files(tmp_path) == []


def test_render_writes_a_bundle_that_launch_reads(tmp_path):
    assert recipes("render", LLAMA, "cluster=k8s", cwd=tmp_path).returncode == 0
    (bundle,) = (tmp_path / "results").iterdir()
    (bundle / "plan.md").write_text("edited")
    result = recipes("launch", str(bundle), cwd=tmp_path)
    assert result.returncode == 2 and "E704" in result.stderr


def test_a_mistake_in_recipes_is_exit_code_2(tmp_path):
    result = recipes("render", "nothing/like/it", "--stdout", cwd=tmp_path)
    assert result.returncode == 2 and result.stderr.startswith("E005 recipes")
