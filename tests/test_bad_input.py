"""Files that no sensible person writes: each is a Problem, in bounded time and memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, frozen_context

from launcher import pipeline
from launcher.common.problems import ProblemsFound

NINE = range(9)
QUOTED = "'${{recipes.a{}}}'"
RATE = "recipes.training_config.training_args.learning_rate"
TINY = "defaults: [/recipes/training/tiny/tiny_lm_cpu@_here_, _self_]\n"


def multiplied(written: str, joined: str) -> str:
    """Return ten lines, each of which repeats the one before nine times."""
    lines = (f"a{i}: " + written.format(i=i, last=joined.join([f"{i - 1}"] * 9)) for i in range(1, 10))
    return "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "\n".join(lines)


HOSTILE = {
    "ten_megabytes": ("k: v\n# " + "x" * 10_000_000, "E004", "at most 1 MiB"),
    "deep_flow": ("a: " + "[" * 400_000, "E004", ":1:67"),
    "deep_mappings": ("{a: " * 200_000, "E004", "64 levels"),
    "deep_blocks": ("- " * 400_000 + "x", "E004", "64 levels"),
    "deep_keys": ("? " * 400_000 + "x", "E004", "64 levels"),
    "deep_indents": ("".join(f"{' ' * i}a:\n" for i in range(1400)), "E004", ":65:65"),
    "many_keys": ("\n".join(f"k{i}: 1" for i in range(90_000)), "E004", "10000 values"),
    "many_empty_lists": (f"a: [{'[],' * 300_000}]", "E004", "10000 values"),
    "aliases_that_multiply": (multiplied("&a{i} [*a{last}]", ", *a"), "E004", "10000 values"),
    "merges_that_multiply": (
        "a0: &a0 {x: 1}\n"
        + "\n".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 10)),
        "E004",
        "10000 values",
    ),
    "a_chain_of_aliases": (
        "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 400)),
        "E004",
        "64 levels deep, aliases expanded",
    ),
    "an_alias_to_itself": ("a: &a [*a]", "E004", ":1:4"),
    "references_that_multiply": (
        "a0: xxxxxxxxxx\n" + "".join(f"a{i}: '{f'${{recipes.a{i - 1}}}' * 10}'\n" for i in range(1, 12)),
        "E007",
        "repeat each other",
    ),
    "references_to_lists_that_multiply": (
        "a0: [x, x, x]\n" + "".join(f"a{i}: [{','.join([QUOTED.format(i - 1)] * 9)}]\n" for i in range(1, 10)),
        "E007",
        "repeat each other",
    ),
    "a_chain_of_references": (
        "a0: 1\n" + "".join(f"a{i}: ${{recipes.a{i - 1}}}\n" for i in range(1, 900)),
        "E007",
        "repeat each other",
    ),
    "references_in_a_circle": ("a: ${recipes.b}\nb: ${recipes.a}", "E007", "recipes."),
    "too_many_references": ("a: '" + "${b}" * 200_000 + "'", "E004", "at most 1000"),
    "references_in_references": ("a: 1\nb: '" + "${" * 500 + "'", "E004", ":2"),
    "half_a_reference": ("a: 1\nb: '${'", "E004", ":2:4"),
    "a_number_without_end": ("a: " + "9" * 900_000, "E004", "at most 64"),
    "a_key_without_end": ("a" * 900_000 + ": 1", "E004", ":1:900001"),
    "a_quote_without_end": ('a: "' + "\\n" * 400_000, "E004", "end of stream"),
    "thousands_of_documents": ("a: 1\n---\n" * 1000, "E004", ":2:1"),
    "a_nul_byte": ("a: 1\nb: \0", "E004", ":2:4"),
    "a_tab": ("a:\n\tb: 1", "E004", "use spaces"),
    "a_python_object": ("a: !!python/object/apply:os.system [id]", "E004", "not supported"),
    "a_key_given_twice": ("a: 1\nb: 2\na: 3", "E004", ":3:1"),
    "an_unknown_alias": ("a: *b", "E004", "undefined alias"),
    "nothing": ("", "E103", "inherit one"),
    "only_null": ("~", "E103", "inherit one"),
}
RAW = {
    "utf_16": ("a: 1".encode("utf-16"), "E004", "not UTF-8"),
    "latin_1": ("a: 1\nb: caf\xe9\n".encode("latin-1"), "E004", ":2:7"),
    "bytes": (bytes(range(256)), "E004", "not UTF-8"),
}
CASES = {name: (text.encode(), code, says) for name, (text, code, says) in HOSTILE.items()} | RAW
MOST_S, MOST_MIB = 5.0, 120  # on a loaded machine; some 0.2 s and 40 MiB are seen


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_hostile_recipe_is_one_problem(name, problems, tmp_path):
    raw, code, says = CASES[name]
    (tmp_path / "bad.yaml").write_bytes(raw)
    (problem,) = problems("recipes=bad.yaml")
    assert problem.code == code and says in str(problem)
    assert len(str(problem)) < 1000


def test_a_circle_of_references_hides_no_other_fault(problems, tmp_path):
    (tmp_path / "bad.yaml").write_text("a: ${recipes.b}\nb: ${recipes.a}\nc: ${recipes.nosuch}\nd: ${recipes.c}")
    assert [p.path for p in problems("recipes=bad.yaml")] == ["recipes.a", "recipes.c"]


MEASURED = """
import json, resource, sys, time
from pathlib import Path
sys.path[:0] = [{tests!r}, {tests!r} + "/engines", {root!r}]
from test_bad_input import CASES, measured
print(json.dumps(measured(Path({folder!r}))))
"""


def measured(folder: Path) -> dict[str, tuple[float, float]]:
    """Return what each case takes: seconds, and MiB by which it raises this process's peak."""
    import resource
    import time

    found = {}
    for name, (raw, _, _) in CASES.items():
        (folder / "bad.yaml").write_bytes(raw)
        os.utime(folder / "bad.yaml", ns=(0, len(found)))
        peak, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        try:
            pipeline.prepare(["recipes=bad.yaml"], frozen_context(folder))
        except ProblemsFound:
            taken = time.perf_counter() - start
            found[name] = (taken, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024)
    return found


@pytest.mark.slow
def test_hostile_recipes_cost_little_time_and_memory(tmp_path):
    """In a process of their own, which a stack that ends would end."""
    program = MEASURED.format(tests=str(ROOT / "tests"), root=str(ROOT), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    costs = json.loads(done.stdout)
    assert costs.keys() == CASES.keys()
    assert {name: cost for name, cost in costs.items() if cost[0] > MOST_S or cost[1] > MOST_MIB} == {}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"a": "defaults: [a@_here_]"}, ["a.yaml:1:12 names a@_here_", "back to itself"]),
        (
            {"a": "defaults:\n  - b@_here_", "b": "defaults:\n  - c@_here_", "c": "x: 1\ndefaults:\n  - a@_here_"},
            ["a.yaml:2:5 names b@_here_", "b.yaml:2:5 names c@_here_", "c.yaml:3:5 names a@_here_"],
        ),
        (
            {"a": "defaults:\n  - b@_here_", "b": "defaults: [/base/tiny/lmm@_here_]"},
            ["b.yaml:1:12", "/base/tiny/lm@"],
        ),
        ({"a": "defaults:\n  - base/tiny/lm@_here_"}, ["a.yaml:2:5", "with a slash before it"]),
        ({"a": "defaults:\n  - /base/tiny: lmm"}, ["a.yaml:2:17", "/base/tiny/lm@"]),
        ({"a": "defaults:\n  - /base/tiny/lm"}, ["a.yaml:2:5", "/base/tiny/lm@_here_"]),
        ({"a": "defaults: x"}, ["a.yaml:1:11", "defaults must be a list"]),
        ({"a": "defaults:\n  - [x]"}, ["a.yaml:2:5", "not a valid entry"]),
        ({"a": "defaults: [_self_, _self_]"}, ["a.yaml:1:20", "once"]),
        ({"a": "defaults: [optional b@_here_]"}, ["a.yaml:1:12", "{optional /group@_here_: name}"]),
        (
            {"a": "defaults: [{override /cluster: k8s}]"},
            ["a.yaml:1:32", "override /cluster: k8s", "launch with cluster=k8s"],
        ),
        (
            {"a": "defaults: [{override /cluster: k8s}, /base/tiny/lm@_here_]"},
            ["a.yaml:1:32", "launch with cluster=k8s"],
        ),
        ({"a": "defaults:\n  - {' ': x}"}, ["a.yaml:2:5", "not a valid entry"]),
        ({"a": "defaults: [{/base/tiny@_here_: '${x}'}]"}, ["a.yaml:1:32", "refers to ${x}"]),
        ({"a": "defaults: [/base/tiny/lm@_hre_]"}, ["a.yaml:1:12", "@_hre_", "/base/tiny/lm@_here_"]),
        ({"a": "defaults: [{/base/tiny@_here_@x: lm}]"}, ["a.yaml:1:34", "/base/tiny@_here_: lm"]),
    ],
    ids=[
        *("itself", "circle", "absent", "no_slash", "absent_option", "no_place", "text", "list", "self_twice"),
        *("optional", "override", "override_first", "no_group", "reference", "place", "two_places"),
    ],
)
def test_faulty_defaults_name_file_line_and_column(files, says, problems, tmp_path):
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (problem,) = problems("recipes=a.yaml")
    assert problem.code == "E005"
    assert [word for word in says if word not in str(problem)] == []


@pytest.mark.parametrize(
    "default",
    ["{/base/tiny@_here_: '???'}", "am@_here_", "{override /base/foo: nope}", "dangling@_here_", "folder@_here_"],
)
def test_only_another_file_is_suggested_in_place_of_an_absent_one(default, problems, tmp_path):
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "ama.yaml").write_text(f"defaults: [{default}]")
    (problem,) = problems("recipes=ama.yaml")
    assert (problem.code, problem.remedy) == ("E005", None)


@pytest.mark.parametrize(
    ("files", "words", "faults"),
    [
        ({"a": "???"}, (), ["a.yaml:2"]),
        ({"a": "???"}, (f"{RATE}=0.1",), []),
        ({"a": "0.1", "b": "???"}, (), []),
        ({"a": "???", "b": "0.1"}, (), ["a.yaml:2"]),
    ],
    ids=["inherited", "override", "file", "inherited_own"],
)
def test_a_placeholder_over_an_inherited_value_is_to_be_replaced(files, words, faults, prepare, tmp_path):
    names = [*files, "/recipes/training/tiny/tiny_lm_cpu"]
    for name, below in zip(files, names[1:], strict=False):
        value = f"training_config: {{training_args: {{learning_rate: '{files[name]}'}}}}".replace("'0.1'", "0.1")
        (tmp_path / f"{name}.yaml").write_text(f"defaults: [{below}@_here_, _self_]\n{value}")
    found = []
    try:
        prepare("recipes=a.yaml", *words)
    except ProblemsFound as error:
        found = [(problem.code, problem.path, problem.where) for problem in error.problems]
    assert found == [("E006", RATE, f"{tmp_path}/{place}") for place in faults]


@pytest.mark.parametrize("self", ["{}, _self_", "_self_, {}"], ids=["over", "under"])
def test_a_list_and_a_mapping_in_one_place_are_told_by_key(self, problems, tmp_path):
    defaults = self.format("/recipes/training/tiny/tiny_lm_cpu@_here_")
    text = f"defaults: [{defaults}]\ntrainer: [1]\ntraining_config:\n  training_args: [2]\ninstance_types:\n  a: 1"
    (tmp_path / "a.yaml").write_text(text)
    found = {problem.path: (problem.code, problem.allowed, problem.where) for problem in problems("recipes=a.yaml")}
    assert found == {
        "recipes.trainer": ("E102", "a mapping", f"{tmp_path}/a.yaml:2"),
        "recipes.training_config.training_args": ("E102", "a mapping", f"{tmp_path}/a.yaml:4"),
        "recipes.instance_types": ("E102", "a list", f"{tmp_path}/a.yaml:6"),
    }


def test_circle_is_named_where_a_library_has_raised_the_recursion_limit(problems, tmp_path):
    (tmp_path / "a.yaml").write_text("defaults:\n  - a@_here_")
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(30_000)
    try:
        (problem,) = problems("recipes=a.yaml")
    finally:
        sys.setrecursionlimit(usual)
    assert "lead back to itself" in str(problem)


@pytest.mark.slow
def test_defaults_that_multiply_are_refused(problems, tmp_path):
    for i in NINE:
        below = "".join(f"  - b{i + 1}@x{j}\n" for j in NINE)
        (tmp_path / f"b{i}.yaml").write_text("a: 1\n" if i == 8 else f"defaults:\n{below}  - _self_\n")
    (problem,) = problems("recipes=b0.yaml")
    assert problem.code == "E005" and "more than 2000 files" in problem.message


def test_every_missing_default_is_told(problems, tmp_path):
    (tmp_path / "a.yaml").write_text("defaults: [/base/x@_here_, b@_here_, c@_here_]")
    (tmp_path / "b.yaml").write_text("defaults: [/base/y@_here_]")
    assert [p.value for p in problems("recipes=a.yaml")] == ["/base/x@_here_", "/base/y@_here_", "c@_here_"]


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lor", "seq4k_gpu_sft_lora"),
        ("training/tiny/tiny_lm", "training/tiny/tiny_lm_cpu"),
        ("team/my_recip", "team/my_recipe"),
    ],
    ids=["shipped", "shorter", "own_folder"],
)
def test_a_recipe_that_does_not_exist_lists_the_nearest(typed, near, problems, tmp_path):
    (tmp_path / "recipes" / "team").mkdir(parents=True)
    (tmp_path / "recipes" / "team" / "my_recipe.yaml").write_text(TINY)
    (problem,) = problems(f"recipes={typed}", f"hydra.searchpath=[{tmp_path}]", "cluster=local")
    assert problem.code == "E005" and near in problem.remedy


def test_a_file_that_does_not_exist_lists_the_nearest(problems, tmp_path):
    (tmp_path / "mine.yaml").write_text(TINY)
    (problem,) = problems("recipes=mime.yaml")
    assert problem.code == "E005" and "mine.yaml" in problem.remedy


def test_a_link_that_leads_nowhere_names_its_target(problems, tmp_path):
    (tmp_path / "a.yaml").symlink_to("/nowhere/b.yaml")
    (problem,) = problems("recipes=a.yaml")
    assert problem.message == "is a link to /nowhere/b.yaml, which does not exist" and problem.remedy is None


def test_a_recipe_that_is_a_placeholder_does_not_exist(problems):
    (problem,) = problems("recipes='f/???'")
    assert (problem.code, problem.path, problem.value) == ("E005", "recipes", "f/???")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read any file")
def test_a_file_that_may_not_be_read_is_a_problem(problems, tmp_path):
    (tmp_path / "mine.yaml").write_text(TINY)
    (tmp_path / "mine.yaml").chmod(0)
    (problem,) = problems("recipes=mine.yaml")
    assert problem.code == "E004" and "Permission denied" in problem.message


def test_an_override_nested_too_deep_is_a_problem(problems):
    (problem,) = problems(f"+a={'[' * 3000}")
    assert problem.code == "E001"
