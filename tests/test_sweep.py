"""Every recipe on every instance type it lists: the catalogue is clean, and the sweep is exact."""

import copy
import dataclasses
import json
from pathlib import Path

import pytest
from conftest import LLAMA, ROOT, composed, frozen_context, shipped

from launcher import pipeline
from launcher.api import checking as sweep
from launcher.config import catalogue
from launcher.config.compose import compose
from launcher.model.config_tree import get, replaced

ARGS = "training_config.training_args"
LLMFT = "llm_finetuning_aws"
CONTEXT = frozen_context(Path("/nowhere"))
MINE = f"""\
defaults:
  - /recipes/{LLAMA}@_here_
  - _self_
"""


PUBLISHED = json.loads((ROOT / "tests/golden/llmft_published_values.json").read_text(encoding="utf-8"))["recipes"]
"""The published recipes by name, whose jobs are counted. The catalogue may have more."""


@pytest.fixture(scope="module")
def llmft():
    """Return every LLMFT recipe with its composition."""
    return [(entry, composed(entry.name)) for entry in shipped() if entry.model_type == LLMFT]


@pytest.fixture(scope="module")
def plain(llmft):
    return [
        sweep.checked(entry, variant, CONTEXT) for entry, base in llmft for variant in sweep.variants(base, CONTEXT)
    ]


def entry_of(folder: Path, name: str, text: str) -> catalogue.Entry:
    path = folder / "recipes" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MINE + text)
    return catalogue.Entry(name, "", "", "", "", None, True, False, (), LLMFT, path)


@pytest.mark.slow
def test_the_shipped_catalogue_is_clean(plain):
    assert [result for result in plain if result.problems] == []
    published = [result for result in plain if result.recipe in PUBLISHED]
    assert len({result.recipe for result in published}) == 86
    assert sum(not result.is_elastic for result in published) == 314


@pytest.mark.slow
def test_what_does_not_add_up_on_four_devices_is_known_to_the_size(plain):
    told = [(r, n.message) for r in plain if r.recipe in PUBLISHED for n in r.notices if n.code == "N114"]
    sizes = [message.split(" are written")[0].removeprefix("sizes ") for _, message in told]
    assert sum(len(text.split(", ")) for text in sizes) == 66
    assert (len(told), len({result.recipe for result, _ in told})) == (47, 18)
    assert {result.instance_type for result, _ in told} == {"ml.g5.12xlarge", "ml.g6.12xlarge", "ml.g6e.12xlarge"}


@pytest.mark.slow
def test_every_recipe_is_planned_on_every_instance_type(llmft):
    jobs = 0
    for entry, base in llmft:
        auto = dataclasses.replace(base, tree=replaced(base.tree, "recipes.scale_config", "auto"))
        for variant in sweep.variants(auto, CONTEXT):
            result = sweep.checked(entry, variant, CONTEXT)
            assert result.problems == () and result.num_sizes >= 1
            jobs += 1
    assert jobs > 314


@pytest.mark.slow
def test_planned_jobs_keep_the_samples_and_learning_rate_of_the_published_sizes(llmft):
    for entry, base in llmft:
        if not entry.is_elastic:
            continue
        table = base.tree["recipes"]["scale_config"]
        said = {
            (get(size, f"{ARGS}.train_batch_size"), get(size, f"{ARGS}.learning_rate")) for size in table.values()
        }
        words = [f"recipes={entry.name}", "++recipes.elastic_policy.is_elastic=true"]
        tree = replaced(base.tree, "recipes.scale_config", "auto")
        tree = replaced(tree, "recipes.elastic_policy.is_elastic", True)
        variant = dataclasses.replace(base, tree=tree, overrides=(*words, "cluster=k8s"))
        job = pipeline.plan(pipeline.check(variant), CONTEXT)
        assert {(point.samples_per_step, point.learning_rate) for point in job.scales} == said
        assert set(map(int, table)) <= {point.nodes for point in job.scales}


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 40, 85], ids=["first", "middle", "last"])
def test_a_variant_is_what_composing_it_gives(llmft, place):
    _, base = llmft[place]
    before = copy.deepcopy(base.tree)
    for variant in sweep.variants(base, CONTEXT):
        truth = compose(variant.overrides, CONTEXT.cwd)
        assert variant.tree == truth.tree and variant.explicit == truth.explicit
    assert base.tree == before


def test_a_recipe_that_refers_to_its_instance_type_is_composed_for_each(tmp_path):
    entry = entry_of(tmp_path, "mine", "training_config: {model_config: {model_save_name: 'on/${instance_type}'}}\n")
    first = next(sweep.variants(compose(sweep.choice(entry), tmp_path), CONTEXT))
    assert (
        get(first.tree, "recipes.training_config.model_config.model_save_name") == f"on/{first.tree['instance_type']}"
    )


@pytest.mark.slow
def test_faults_of_a_recipe_are_told_with_file_and_line(tmp_path):
    bad = entry_of(
        tmp_path, "team/bad", "trainer: {devices: eight}\ninstance_types: [ml.p5.48xlarge, ml.g6.12xlarge]\n"
    )
    good = entry_of(tmp_path, "team/good", "display_name: good\ninstance_types: [ml.p5.48xlarge]\n")
    results = list(sweep.check_all([bad, good], CONTEXT))
    faulty = [result for result in results if result.problems]
    assert {result.recipe for result in faulty} == {"team/bad"} and len(faulty) == 4
    assert {problem.where for result in faulty for problem in result.problems} == {f"{bad.path}:4"}
    assert [result.num_sizes for result in results if result.recipe == "team/good"] == [1, 7]


def test_a_recipe_that_cannot_be_composed_does_not_end_the_sweep(tmp_path):
    broken = entry_of(tmp_path, "broken", "run: {name: [}\n")
    good = entry_of(tmp_path, "good", "instance_types: [ml.p5.48xlarge]\n")
    first, *rest = sweep.check_all([broken, good], CONTEXT)
    assert first.problems[0].code == "E004" and first.instance_type is None
    assert [result.problems for result in rest] == [(), ()]


def test_a_table_that_is_wrong_on_its_own_devices_is_no_known_mismatch(tmp_path):
    wrong = "scale_config: {3: {training_config: {training_args: {uneven_batch: {large_local_batch_size: 9}}}}}\n"
    entry = entry_of(tmp_path, "wrong", wrong + "instance_types: [ml.g6.12xlarge]\n")
    static, elastic = sweep.check_all([entry], CONTEXT)
    assert static.problems == ()
    assert {problem.code for problem in elastic.problems} <= {"E222", "E223"} and elastic.problems


def test_overrides_hold_for_every_recipe(tmp_path):
    entry = entry_of(tmp_path, "mine", "instance_types: [ml.g6.12xlarge]\n")
    results = list(
        sweep.check_all([entry], CONTEXT, ["++recipes.scale_config=auto", "recipes.elastic_policy.max_nodes=3"])
    )
    assert [(result.is_elastic, result.num_sizes) for result in results] == [(False, 1), (True, 3)]


@pytest.mark.slow
def test_recipes_that_leave_image_or_script_to_the_launch_are_checked_with_stand_ins():
    others = [entry for entry in shipped() if entry.model_type != LLMFT]
    results = list(sweep.check_all(others, CONTEXT))
    assert {result.recipe for result in results} == {entry.name for entry in others}
    assert [result for result in results if result.problems] == []
