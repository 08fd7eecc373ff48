"""Faults of a command line are shown at once: those that keep it from composing do not hide the others."""

import pytest
from conftest import ELASTIC, LLAMA, LLAMA_K8S

OF_COMPOSITION = {
    "++recipes.trainer.devices=[1": ("E001", "++recipes.trainer.devices=[1"),
    "recipes.trainer.devices": ("E001", "recipes.trainer.devices"),
    "recipes.trainer.devices=1,2": ("E002", "recipes.trainer.devices=1,2"),
    "recipes.trainer.devices=${recipes.trainer.nodes}": ("E007", "recipes.trainer.devices"),
    "recipes.trainer.devices=???": ("E006", "recipes.trainer.devices"),
    "hydra.verbose=true": ("E009", "hydra.verbose"),
}
"""Faults of an override that keep a command line from composing."""
OF_CHECK = {
    "++contaner=x": ("E101", "contaner"),
    "recipes.trainer.num_nodes=abc": ("E102", "recipes.trainer.num_nodes"),
    "++instance_type=p5.48xlrge": ("E230", "instance_type"),
    "cluster.namespace=A_B": ("E302", "cluster.namespace"),
}
"""Faults that are found in what was composed."""


def found(problems, *words):
    return {(each.code, each.path) for each in problems(*words)}


@pytest.mark.parametrize("word", OF_COMPOSITION)
def test_a_fault_of_composition_hides_no_other_and_leads_to_none(problems, word):
    assert found(problems, *LLAMA_K8S, word) == {OF_COMPOSITION[word]}
    assert found(problems, *LLAMA_K8S, word, *OF_CHECK) == {OF_COMPOSITION[word], *OF_CHECK.values()}


def test_faults_that_are_found_one_after_the_other_are_shown_together(problems):
    """A malformed override is found first, then a reference, then a key."""
    words = ("++recipes.trainer.devices=[1", "recipes.run.name=${recipes.no}", "++contaner=x")
    found_codes = [each.code for each in problems(*LLAMA_K8S, *words)]
    assert found_codes == ["E001", "E007", "E101"]


def test_what_depends_on_a_value_that_is_not_known_is_not_examined(problems):
    batch = "recipes.training_config.training_args.train_batch_size=7"  # does not divide among the devices
    words = (*LLAMA_K8S, batch, "recipes.trainer.devices=8")
    assert {code for code, _ in found(problems, *words)} == {"E221"}
    assert found(problems, *words, "recipes.trainer.num_nodes=[1") == {("E001", "recipes.trainer.num_nodes=[1")}


@pytest.mark.parametrize(
    ("choices", "fault"),
    [
        ((f"recipes={LLAMA}", "cluster=k8"), ("E005", "cluster")),
        ((f"recipes={LLAMA}", "clusters=k8s"), ("E101", "clusters")),
        ((f"recipes={LLAMA}x", "cluster=k8s"), ("E005", "recipes")),
        ((f"recipe={LLAMA}", "cluster=k8s"), ("E101", "recipe")),
        ((f"recipes={LLAMA}", "cluster=k8s", "recipe=llama"), ("E101", "recipe")),
    ],
)
def test_a_misspelt_choice_hides_no_fault_of_an_override(problems, choices, fault):
    assert found(problems, *choices) == {fault}
    assert found(problems, *choices, *OF_CHECK) == {fault, *OF_CHECK.values()}


def test_a_choice_that_may_mean_anything_is_the_only_problem(problems):
    assert found(problems, f"recipes={LLAMA}", "cluster=zzz", *OF_CHECK) == {("E005", "cluster")}


def test_a_cluster_that_is_only_meant_needs_no_settings_yet(problems):
    assert found(problems, f"recipes={LLAMA}", "cluster=sagemakr") == {("E005", "cluster")}


def test_a_misspelt_key_is_suggested_beside_a_fault_of_composition(problems):
    *_, unknown = problems(*LLAMA_K8S, "recipes.trainer.devices=[1", "++contaner=x")
    assert unknown.remedy == "did you mean container?"


def test_a_reference_to_a_key_whose_override_is_faulty_is_no_fault(problems):
    words = (
        "++recipes.my_key=[1",
        "recipes.extra_keys=[my_key]",
        "recipes.run.name=${recipes.my_key}",
        "++contaner=x",
    )
    assert found(problems, *LLAMA_K8S, *words) == {("E001", "++recipes.my_key=[1"), ("E101", "contaner")}


@pytest.mark.parametrize("word", ["+base/elastic@recipes=polcy", "cluster_type=zzz", "hydra.searchpath=[/absent]"])
def test_a_choice_of_other_files_that_may_mean_anything_is_the_only_problem(problems, word):
    words = (f"recipes={LLAMA}", *(["cluster=k8s"] if "cluster" not in word else []))
    (alone,) = found(problems, *words, word)
    assert found(problems, *words, word, "cluster.namespace=team", ELASTIC, "++contaner=x") == {alone}


def test_words_that_spaces_have_parted_hide_no_other_fault(problems):
    assert found(problems, *LLAMA_K8S, "recipes.trainer.devices", "=", "1", "++contaner=x") == {
        ("E001", "recipes.trainer.devices"),
        ("E101", "contaner"),
    }


def test_a_file_that_cannot_be_read_is_the_only_problem(problems, tmp_path):
    (tmp_path / "bad.yaml").write_text("a: [")
    assert {code for code, _ in found(problems, "recipes=bad.yaml", "cluster=k8s", *OF_CHECK)} == {"E004"}


def test_a_missing_value_of_a_file_hides_no_other_fault(problems, tmp_path):
    (tmp_path / "own.yaml").write_text(f"defaults: [/recipes/{LLAMA}@_here_, _self_]\ntrainer:\n  devices: ???\n")
    missing = ("E006", "recipes.trainer.devices")
    assert found(problems, "recipes=own.yaml", "cluster=k8s") == {missing}
    assert found(problems, "recipes=own.yaml", "cluster=k8s", *OF_CHECK) == {missing, *OF_CHECK.values()}
