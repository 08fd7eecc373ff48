"""A launch without Hydra beside one with it: the same in every respect."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import ELASTIC, LLAMA, LLAMA_K8S, RATE, ROOT, frozen_context, needed_by, shipped
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from test_any_override import KEYS, WORDS

from launcher import pipeline
from launcher.common.problems import ProblemsFound
from launcher.config import compose as composing
from launcher.config import composed_files, hydra_overrides, overrides, plain_values
from launcher.config.composed_files import CompositionCache
from launcher.config.plain_values import NotPlain

CLUSTERS = ("k8s", "slurm", "sm_jobs", "local", "sm_local")
LONG_AGO = (1_700_000_000, 1_700_000_000)
TINY = "defaults:\n  - /recipes/training/tiny/tiny_lm_cpu@_here_\n  - _self_\nrun:\n  name: {}\n"


def refuse(*_args):
    raise NotPlain


def outcome(words: Sequence[str], folder: Path, *, is_plain: bool, monkeypatch) -> object:
    """Return all that a launch shows and writes: Problems, or origins, notices and the bundle's files."""
    context, cache = frozen_context(folder), CompositionCache()
    with monkeypatch.context() as changed:
        if not is_plain:  # Hydra parses, composes and sets every value
            changed.setattr(overrides, "plain", lambda text: None)
            changed.setattr(plain_values, "valued", refuse)
            changed.setattr(composed_files, "compose_plain", refuse)
        try:
            composition = composing.compose(words, context.cwd, context.suffix, cache=cache)
            job = pipeline.prepare(words, context, cache)
            files = pipeline.render(job, context).files
        except ProblemsFound as error:
            return repr(error.problems)  # as text: a value of nan is not equal to itself
    rest = dataclasses.replace(composition, tree={})
    return repr(composition.tree), rest, composition.origins, job.notices, dict(files)


def assert_same(words: Sequence[str], folder: Path, monkeypatch) -> None:
    expected = outcome(words, folder, is_plain=False, monkeypatch=monkeypatch)
    assert outcome(words, folder, is_plain=True, monkeypatch=monkeypatch) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "cluster"),
    [
        pytest.param(entry, cluster, id=f"{cluster}-{entry.name.rpartition('/')[2]}")
        for entry, cluster in zip(shipped(), itertools.cycle(CLUSTERS))
    ],
)
def test_a_recipe_of_the_catalogue_is_the_same_without_hydra(entry, cluster, monkeypatch, tmp_path):
    words = [f"recipes={entry.name}", f"cluster={cluster}", *needed_by(entry)]
    assert_same(words, tmp_path, monkeypatch)


PLAIN_VALUES = st.sampled_from(
    ["1", "-3", "0.5", "1e-3", "true", "False", "null", "text", "a/b-c", "auto", "", "'q q'"]
)
PLAIN_WORDS = st.lists(
    st.builds(lambda sign, key, value: f"{sign}{key}={value}", st.sampled_from(["", "++"]), KEYS, PLAIN_VALUES)
    | KEYS.map(lambda key: f"~{key}"),
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.sampled_from([(), (ELASTIC,), (ELASTIC, "recipes.scale_config=auto")]), PLAIN_WORDS | WORDS)
@example((ELASTIC,), [f"{RATE}=0.5", "recipes.run.name=x", "~recipes.extra_keys"])
@example((), ["recipes.elastic_policy.is_elastic=true", "recipes.scale_config.3=null"])
@example((), ["after=nan"])
@example((), ["~recipes.display_name=5"])
@example(
    (), ["++env_vars={A: b}", "env_vars={C: d, A: null}", "env_vars={}", "++recipes.x={y: {}}", "instance_type=[a]"]
)
@example((), ["cluster.annotations={a.b/c: d}", "recipes.training_config.datasets.preprocessor_cfgs={type: A}"])
@example((), ["recipes.scale_config.3.trainer.num_nodes=3", "recipes.scale_config=auto"])
def test_a_random_command_line_is_the_same_without_hydra(start, words):
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert_same([*LLAMA_K8S, *start, *words], Path("/nowhere"), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        *("${multiply:2,3}", "${multiply: -2 , ${..trainer.devices}}", "${add:1,${.two},3}", "${divide_ceil:7,2}"),
        *(
            "${divide_floor:7,0}",
            "${multiply:2}",
            "${add:a,1}",
            "${add:true,1}",
            "${add:1.5,1}",
            "${add:07,1}",
            "${add:}",
        ),
        *("${add:${.call},1}", "${nothing:1}", "${add:[1],2}", "x${add:1,2}", "${add:${.absent},2}", "${add:'1',2}"),
    ],
)
def test_a_function_of_numbers_is_the_same_without_hydra(call, monkeypatch, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(f'{TINY.format("one")}x: {{two: 2, call: "{call}"}}\nextra_keys: [x]\n')
    os.utime(file, LONG_AGO)
    assert_same([f"recipes={file}", "cluster=local"], tmp_path, monkeypatch)


KEY_TEXTS = st.from_regex(r"(\+|\+\+|~)?[A-Za-z_]\w{0,3}(\.(\w{1,3})){0,2}", fullmatch=True)
VALUE_TEXTS = st.one_of(
    st.from_regex(r"-?[0-9eE.+_-]{1,8}", fullmatch=True),
    st.from_regex(r"[A-Za-z_/][\w./:@-]{0,12}", fullmatch=True),
    st.sampled_from(
        ["", "null", "NULL", "True", "nan", "-inf", "Inf", "1_000", "007", "1.", ".5", "1e5", "-0", "0.0"]
    ),
    st.text(alphabet="ab1 .,:'\"[]{}=$\\/~+-", max_size=8),
    st.text(alphabet="ab 1.,:[]{}=/~+-", max_size=8).map(lambda text: f"'{text}'"),
)


@pytest.mark.slow
@settings(max_examples=400)
@given(KEY_TEXTS, st.one_of(st.none(), VALUE_TEXTS))
def test_a_plain_override_is_what_hydras_grammar_makes_of_it(key, value):
    text = key if value is None else f"{key}={value}"
    found = overrides.plain(text)
    event("plain" if found else "left to the grammar")
    if found is None:
        return
    expected = hydra_overrides.unchecked(text)
    fields = ("text", "sign", "key", "value", "package", "is_sweep")
    assert [repr(getattr(found, name)) for name in fields] == [repr(getattr(expected, name)) for name in fields]


@given(st.text(alphabet="ab'\\\" ", max_size=12))
def test_a_quoted_text_is_read_as_that_text(text):
    from launcher.config.overrides import quoted

    assert OverridesParser.create().parse_override(f"a={quoted(text)}").value() == text


def names_of(folder: Path, words: Sequence[str]) -> str:
    """Return the run.name of a composition in a process's first use of the folder."""
    return composing.compose(words, folder).tree["recipes"]["run"]["name"]


@pytest.mark.slow
def test_a_launch_loads_no_hydra(tmp_path):
    (tmp_path / "mine.yaml").write_text(TINY.format("mine"))
    launches = [[*LLAMA_K8S, ELASTIC, f"{RATE}=0.5"], ["recipes=mine.yaml"], []]
    script = (
        "import sys; from pathlib import Path; from launcher.config.compose import compose\n"
        f"for words in {launches!r}: compose(words, Path.cwd())\n"
        "print(sorted({'hydra', 'omegaconf', 'antlr4'} & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=env, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


DEFAULTS = st.lists(
    st.sampled_from(
        [
            *("/base/a@_here_", "/base/b@_global_", "/base/none@_here_", "optional /base/none@_here_", "_self_"),
            *("/base/a@run", "/base/a", "/base/a.yaml@_here_", "/base/../base/a@_here_", "base/a@_here_"),
            *("a@_here_", "b@_here_", "/recipes/other@_here_", "other@_here_", "/recipes/own@_here_", 1, None),
            *({"/base@_here_": "a"}, {"/base@_here_": ["a", "b"]}, {"override /cluster": "slurm"}),
        ]
    ),
    max_size=3,
)
BODIES = st.sampled_from(
    [
        *("run: {name: x}", "recipes: {run: {name: y}}", "run: null", "", "run: [1]", "~: 1", "3: {a: b}", "[1]"),
        *(
            "x: ${.y}\ny: 2",
            "x: ${..a\n",
            "x: ${recipes.run.name}",
            "x: '${oc.env:HOME}'",
            "run: ${.x}\nx: {name: z}",
        ),
        *("hydra: {verbose: true}", "# @package run\nname: z", "run: {name: ???}", "run: {name\n", "x: '\\${y}'"),
    ]
)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(st.tuples(DEFAULTS, BODIES), min_size=4, max_size=4), st.sampled_from(["own", "recipes/own.yaml"]))
@example([(["/base/a@_here_", "a@_here_"], "run: {name: x}"), ([], ""), (["b@_here_"], ""), ([], "run: [1]")], "own")
@example(
    [(["other@_here_", "_self_"], ""), (["/base/b@_global_"], "x: ${.y}"), ([], ""), ([], "env_vars: {A: b}")], "own"
)
def test_files_of_any_form_are_the_same_without_hydra(tmp_path_factory, files, choice):
    folder = tmp_path_factory.mktemp("forms")
    for name, (defaults, body) in zip(("recipes/own", "recipes/other", "base/a", "base/b"), files, strict=True):
        (folder / name).parent.mkdir(exist_ok=True)
        start = "/recipes/training/tiny/tiny_lm_cpu@_here_" if name == "recipes/own" else None
        entries = [*filter(None, [start]), *defaults]
        (folder / f"{name}.yaml").write_text(f"{body}\ndefaults: {json.dumps(entries)}\n")
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert_same([f"hydra.searchpath=[{folder}]", f"recipes={choice}"], folder, monkeypatch)


@pytest.mark.parametrize(
    "words",
    [
        ["recipes=training/custom/script", "cluster=slurm", "training_cfg.entry_module=json.tool"],
        [*LLAMA_K8S, "container='${oc.env:A_PASSWORD,none}'"],
    ],
    ids=["arithmetic", "variable"],
)
def test_a_launch_knows_every_function_of_a_reference(tmp_path, monkeypatch, words):
    monkeypatch.setenv("A_PASSWORD", "x7Gh29aK")
    assert_same(words, tmp_path, monkeypatch)
    shown = repr(outcome(words, tmp_path, is_plain=True, monkeypatch=monkeypatch))
    assert "Unsupported" not in shown and "x7Gh29aK" not in shown


def test_a_changed_file_is_composed_anew(tmp_path):
    file = tmp_path / "mine.yaml"
    for name in ("one", "two"):
        file.write_text(TINY.format(name))
        os.utime(file, LONG_AGO)  # and of the same size: its state differs nevertheless
        assert names_of(tmp_path, ["recipes=mine.yaml"]) == name


@pytest.mark.slow
def test_a_file_that_newly_shadows_another_is_found(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    words = [f"hydra.searchpath=[{first},{second}]", "recipes=own"]
    for folder in (second, first):
        first.mkdir(exist_ok=True)
        (folder / "recipes").mkdir(parents=True)
        (folder / "recipes" / "own.yaml").write_text(TINY.format(folder.name))
        assert names_of(tmp_path, words) == names_of(tmp_path, words) == folder.name
    (first / "recipes" / "own.yaml").unlink()
    assert names_of(tmp_path, words) == "second"


def test_a_relative_folder_is_that_of_the_current_one(tmp_path, monkeypatch):
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / "own" / "recipes").mkdir(parents=True)
        (folder / "own" / "recipes" / "mine.yaml").write_text(TINY.format(name))
        monkeypatch.chdir(folder)
        assert names_of(folder, ["hydra.searchpath=[own]", "recipes=mine"]) == name


def test_a_default_follows_an_environment_variable(tmp_path, monkeypatch):
    (tmp_path / "base" / "own").mkdir(parents=True)
    for name in ("one", "two"):
        (tmp_path / "base" / "own" / f"{name}.yaml").write_text(f"run: {{name: {name}}}\n")
    defaults = ["/recipes/training/tiny/tiny_lm_cpu@_here_", "_self_", {"/base/own@_here_": "${oc.env:WHICH}"}]
    (tmp_path / "mine.yaml").write_text(json.dumps({"defaults": defaults}))
    for name in ("one", "two"):
        monkeypatch.setenv("WHICH", name)
        try:
            found = names_of(tmp_path, [f"hydra.searchpath=[{tmp_path}]", "recipes=mine.yaml"])
        except ProblemsFound:  # whether a default may refer to a variable is Hydra's choice
            continue
        assert found == name


def test_a_recipe_whose_keys_are_moved_is_named_by_its_file(tmp_path):
    (tmp_path / "mine.yaml").write_text("# @package _global_\nrun: {name: x}\n")
    with pytest.raises(ProblemsFound) as caught:
        composing.compose(["recipes=mine.yaml"], tmp_path)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path, problem.where) == ("E005", "recipes", f"{tmp_path}/mine.yaml")


def test_one_process_reads_a_composition_once(monkeypatch):
    cache = CompositionCache()
    composing.compose(LLAMA_K8S, Path("/nowhere"), cache=cache)
    monkeypatch.setattr(composed_files, "_compose", lambda choices, cache: pytest.fail("read again"))
    composing.compose([f"recipes={LLAMA}", "cluster=k8s"], Path("/nowhere"), cache=cache)
