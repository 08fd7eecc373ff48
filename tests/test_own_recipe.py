"""A user's own recipe, from any folder; and a user's own script in place of a recipe's trainer."""

import functools
import json
import shlex
from pathlib import Path

import pytest
import yaml
from conftest import CACHE, ELASTIC, LLAMA, shipped
from whole_jobs import bundle_of, left_behind, mlflow_run, records, run

from launcher.api import new_recipe
from launcher.common import yaml_io
from launcher.common.problems import ProblemsFound
from launcher.config.compose import compose
from launcher.model.config_tree import leaves

TINY = "training/tiny/tiny_lm_cpu"
ARGS = "training_config.training_args"
K8S = ("cluster=k8s", "container=me/image:1", "training_cfg.run.ntasks_per_node=8")
SCRIPT = "training_cfg.entry_script=/app/train.py"


def test_a_recipe_outside_inherits_a_shipped_one_and_its_neighbour(prepare, tmp_path):
    (tmp_path / "team.yaml").write_text(f"defaults: [/recipes/{TINY}@_here_, _self_]\nrun: {{name: team}}\n")
    (tmp_path / "mine.yaml").write_text(f"defaults: [team@_here_, _self_]\n{nested(f'{ARGS}.seed', 7)}")
    job = prepare("recipes=mine.yaml")
    assert job.name.startswith("team-") and job.recipe == "mine.yaml"
    assert job.scales[0].config["training_config"]["training_args"]["seed"] == 7


@pytest.mark.slow
def test_a_recipe_of_an_own_folder_inherits_one_of_the_same_folder(prepare, tmp_path):
    folder = tmp_path / "lab" / "recipes" / "llama"
    folder.mkdir(parents=True)
    (folder / "base.yaml").write_text(f"defaults: [/recipes/{LLAMA}@_here_, _self_]\nrun: {{name: lab}}\n")
    (folder / "long.yaml").write_text(
        f"defaults: [/recipes/llama/base@_here_, _self_]\n{nested(f'{ARGS}.max_len', 9)}"
    )
    words = (f"hydra.searchpath=[{tmp_path}/lab]", "recipes=llama/long", "cluster=k8s", ELASTIC)
    job = prepare(*words)
    assert job.name.startswith("lab-") and len(job.scales) == 7
    assert {point.config["training_config"]["training_args"]["max_len"] for point in job.scales} == {9}


def nested(path, value):
    """Return YAML that sets one key."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return yaml_io.dump(value)


def test_new_keys_are_declared_and_reach_every_size(prepare, problems, tmp_path):
    text = f"defaults: [/recipes/{TINY}@_here_, _self_]\n{nested(f'{ARGS}.focal_gamma', 2.0)}"
    (tmp_path / "mine.yaml").write_text(text)
    (problem,) = problems("recipes=mine.yaml")
    assert problem.code == "E101" and problem.where == f"{tmp_path}/mine.yaml:4"
    assert problem.remedy.startswith(f"recipes.extra_keys=[{ARGS}.focal_gamma]")
    (tmp_path / "mine.yaml").write_text(text + f"extra_keys: [{ARGS}.focal_gamma]\n")
    job = prepare("recipes=mine.yaml", f"++recipes.scale_config.4.{ARGS}.focal_gamma=3.0")
    gammas = {point.nodes: point.config["training_config"]["training_args"]["focal_gamma"] for point in job.scales}
    assert gammas == {1: 2.0, 2: 2.0, 3: 2.0, 4: 3.0}
    assert "extra_keys" not in job.scales[0].config


@pytest.mark.parametrize(
    ("line", "path", "remedy"),
    [
        ("cluster: k8s", "cluster", "cluster=k8s at the launch"),
        ("dry_run: true", "dry_run", "dry_run=true at the launch"),
        ("git: {branch: main}", "git", "git.branch=… at the launch"),
        ("notify: https://example.com/x", "notify", "notify=… at the launch"),
        ("recipes: {trainer: {num_nodes: 2}}", "recipes", "leave out this level"),
        ("trainer.num_nodes: 2", "trainer.num_nodes", "nest it: trainer: {num_nodes: …}"),
        (f"{ARGS}.seed: 2", f"{ARGS}.seed", "nest it: training_config: {training_args: {seed: …}}"),
    ],
    ids=["cluster", "dry-run", "section", "secret", "level", "dots", "more-dots"],
)
def test_a_key_in_the_wrong_place_of_a_file_is_one_problem(line, path, remedy, problems, tmp_path):
    (tmp_path / "mine.yaml").write_text(f"defaults: [/recipes/{TINY}@_here_, _self_]\n{line}\n")
    (problem,) = problems("recipes=mine.yaml")
    assert (problem.code, problem.path, problem.remedy) == ("E101", f"recipes.{path}", remedy)
    assert problem.where == f"{tmp_path}/mine.yaml:2"


@pytest.mark.parametrize(
    ("text", "code", "path", "remedy"),
    [
        (f"default: [/recipes/{TINY}@_here_]", "E101", "recipes.default", "did you mean defaults?"),
        ("defalts: []\nrun: {model_type: tiny_lm}", "E101", "recipes.defalts", "did you mean defaults?"),
        (f"defaults: [/recipes/{TINY}@_hre_]", "E005", "defaults", f"/recipes/{TINY}@_here_"),
        (f"defaults: [/recipes/{TINY}@_here_@x]", "E005", "defaults", f"/recipes/{TINY}@_here_"),
        ("defaults: [{/base/elastic@_hre_: policy}]", "E005", "defaults", "/base/elastic@_here_: policy"),
        ("defaults: []", "E103", "recipes.run", f"inherit one with defaults: [/recipes/{TINY}@_here_, _self_]"),
        ("run: {name: x}", "E103", "recipes.run.model_type", "inherit one with defaults: "),
    ],
    ids=["default", "defalts", "here", "packages", "group", "nothing", "no-program"],
)
def test_a_recipe_that_inherits_nothing_is_told_how_to(text, code, path, remedy, problems, tmp_path):
    (tmp_path / "mine.yaml").write_text(f"{text}\nfoo: 1\n")
    (problem,) = problems("recipes=mine.yaml")
    assert (problem.code, problem.path) == (code, path) and problem.remedy.startswith(remedy)


def test_a_file_of_a_cluster_is_named_as_one_s_own(problems, tmp_path):
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text("defaults: [k8s@_here_, _self_]\n")
    (problem,) = problems("cluster=mine", f"hydra.searchpath=[{tmp_path}]")
    assert problem.code == "E005" and "file of your own" in problem.message and "@_global_" in problem.remedy


def test_keys_of_a_cluster_are_shared_by_recipes(tmp_path):
    (tmp_path / "team.yaml").write_text("cluster: {namespace: team}\n")
    (tmp_path / "mine.yaml").write_text(f"defaults: [/recipes/{TINY}@_here_, team@_global_, _self_]\n")
    assert compose(["recipes=mine.yaml", "cluster=k8s"], tmp_path).tree["cluster"]["namespace"] == "team"


def test_a_key_with_dots_is_found_in_a_section_that_a_program_reads(problems):
    falcon = ("recipes=training/custom_model/falcon", "cluster=slurm", "recipes.model.data.use_synthetic_data=true")
    (problem,) = problems(*falcon, "recipes.exp_manager.exp_dir=/x", "++recipes.model={optim.lr: 0.1}")
    assert (problem.code, problem.remedy) == ("E101", "nest it: optim: {lr: …}")


def test_a_key_with_dots_below_a_key_of_the_program_s_own_is_its_own(prepare, tmp_path):
    text = f"defaults: [/recipes/{TINY}@_here_, _self_]\nextra_keys: [training_config.labels]\n"
    (tmp_path / "mine.yaml").write_text(f"{text}training_config: {{labels: {{a: {{x: 1}}, a.b: 2}}}}\n")
    labels = prepare("recipes=mine.yaml").scales[0].config["training_config"]["labels"]
    assert labels == {"a": {"x": 1}, "a.b": 2}


def test_a_later_file_of_a_section_replaces_its_placeholder(prepare, tmp_path):
    (tmp_path / "nodes.yaml").write_text("num_nodes: 4\ndevices: 1\n")
    head = f"defaults: [/recipes/{TINY}@_here_, _self_, nodes@trainer]\n"
    (tmp_path / "mine.yaml").write_text(f"{head}trainer: ???\n")
    assert prepare("recipes=mine.yaml", "recipes.elastic_policy.is_elastic=false").initial_nodes == 4


SCHEMAS = functools.cache(new_recipe.schema_file)
"""Text of each family's schema, made once."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "base", [entry.name for entry in shipped() if entry.model_type != "llm_finetuning_aws"] + [LLAMA]
)
def test_a_new_recipe_says_what_it_inherits(base, tmp_path, monkeypatch):
    monkeypatch.setattr(new_recipe, "schema_file", SCHEMAS)

    def tree_of(recipe):
        return compose([f"recipes='{recipe}'"], tmp_path, cache=CACHE).tree["recipes"]

    path = tmp_path / "2024 My_Run.yaml"
    new_recipe.write(path, base)
    inherited, written = tree_of(base), tree_of(path)
    own = {"run.name", "run.results_dir", "display_name", "version"}
    assert {p for p, v in leaves(written) if v != dict(leaves(inherited)).get(p)} <= own
    assert written["run"]["name"] == "2024-my-run"
    lines = path.read_text().splitlines()
    assert lines[0] == f"# yaml-language-server: $schema=.schemas/{written['run']['model_type']}.json"
    assert json.loads((tmp_path / ".schemas" / f"{written['run']['model_type']}.json").read_text())["properties"]

    start = next(i for i, line in enumerate(lines) if line.startswith("# The keys changed most often"))
    nested_lines = [line.removeprefix("#") for line in lines[start + 1 :] if line.startswith("#  ")]
    assert len(nested_lines) >= 2  # the devices and nodes of every family, at least
    text = "\n".join([*lines[:start], *(line.removeprefix("#") for line in lines[start + 1 : -2])])
    path.write_text(text)
    assert tree_of(path) == written


@pytest.mark.slow
def test_a_new_recipe_inherits_a_file_of_its_own_folder(prepare, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new_recipe.write(Path("first.yaml"), TINY)
    new_recipe.write(Path("second.yaml"), "first.yaml")
    assert prepare("recipes=second.yaml").name.startswith("second-")


@pytest.mark.parametrize(
    ("path", "base", "code"),
    [
        ("there.yaml", TINY, "E805"),
        ("mine.txt", TINY, "E805"),
        ("there.yaml/mine.yaml", TINY, "E805"),
        ("mine.yaml", "training/tiny/tiny", "E005"),
        ("deep/mine.yaml", "there.yaml", "E805"),
    ],
    ids=["exists", "suffix", "no_folder", "no_base", "other_folder"],
)
def test_a_new_recipe_is_refused(path, base, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("there.yaml").write_text(text := f"defaults: [/recipes/{TINY}@_here_, _self_]\n")
    with pytest.raises(ProblemsFound) as caught:
        new_recipe.write(Path(path), base)
    assert [p.code for p in caught.value.problems] == [code]
    assert Path("there.yaml").read_text() == text and not Path("deep").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("[{--lr: 0.1}, {--steps: 10}]", ["--lr", "0.1", "--steps", "10"]),
        ("[{--verbose: null}, {--amp: true}]", ["--verbose", "--amp", "true"]),
        ("[{--betas: [0.9, 0.95]}, {--name: 'a b'}]", ["--betas", "0.9", "0.95", "--name", "a b"]),
        ("[{--a: ''}, {--a: 1}]", ["--a", "", "--a", "1"]),
        ("[]", []),
        ("null", []),
    ],
    ids=["numbers", "flags", "list", "empty_and_twice", "none", "null"],
)
def test_arguments_of_a_script_are_words_in_order(arguments, words, render):
    text = render(SCRIPT, *K8S, f"training_cfg.script_args={arguments}").files["manifests/job.yaml"]
    (container,) = yaml.safe_load(text)["spec"]["replicaSpecs"][0]["template"]["spec"]["containers"]
    start = ["/bin/bash", "/config/start.sh"]
    agent = ["hyperpodrun", "--nnodes=1", "--nproc-per-node=8", "--rdzv-backend=hyperpod", "--shutdown-timeout=600"]
    mark = ["--"] if words else []
    assert container["command"] == [*start, *agent, *mark, "/app/train.py", *words]


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["entry_script=train.py", "entry_module=json.tool"], ids=["script", "module"])
@pytest.mark.parametrize("cluster", ["local", "k8s", "slurm"])
def test_torchrun_takes_no_argument_of_a_script_for_its_own(cluster, entry, render, tmp_path):
    """An argument may be the beginning of several of its options, or one of them."""
    from torch.distributed.run import get_args_parser

    (tmp_path / "train.py").touch()
    given = ["--log", "x", "--max", "3", "--r", "-l", "1", "--nnodes", "5", "--", "--help"]
    where = K8S if cluster == "k8s" else (f"cluster={cluster}", "instance_type=ml.m5.2xlarge")
    arguments = "training_cfg.script_args=[{--log: x}, {--max: 3}, {--r: null}, {-l: 1}, {--nnodes: 5}, {--: --help}]"
    files = render(f"training_cfg.{entry}", *where, arguments).files
    if cluster == "k8s":
        pods = yaml.safe_load(files["manifests/job.yaml"])["spec"]["replicaSpecs"][0]["template"]["spec"]
        words = pods["containers"][0]["command"][7:]
    else:
        lines = (files.get("run.sh") or files["slurm/node.sh"]).splitlines()
        words = shlex.split(next(line for line in lines if "--nnodes 5" in line))
    found = get_args_parser().parse_args(words)
    name = entry.partition("=")[2]
    assert found.training_script.endswith(name) and found.module == ("module" in entry)
    assert found.training_script_args == given and found.nnodes == "1:1"


def test_a_module_and_the_configurations_folder(render):
    words = ("training_cfg.entry_module=my.train", "training_cfg.script_args=[{--config-path: 'bundle:configs'}]")
    text = render(*words, *K8S).files["manifests/job.yaml"]
    assert '"-m", "my.train", "--config-path", "/config"]' in text
    local = render("training_cfg.entry_module=json.tool", words[1]).files["run.sh"]
    assert '-m json.tool --config-path "$bundle"/configs' in local


def test_a_script_on_this_machine_is_found_from_any_folder(render, tmp_path):
    script = tmp_path / "it's mine.py"
    script.write_text("")
    text = render("training_cfg.entry_script='it\\'s mine.py'").files["run.sh"]
    (line,) = (each for each in text.splitlines() if "mine.py" in each)
    assert shlex.split(line) == [str(script)]


def test_an_elastic_script_is_an_elastic_job(render, prepare):
    words = ("recipes=training/custom/elastic_script", SCRIPT, *K8S)
    assert {point.samples_per_step for point in prepare(*words).scales} == {32}
    spec = yaml.safe_load(render(*words).files["manifests/job.yaml"])["spec"]
    assert spec["elasticPolicy"]["replicaDiscreteValues"] == [1, 2, 3, 4]
    assert (spec["elasticPolicy"]["minReplicas"], spec["replicaSpecs"][0]["maxReplicas"]) == (1, 4)


def test_a_script_recipe_takes_the_published_section(prepare, tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "mine.yaml").write_text(
        "defaults: [/recipes/training/custom/script@_here_, _self_]\n"
        "training_cfg:\n"
        "  entry_script: train.py\n"
        "  script_args:\n    - --max_context_width: 4096\n"
        "  run: {name: mine, nodes: 2, ntasks_per_node: 3}\n"
    )
    job = prepare("recipes=mine.yaml")
    assert (job.name[:5], job.initial_nodes, job.nproc_per_node) == ("mine-", 2, 3)
    assert [notice.code for notice in job.notices] == ["N116"]
    other = prepare("recipes=mine.yaml", "training_cfg.run.nodes=1", "recipes.trainer.devices=2")
    assert (other.initial_nodes, other.nproc_per_node) == (1, 2)


FAULTS = [
    (("recipes=training/custom/script",), "E106", "entry_script", "script to run is missing"),
    ((SCRIPT, "training_cfg.entry_module=a", *K8S), "E106", "entry_script", "both"),
    *(
        ((SCRIPT, *K8S, f"training_cfg.entry_script='{path}'"), "E102", "training_cfg.entry_script", "script_args")
        for path in ("/a.py --lr 3", "/a.py -v", "python /a.py", "/bin/python3.11 a.py", "-m pkg.mod", "--version")
    ),
    (
        (SCRIPT, *K8S, "training_cfg.entry_script=s3://a/b.py"),
        "E102",
        "training_cfg.entry_script",
        "repository to fetch",
    ),
    ((SCRIPT, *K8S, "training_cfg.entry_script='~/a.py'"), "E327", "training_cfg.entry_script", "container"),
    ((SCRIPT, *K8S, "training_cfg.script_args=[{a: {b: c}}]"), "E107", "script_args.0.a", "a text"),
    ((SCRIPT, *K8S, "training_cfg.script_args=[{a: 1, b: 2}]"), "E107", "script_args.0", "one name"),
    ((SCRIPT, *K8S, "training_cfg.script_args=[{a: 'bundle:run'}]"), "E107", "script_args.0.a", "bundle:configs"),
    ((SCRIPT, *K8S, "training_cfg.script_args=[a]"), "E102", "script_args.0", "mapping"),
    ((SCRIPT, *K8S, "training_cfg.script_args=['--lr=3']"), "E102", "script_args.0", "{--lr: 3}"),
    ((SCRIPT, *K8S, "training_cfg.script_args=['--my-token=abc']"), "E102", "script_args.0", "{--my-token: …}"),
    ((SCRIPT, *K8S, "training_cfg.script_args=[--lr=3, -v]"), "E001", "", "script_args=[{--lr: 3}, {-v: null}]'"),
    ((SCRIPT, *K8S, "training_cfg.script_args=[{--lr=3: null}]"), "E001", "", "script_args=[{--lr: 0.1}]'"),
    ((SCRIPT, *K8S, "env_vars=[A]"), "E003", "env_vars", "'env_vars={NAME: value}'"),
    ((SCRIPT, *K8S, "env_vars=[A=1]"), "E001", "", "'env_vars={NAME: value}'"),
    ((SCRIPT, *K8S, "git.repo_url_or_path=/code"), "E108", "git.repo_url_or_path", "LLMFT"),
    ((SCRIPT, *K8S, "git.entry_script=a.py"), "E108", "git.entry_script", "training_cfg.entry_script=a.py"),
    ((SCRIPT, *K8S, "+recipes.post_script=[ls]"), "E108", "recipes.post_script", "LLMFT"),
    ((SCRIPT, *K8S[:2]), "E109", "run.ntasks_per_node", "ntasks_per_node=8"),
    (
        (SCRIPT, *K8S, "recipes.trainer.devices=4"),
        "E111",
        "recipes.trainer.devices",
        "omit recipes.trainer.devices",
    ),
    (("training_cfg.entry_script=absent.py",), "E404", "entry_script", "no such file"),
    (("training_cfg.entry_module=absent_module",), "E404", "cluster", "absent_module"),
    ((SCRIPT, "cluster=k8s", "container=null", "training_cfg.run.ntasks_per_node=8"), "E305", "container", ""),
    ((f"recipes={LLAMA}", "cluster=k8s", SCRIPT), "E105", "recipes.training_cfg", "not run your script"),
    ((SCRIPT, *K8S, "training_cfg.entry_scrpt=a"), "E101", "training_cfg.entry_scrpt", "did you mean entry_script"),
]


@pytest.mark.parametrize(("words", "code", "path", "says"), FAULTS, ids=[f"{f[1]}-{f[0][-1]}" for f in FAULTS])
def test_a_fault_of_a_script_is_one_problem(words, code, path, says, problems):
    (problem,) = problems(*words)
    assert (problem.code, problem.path.endswith(path)) == (code, True)
    assert says in str(problem)


def test_a_script_that_is_absent_here_has_its_place_and_a_remedy(problems):
    (problem,) = problems("training_cfg.entry_script=absent.py")
    assert problem.where == "training_cfg.entry_script=absent.py"
    assert problem.remedy == "training_cfg.entry_script=<path of your script>"


@pytest.mark.parametrize("path", ["/my code/a - b.py", "/x/my python/a.py", "/x/python", "run-1 -2.py"])
def test_a_path_of_a_script_may_have_spaces(path, render):
    assert path in render(f"training_cfg.entry_script='{path}'", *K8S).files["manifests/job.yaml"]


def test_an_elastic_script_states_its_batch(problems):
    policy = "{is_elastic: true, min_nodes: 1, max_nodes: 2, use_graceful_shutdown: true, replica_increment_step: 1}"
    found = problems(SCRIPT, *K8S, f"++recipes.elastic_policy={policy}")
    assert "E110" in {p.code for p in found}


@pytest.mark.whole_job
@pytest.mark.usefixtures("store")
def test_an_elastic_script_trains_under_the_real_agent_at_two_sizes(tmp_path):
    """The published section of a user's file, arguments and configuration folder, one MLflow run."""
    pytest.importorskip("hyperpod_elastic_agent")
    (tmp_path / "slow.py").write_text(SLOW)
    code, out, errors = run(
        "recipes=training/custom/elastic_script",
        "training_cfg.entry_script=slow.py",
        "training_cfg.run.ntasks_per_node=1",
        "training_cfg.script_args=[{--config-path: 'bundle:configs'}, {--pause: 0.15}]",
        "+cluster.events=[{at:{step:2},capacity:2}]",
        cwd=tmp_path,
    )
    assert code == 0, out + errors
    lines = records(bundle_of(tmp_path) / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 201))
    assert {line["nodes"] for line in lines} == {1, 2}
    _, tracked = mlflow_run(tmp_path, experiment="elastic-script")
    assert tracked.info.status == "FINISHED" and tracked.data.params["training_cfg.entry_script"] == "slow.py"
    told = [line for line in out.splitlines() if line.startswith("told ")]
    assert [line.split()[1:4] for line in told] == [["32", "1", "True"], ["32", "2", "True"]]
    assert left_behind(tmp_path) == []


SLOW = """
from launcher.runtime import elastic

# isort: split
import argparse, os, time
from pathlib import Path

import torch
import torch.distributed as dist
import yaml
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from launcher.common.names import config_path

parser = argparse.ArgumentParser()
parser.add_argument("--config-path", type=Path, required=True)
parser.add_argument("--pause", type=float, required=True)
options = parser.parse_args()
elastic.join()
world_size = dist.get_world_size()
args = yaml.safe_load(config_path(options.config_path, world_size).read_text())["training_config"]["training_args"]
data = TensorDataset(torch.arange(320.0)[:, None])
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
sampler = elastic.StepSampler(len(data), args["train_batch_size"], 20)
job = elastic.Job(model, optimizer, sampler=sampler)
if dist.get_rank() == 0:
    print("told", args["train_batch_size"], world_size, bool(os.environ["MLFLOW_RUN_ID"]), flush=True)
for (x,) in job.steps(DataLoader(data, batch_sampler=sampler)):
    loss = job.weigh(model(x).square().mean())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(options.pause if world_size == 1 else 0)  # until a second node is ready
elastic.leave()
"""
