"""The published recipes: their values, their files, and the listing that reads them without Hydra."""

import contextlib
import functools
import json
import statistics
import subprocess
import sys
import time

import pytest
from conftest import ELASTIC, LLAMA, ROOT, composed, needed_by, shipped
from published_recipes import GOLDEN, inherited_values, own_values, parts_of, recipe_file, text_of

from launcher import pipeline
from launcher.common.paths import COLLECTION
from launcher.common.problems import ProblemsFound
from launcher.config import catalogue
from launcher.config.collection import recipe_names
from launcher.config.compose import compose
from launcher.model.config_tree import get, leaves
from launcher.planning.check import check

PUBLISHED = json.loads((ROOT / "tests" / "golden" / "llmft_published_values.json").read_text())
"""Values of the published LLMFT recipes (release of 2026-06-22): sets that many share, and what each has besides."""
NAMES = list(PUBLISHED["recipes"])
PARTS = set((COLLECTION / "base").rglob("*.yaml"))
MODEL = """defaults:
  - /base/llmft/common@_here_
  - /base/llmft/technique/dpo_lora@_here_
  - /base/elastic/gbs128_micro2_dpo@_here_
  - _self_
display_name: A model of my own
version: 1.0.0
instance_types: [ml.p5.48xlarge]
run: {name: my-model}
training_config: {model_config: {model_name_or_path: me/model, model_save_name: mine}}
"""


def published(name):
    entry = PUBLISHED["recipes"][name]
    values = {path: value for shared in entry["sets"] for path, value in PUBLISHED["sets"][shared].items()}
    return {path: value for path, value in values.items() if path not in entry.get("without", ())} | entry["values"]


@functools.cache
def listed():
    return {entry.name: entry for entry in shipped()}


@pytest.mark.slow
def test_every_published_recipe_is_there():
    entries = [listed()[name] for name in NAMES]
    assert {entry.model_type for entry in entries} == {"llm_finetuning_aws"}
    assert len(entries) == 86
    assert sum(entry.is_elastic for entry in entries) == 46


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_recipes_compose_to_their_published_values(name):
    expected = published(name)
    expected["run.results_dir"] = f"results/{expected['run.name']}"  # there, still an interpolation
    found = dict(leaves(composed(name).tree["recipes"]))
    assert found.keys() == expected.keys()
    assert {path: text_of(value) for path, value in found.items()} == {
        path: text_of(value) for path, value in expected.items()
    }


@pytest.mark.slow
def test_elastic_sizes_are_those_published():
    scales = [composed(name).tree["recipes"].get("scale_config") or {} for name in NAMES]
    points = [point for scale in scales for point in scale.values()]
    assert len(points) == 270
    assert sum(get(point, "training_config.training_args.uneven_batch") is not None for point in points) == 40


def test_exactly_the_recipes_of_the_published_launcher_are_marked_as_published():
    assert {name for name, entry in listed().items() if entry.is_published} == {*NAMES, *GOLDEN["digests"]}


def test_recipes_of_a_user_are_not_published(team):
    assert not any(entry.is_published for entry in team[1].values())


def test_recipe_files_are_short():
    lengths = [len(entry.path.read_text().splitlines()) for entry in listed().values()]
    assert statistics.median(lengths) <= 25
    assert max(lengths) <= 40


def test_a_recipe_says_only_what_is_its_own():
    repeated = {}
    for name in recipe_names():
        known = inherited_values(recipe_file(name))
        own = own_values(recipe_file(name)).items()
        repeated[name] = [path for path, value in own if path in known and text_of(value) == text_of(known[path])]
    assert {name: paths for name, paths in repeated.items() if paths} == {}


def test_no_two_files_are_the_same():
    files = list(COLLECTION.rglob("*.yaml"))
    texts = {}
    for file in files:
        text = "".join(line for line in file.read_text().splitlines(keepends=True) if not line.startswith("#"))
        texts.setdefault(text, []).append(file.name)
    assert [names for names in texts.values() if len(names) > 1] == []


def test_every_part_is_used():
    used = {part for name in recipe_names() for part in parts_of(recipe_file(name))}
    assert used == PARTS


def test_a_part_begins_with_a_sentence_that_says_what_it_is():
    lines = {part: part.read_text().partition("\n")[0] for part in PARTS if "llmft" not in part.parts}
    assert len(lines) > 100
    assert [part for part, line in lines.items() if not (line.startswith("# ") and line.endswith("."))] == []


def entry_of(tree, name, folder):
    objective = get(tree, "training_config.training_args.trainer_type")
    peft = get(tree, "training_config.model_config.peft_config")
    labels = tree.get("labels") or {}
    labelled = "_".join(filter(None, (labels.get("objective"), labels.get("weights"))))
    models = ("model_config.model_name_or_path", "actor_rollout_ref.model.path", "model.path")
    models = (*(f"training_config.{key}" for key in models), "run.model_name_or_path")
    return catalogue.Entry(
        name=name,
        display_name=get(tree, "display_name") or "",
        family=name.split("/")[-2],
        model=get(tree, "run.name") or "",
        model_name_or_path=next(filter(None, (get(tree, key) for key in models)), ""),
        technique=f"{objective}_{'lora' if peft else 'fft'}" if objective else labelled or None,
        is_elastic=get(tree, "elastic_policy") is not None,
        is_published=folder == COLLECTION and labels.get("published", True),
        instance_types=tuple(get(tree, "instance_types") or ()),
        model_type=get(tree, "run.model_type") or "",
        path=folder / "recipes" / f"{name}.yaml",
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_entries_tell_what_the_composition_does(name):
    assert listed()[name] == entry_of(composed(name).tree["recipes"], name, COLLECTION)


def test_techniques_follow_the_published_names():
    ends = {"_gpu_dpo": "dpo_lora", "_sft_lora": "sft_lora", "_sft_fft": "sft_fft", "_dpo_fft": "dpo_fft"}
    for name in NAMES:
        assert listed()[name].technique == next(of for end, of in ends.items() if name.endswith(end))


@pytest.mark.slow
def test_a_listing_needs_neither_hydra_nor_pydantic():
    code = "import sys; from launcher.config import catalogue; catalogue.entries(); print(*sys.modules, sep='\\n')"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200, check=True
    )
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert "launcher" in loaded
    assert loaded & {"hydra", "omegaconf", "pydantic", "jinja2"} == set()


@pytest.mark.slow
def test_a_listing_takes_little_time():
    def once():
        began = time.process_time()
        catalogue.entries()
        return time.process_time() - began

    assert min(once() for _ in range(5)) < 0.2  # seconds of this process; 0.04 on the machine it was written on


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


QWEN = "/base/llmft/model/qwen3_8b"
FORMS = {
    "interpolation": f"defaults: [{QWEN}@_here_, _self_]\nrun: {{name: 'x-${{recipes.trainer.devices}}'}}\n",
    "mapping": f"defaults: [{QWEN}@_here_, _self_]\nrun: ${{recipes.other}}\nother: {{name: referred}}\n",
    "relative": f"defaults: [{QWEN}@_here_, _self_]\nrun: {{name: '${{..a.b}}'}}\na: {{b: '${{.c}}', c: far}}\n",
    "absolute": f"defaults: [{QWEN}@_here_, _self_]\nrun: {{name: '${{recipes.version}}'}}\nversion: 1.2.3\n",
    "outside": f"defaults: [{QWEN}@_here_, _self_]\nrun: {{name: '${{...instance_type}}'}}\n",
    "group": "defaults:\n  - /base/llmft/model@_here_: qwen3_8b\n  - _self_\nrun: {name: by-group}\n",
    "optional": f"defaults:\n  - {QWEN}@_here_\n  - optional /base/none@_here_: gone\n  - _self_\n",
    "package": f"# @package recipes\ndefaults: [{QWEN}@_here_, _self_]\nrun: {{name: packed}}\n",
    "elsewhere": f"defaults:\n  - {QWEN}@_here_\n  - /own@run\n  - _self_\n",
    "global": f"defaults:\n  - {QWEN}@_here_\n  - /whole@_global_\n  - _self_\n",
    "replaced": "defaults: [/base/llmft/technique/sft_lora@_here_, _self_]\n"
    "training_config: {model_config: {peft_config: null}}\n",
    "nothing": "display_name: nothing else\n",
    "recipe": f"defaults: [/recipes/{LLAMA}@_here_, _self_]\nrun: {{name: derived}}\n",
    "neighbour": "defaults: [team/recipe@_here_]\ndisplay_name: beside\n",
}


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    """Return a folder with recipes of a user's own, and how each of them is listed."""
    folder = tmp_path_factory.mktemp("team") / "it's mine"
    parts = {"own.yaml": "name: from-own\n", "whole.yaml": "recipes: {run: {name: from-the-top}}\n"}
    write(folder, parts | {f"recipes/team/{key}.yaml": text for key, text in FORMS.items()})
    return folder, {entry.name: entry for entry in catalogue.entries(folder)}


@pytest.mark.parametrize("name", FORMS)
def test_recipes_of_any_form_are_listed_as_they_compose(team, name):
    folder, found = team
    quoted = str(folder).replace("'", "\\'")
    tree = compose([f"recipes=team/{name}", f"hydra.searchpath=['{quoted}']"], folder).tree["recipes"]
    assert found[f"team/{name}"] == entry_of(tree, f"team/{name}", folder)


def test_faults_of_every_file_are_told_at_once(tmp_path):
    faulty = {
        "recipes/a/no_yaml.yaml": "run: {name\n",
        "recipes/a/twice.yaml": "run: {}\nrun: {}\n",
        "recipes/a/absent.yaml": "defaults: [/base/llmft/model/none@_here_]\n",
        "recipes/a/circle.yaml": "defaults: [other@_here_]\n",
        "recipes/a/other.yaml": "defaults: [circle@_here_]\n",
        "recipes/a/list.yaml": "- run\n",
    }
    write(tmp_path, faulty | {"recipes/a/fine.yaml": MODEL})
    (tmp_path / "recipes/a/latin.yaml").write_bytes(b"run: {name: caf\xe9}\n")
    with pytest.raises(ProblemsFound) as caught:
        catalogue.entries(tmp_path)
    told = "\n".join(map(str, caught.value.problems))
    assert len(caught.value.problems) == len(faulty) + 1
    for word in ("no_yaml", "twice", "none", "circle", "list", "latin"):
        assert word in told
    assert "fine.yaml" not in told


def test_a_new_model_is_one_file(tmp_path, context):
    (tmp_path / "mine.yaml").write_text(MODEL)
    job = pipeline.prepare(
        [f"recipes={tmp_path}/mine.yaml", "cluster=k8s", "recipes.elastic_policy.is_elastic=true"], context
    )
    assert [point.nodes for point in job.scales] == [1, 2, 4, 8, 16]
    assert {point.samples_per_step for point in job.scales} == {128}
    assert job.name.startswith("my-model-")


@pytest.mark.parametrize("base", [LLAMA, "fine-tuning/qwen/llmft_qwen3_32b_seq4k_gpu_dpo_fft"])
def test_a_new_model_or_technique_is_one_part_that_any_recipe_takes(tmp_path, base):
    write(
        tmp_path,
        {
            "base/llmft/model/mine.yaml": "run: {name: mine}\n"
            "training_config: {model_config: {model_name_or_path: me/m}}\n",
            "base/llmft/technique/longer.yaml": "training_config: {training_args: {max_epochs: 9}}\n",
        },
    )
    draft = check(
        compose(
            [
                f"recipes={base}",
                f"hydra.searchpath=[{tmp_path}]",
                "+base/llmft/model@recipes=mine",
                "+base/llmft/technique@recipes=longer",
                "cluster=k8s",
            ],
            tmp_path,
        )
    )
    assert draft.recipe.run.name == "mine"
    assert draft.recipe.training_config.model_settings.model_name_or_path == "me/m"
    assert draft.recipe.training_config.training_args.max_epochs == 9


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["slurm", "k8s"])
def test_every_recipe_with_planned_sizes_has_a_bundle_or_problems(cluster, prepare, context):
    """An elastic job of whatever recipe: the sizes that are planned are those that it is rendered with."""
    elastic = (ELASTIC, "recipes.scale_config=auto")
    rendered = 0
    for entry in listed().values():
        with contextlib.suppress(ProblemsFound):
            job = prepare(f"recipes={entry.name}", f"cluster={cluster}", *elastic, *needed_by(entry, cluster))
            pipeline.render(job, context)
            rendered += 1
    assert rendered > len(NAMES) // 2
