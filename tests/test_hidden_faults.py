"""Faults of a command line are shown at once: those that keep it from composing do not hide the others."""

import pytest
from conftest import ELASTIC, LLAMA, LLAMA_K8S

OF_COMPOSITION = {
    "++recipes.trainer.devices=[1": ("E001", "++recipes.trainer.devices=[1"),
    "recipes.trainer.devices=1,2": ("E002", "recipes.trainer.devices=1,2"),
    "recipes.trainer.devices=${recipes.trainer.nodes}": ("E007", "recipes.trainer.devices"),
    "recipes.trainer.devices=???": ("E006", "recipes.trainer.devices"),
}
"""Faults of an override that keep a command line from composing."""
OF_TYPES = {
    "++contaner=x": ("E101", "contaner"),
    "recipes.trainer.num_nodes=abc": ("E102", "recipes.trainer.num_nodes"),
    "cluster.namespace=[a]": ("E102", "cluster.namespace"),
}
"""Faults that are found in what was composed."""


def found(problems, *words):
    given = problems(*words)
    assert len(given) == len({(each.code, each.path) for each in given})
    return {(each.code, each.path) for each in given}


@pytest.mark.parametrize("word", OF_COMPOSITION)
def test_a_fault_of_composition_hides_no_fault_of_a_type_and_leads_to_none(problems, word):
    assert found(problems, *LLAMA_K8S, word) == {OF_COMPOSITION[word]}
    assert found(problems, *LLAMA_K8S, word, *OF_TYPES) == {OF_COMPOSITION[word], *OF_TYPES.values()}


def test_what_may_depend_on_another_override_is_not_examined(problems):
    batch = "recipes.training_config.training_args.train_batch_size=7"  # does not divide among the devices
    words = (*LLAMA_K8S, batch, "recipes.trainer.devices=8")
    assert {code for code, _ in found(problems, *words)} == {"E221"}
    assert found(problems, *words, "recipes.trainer.num_nodes=[1") == {("E001", "recipes.trainer.num_nodes=[1")}


@pytest.mark.parametrize(
    ("choices", "fault", "hidden"),
    [
        ((f"recipes={LLAMA}", "cluster=k8"), ("E005", "cluster"), ["contaner", "recipes.trainer.num_nodes"]),
        ((f"recipes={LLAMA}x", "cluster=k8s"), ("E005", "recipes"), ["contaner", "cluster.namespace"]),
        ((f"recipes={LLAMA}", "clusters=k8s"), ("E101", "clusters"), [path for _, path in OF_TYPES.values()]),
        ((f"recipe={LLAMA}", "cluster=k8s"), ("E101", "recipe"), [path for _, path in OF_TYPES.values()]),
    ],
)
def test_a_misspelt_choice_hides_no_fault_that_does_not_depend_on_what_is_meant(problems, choices, fault, hidden):
    assert found(problems, *choices) == {fault}
    assert found(problems, *choices, *OF_TYPES) == {fault, *(each for each in OF_TYPES.values() if each[1] in hidden)}


@pytest.mark.parametrize(
    "word",
    [
        *("cluster=zzz", "cluster_type=zzz", "cluster=[k8s", "recipes=[a", "recipes=absent.yaml", "k8s", "own.yaml"),
        *("+base/elastic@recipes=polcy", "hydra.searchpath=[/absent]", "recipes.trainer.devices:1"),
        *("rehearse.ranks=[1", "recipes.extra_keys=a,b", "recipes.run.model_type=[x", "recipes={a: 1", "~nothing.a"),
        *("training_cfg.entry_script=[a", "recipes.run={model_type: x", "env_vars={DB_PASSWORD: Tr0ub4dor-9x, A: ["),
    ],
)
def test_a_fault_on_which_others_may_depend_is_the_only_problem(problems, word):
    words = (f"recipes={LLAMA}", *(["cluster=k8s"] if not word.startswith(("cluster", "k8s")) else []))
    (alone,) = found(problems, *words, word)
    further = ("cluster.namespace=team", ELASTIC, "++recipes.a=1", "recipes.run.name=Tr0ub4dor-9x")
    assert found(problems, *words, word, *further) == {alone}


@pytest.mark.parametrize(
    "words",
    [
        ("++recipes.mine=[1", "recipes.run.name=${recipes.mine}"),
        ("++recipes.mine={a: 1", "recipes.run.name=${.mine.a}"),
        ("++recipes.mine={a: 1, b: [2}", "~recipes.mine.a"),
        ("recipes.trainer.devices=[1", "recipes.trainer.num_nodes=${recipes.trainer.devices}"),
    ],
)
def test_what_refers_to_a_faulty_value_is_no_fault(problems, words):
    assert found(problems, *LLAMA_K8S, "recipes.extra_keys=[mine]", *words) == {("E001", words[0])}


def test_a_misspelt_recipe_that_is_typed_often_takes_no_longer(problems):
    assert found(problems, *[f"recipes={LLAMA}x"] * 30, "cluster=k8s") == {("E005", "recipes")}


def test_a_file_with_a_quote_in_its_name_may_be_meant(problems, tmp_path):
    (tmp_path / "bob's.yaml").write_text(f"defaults: [/recipes/{LLAMA}@_here_, _self_]\n")
    assert found(problems, "recipes=bobs.yaml", "++contaner=x") == {("E005", "recipes")}


def test_a_misspelt_key_is_suggested_beside_a_fault_of_composition(problems):
    *_, unknown = problems(*LLAMA_K8S, "recipes.trainer.devices=[1", "++contaner=x")
    assert unknown.remedy == "did you mean container?"


def test_a_file_that_cannot_be_read_is_the_only_problem(problems, tmp_path):
    (tmp_path / "bad.yaml").write_text("a: [")
    assert {code for code, _ in found(problems, "recipes=bad.yaml", "cluster=k8s", *OF_TYPES)} == {"E004"}
