"""The functions of the API behind the commands about recipes return what the commands print."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ELASTIC, LLAMA

import launcher
from launcher.api import checkpoints, placement, samples, teams
from launcher.api.composed import composed
from launcher.common.problems import ProblemsFound

SFT = "llmft_llama3_2_1b_instruct_seq4k_gpu_sft_lora"
SCRIPT = ("training_cfg.entry_script=train.py", "training_cfg.run.ntasks_per_node=1", "instance_type=ml.m5.2xlarge")
TEAM = ("team=a", "instance_type=ml.p5.48xlarge", "nodes=4")


def as_json(value):
    return json.loads(json.dumps(value, default=lambda each: dataclasses.asdict(each)))


def test_check_yields_what_the_command_prints(recipes):
    words = (ELASTIC, "instance_type=ml.g5.12xlarge", "cluster=k8s")
    code, out, _ = recipes("check", LLAMA, "tiny_lm_cpu", *words, "--json")
    found = list(launcher.check(LLAMA, "tiny_lm_cpu", overrides=words))
    printed = json.loads(out)["checked"]
    assert code == 2 and found[0].problems
    for result, shown in zip(found, printed, strict=True):
        assert as_json(result.problems) == shown["problems"] and as_json(result.notices) == shown["notices"]
        assert (result.recipe, result.is_elastic) == (shown["recipe"], shown["is_elastic"])


def test_check_takes_values_as_compile_does():
    (found,) = launcher.check("tiny_lm_cpu", overrides={"training_config.training_args.learning_rate": "fast"})
    assert [problem.code for problem in found.problems] == ["E102"] and found.num_sizes == 0


def test_check_refuses_at_once_what_is_no_name_or_override(tmp_path):
    with pytest.raises(ProblemsFound, match="E005"):
        launcher.check("tiny_lm_cpu", 3)
    with pytest.raises(ProblemsFound, match="E001"):
        launcher.check("tiny_lm_cpu", overrides=3)
    (found,) = launcher.check(tmp_path / "none.yaml")
    assert found.path == tmp_path / "none.yaml" and found.problems


def test_a_faulty_recipe_is_composed_and_its_secrets_are_hidden(recipes):
    found = composed(f"{LLAMA}@4", [ELASTIC, "recipes.run.name=A_b", "++env_vars.API_TOKEN=hunter2hunter2"])
    assert found.tree()["trainer"]["num_nodes"] == 4 and found.tree()["run"]["name"] == "A_b"
    assert "hunter2" not in json.dumps([found.tree(full=True), found.trees])
    ((value,),) = found.explain("train_batch_size").values()
    assert value.nodes == 4
    with pytest.raises(ProblemsFound, match=r"E\d+ recipes\.run\.name"):
        _ = found.checked


@pytest.mark.parametrize("key", ["recipes.trainer.max_stepz", "cluster.partitionn", "deep.er"])
@pytest.mark.parametrize(
    "command", [("show",), ("explain", "num_nodes"), ("diff", "tiny_lm_cpu"), ("data",), ("ranks",), ("checkpoint",)]
)
def test_every_command_refuses_a_key_that_nothing_reads(recipes, tmp_path, command, key):
    name, *more = command
    given = (str(tmp_path), "--recipe", SFT) if name == "data" else (SFT, *more)
    code, out, err = recipes(name, *given, f"++{key}=3")
    assert (code, out) == (2, "") and err.startswith(f"E101 {key.removesuffix('.er')}\n"), err


def test_ranks_of_numbers_are_those_of_the_command(recipes):
    printed = json.loads(recipes("ranks", "--hosts", "2", "--processes", "8", "--partitions", "4", "--json")[1])
    found = placement.of_numbers(8, hosts=2, partitions=4)
    assert as_json(found.mp_groups) == printed["mp_groups"] and found.world_size == printed["world_size"]


def test_a_forecast_of_checkpoints_is_that_of_the_command(recipes):
    words = ("--parameters", "8e9", "--step-s", "2", "--mtbf-hours", "100", "--json")
    printed = json.loads(recipes("checkpoint", f"{LLAMA}@4", ELASTIC, *words)[1])
    given = {"parameters": 8e9, "step_s": 2, "failures_per_node_hour": checkpoints.failure_rate(None, 100, 4)}
    found = checkpoints.outlook(composed(LLAMA, [ELASTIC]).checked, LLAMA, 4, given)
    assert as_json(found.as_json) == printed
    with pytest.raises(ProblemsFound, match="E801"):
        checkpoints.failure_rate(1, 100, 4)


def test_samples_are_read_as_the_command_reads_them(recipes, tmp_path):
    file = tmp_path / "s.jsonl"
    turns = [{"role": "user", "content": "What rings?"}, {"role": "assistant", "content": "The bell."}]
    file.write_text("".join(json.dumps({"messages": turns[:number]}) + "\n" for number in (2, 1, 2)))
    printed = json.loads(recipes("data", str(file), "--recipe", SFT, "--rehearse", "--json")[1])
    found, max_len = samples.read(file, SFT, rehearse=True)
    assert as_json(dataclasses.asdict(found)) == printed and max_len == 4096
    with pytest.raises(ProblemsFound, match="E808"):
        samples.read(file, "tiny_lm_cpu", rehearse=True)


def test_data_without_the_packages_of_the_trainer_is_a_problem(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ProblemsFound, match="reading samples needs tokenizers"):
        samples.read(tmp_path / "s.jsonl", SFT, rehearse=True)


def test_objects_of_teams_are_those_of_the_command(recipes, tmp_path):
    made = teams.objects(TEAM)
    assert list(yaml.safe_load_all("---\n".join(made.texts))) == list(
        yaml.safe_load_all(recipes("governance", *TEAM)[1])
    )
    assert recipes("governance", *TEAM, "--out", str(tmp_path / "a"))[0] == 0
    assert {path.name: path.read_text() for path in (tmp_path / "a").iterdir()} == made.paths


def test_manifests_are_those_that_render_prints(recipes):
    plan = launcher.compile(LLAMA, [ELASTIC], cluster="k8s")
    printed = recipes("render", LLAMA, ELASTIC, "cluster=k8s", "--stdout")[1]
    suffix = yaml.safe_load(printed.split("---\n")[0])["metadata"]["name"].rpartition("-")[2]
    assert "---\n".join(plan.manifests()).replace(plan.context.suffix, suffix) == printed
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("cluster", "line", "given"),
    [
        ("slurm", "#SBATCH --nodes=1", ()),
        ("ray", '  "entrypoint": ', ("cluster.address=http://127.0.0.1:8265", "cluster.working_dir=.")),
    ],
    ids=["slurm", "ray"],
)
def test_render_prints_what_a_cluster_without_manifests_gets(cluster, line, given, recipes):
    Path("train.py").touch()
    code, out, errors = recipes("render", "training/custom/script", f"cluster={cluster}", *SCRIPT, *given, "--stdout")
    assert code == 0 and line in out, errors


def test_results_of_check_are_made_in_the_folder_of_a_session(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults:\n  - /recipes/training/tiny/tiny_lm_cpu@_here_\n")
    checked = launcher.check("mine.yaml", "tiny_lm_cpu", session=launcher.Session(folder=tmp_path))
    assert [(found.recipe, found.problems) for found in checked] == [("mine.yaml", ()), ("tiny_lm_cpu", ())]


def test_one_name_to_compare_is_of_a_job_or_says_what_lacks(recipes, elastic_bundle):
    name = elastic_bundle.name

    def says(*words):
        code, _, errors = recipes("diff", *words)
        return code, errors.splitlines()[:2]

    assert says(f"{name}x") == (
        2,
        [f"E703 {name}x", "     is neither the folder of a bundle nor a job under results/"],
    )
    assert says("results/none")[1][0] == "E703 results/none"
    one_size = "     missing second argument: one size of a job is compared with another"
    assert says(f"{name}@2") == (2, [f"E801 {name}@2", one_size])
    recipe = "     missing second argument: a recipe is compared with another, or with a bundle"
    assert says("tiny_lm_cpu") == (2, ["E801 tiny_lm_cpu", recipe])
    assert says("tiny_lm_cpu@2") == (2, ["E801 tiny_lm_cpu@2", recipe])
    assert says(".") == (2, ["E801 .", "     is not a bundle directory"])
