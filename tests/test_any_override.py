"""Random overrides of every form: each lands, is a Problem, or is noticed to change nothing."""

import logging
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from conftest import CACHE, ELASTIC, LLAMA_K8S, ROOT, composed, examples, frozen_context
from hypothesis import given
from hypothesis import strategies as st

from launcher import pipeline
from launcher.common import random_values
from launcher.common.problems import ProblemsFound, shown
from launcher.config import hydra_flags
from launcher.config.compose import compose
from launcher.model import backend_registry
from launcher.model.composition import Composition
from launcher.model.config_tree import ABSENT, SCALES, get, is_base, lookup
from launcher.planning.explain import Sizes

SHORT_NAME = LLAMA_K8S[0].removeprefix("recipes=")
CONTEXT = frozen_context(Path("/nowhere"))
ARGS = "recipes.training_config.training_args"
STEPS = "recipes.training_config.datasets.preprocessor_cfgs"
MOST_S = 60.0
"""Of one command line on a loaded machine; some 0.1 s are seen."""
SUITABLE = {
    f"{ARGS}.seed": ["1", "2", "${recipes.trainer.devices}"],
    f"{ARGS}.learning_rate": ["0.5", "1e-3"],
    ARGS: ["{}", "{seed: 3}", "{seed: 3, learning_rate: 0.25}"],
    "recipes.run.name": ["x", "'y'", '"z"', "${recipes.run.model_type}"],
    "recipes.display_name": ["a b", "'a, b'", "null"],
    STEPS: ["[]", "[{type: A}]", "[{type: A}, {type: B}]"],
    f"{STEPS}.0": ["{type: C}", "{}"],
    f"{STEPS}.0.type": ["D"],
    f"{STEPS}.1.chat_template_name": ["e", "null"],
    f"{STEPS}.2.column_names": ["[a]", "[]"],
    f"{STEPS}.2.column_names.0": ["b"],
    f"{SCALES}.3.{ARGS.removeprefix('recipes.')}.learning_rate": ["0.125"],
    f"{SCALES}.3.{STEPS.removeprefix('recipes.')}.0.type": ["F"],
    f"{SCALES}.3.{STEPS.removeprefix('recipes.')}": ["[{type: G}]"],
    f"{SCALES}.3": ["{}"],
    SCALES: ["auto", "{}"],
    "env_vars": ["{A: b}", "{}"],
    "env_vars.A": ["c"],
    "cluster.namespace": ["team", "null"],
    "cluster.annotations": ["{a/b: c}", "{}", "{a.b/c: d}"],
    "container": ["img:1"],
    "recipes.extra_keys": ["[x.y]", "[]"],
    "recipes.x.y": ["1"],
    "recipes.x": ["{y: {}}", "{y: {z: 1}}"],
    "cluster": ["k8s"],
    "+base/elastic@recipes": ["policy"],
    "hydra.searchpath": ["[]", "[/usr]"],
}
"""Keys and values that a job may have."""
KEYS = st.sampled_from(sorted(composed(LLAMA_K8S[0].removeprefix("recipes=")).origins))
WILD_KEYS = st.one_of(
    KEYS,
    KEYS.map(lambda key: key.rpartition(".")[0]),
    st.builds(lambda key, n: key.replace(".", "/", n), KEYS, st.integers(1, 9)),
    st.builds(lambda key, word: f"{key}.{word}", KEYS, st.sampled_from(["0", "1", "-1", "01", "9" * 99, "x", "a.b"])),
    st.builds(lambda key, word: f"{key}@{word}", KEYS, st.sampled_from(["recipes", "x", "", "_global_", "a.b"])),
    KEYS.map(lambda key: key.removeprefix("recipes.")),
    st.sampled_from(["cluster", "recipes", "cluster_type", "cluster/contract", "recipes/training", "hydra.run.dir"]),
    st.sampled_from(
        ["base/elastic", "base/llmft@recipes", "", "a", "a/b", "base", "/x", "x/", "a@b:c", "training_cfg"]
    ),
    st.text(max_size=8),
)
WILD_VALUES = st.one_of(
    st.sampled_from(
        ["1", "-3", "0.5", "true", "null", "text", '"a, b"', "'q'", "[]", "[1,2]", "{}", "{a: {}}", "???"]
    ),
    st.sampled_from(
        ["{3: {a: 1}}", "{a.b: 1}", "[[{x: 1}]]", "${recipes.run}", "${nothing}", "${.name}", "${", "auto"]
    ),
    st.sampled_from(["policy", "k8s", "local", "common", "training/tiny/tiny_lm_cpu", "nan", "²", "a b", "1,2", "["]),
    st.text(max_size=8),
)
SIGNS = st.sampled_from(["", "", "", "+", "++", "~"])


def written(sign: str, key: str, value: str | None) -> str:
    word = key if key.startswith("+") else f"{sign}{key}"
    return word if value is None or sign == "~" else f"{word}={value}"


SUITABLE_WORDS = st.sampled_from(sorted(SUITABLE)).flatmap(
    lambda key: st.builds(written, SIGNS, st.just(key), st.sampled_from(SUITABLE[key]))
)
WORDS = st.lists(SUITABLE_WORDS, min_size=1, max_size=5) | st.lists(
    SUITABLE_WORDS | st.builds(written, SIGNS, WILD_KEYS, WILD_VALUES | st.none()), min_size=1, max_size=4
)


def swallowed(words: list[str]) -> list[str]:
    """Return the overrides that neither have an effect nor are noticed; none where there are Problems."""
    try:
        composition, job = compose(words, CONTEXT.cwd), pipeline.prepare(words, CONTEXT)
    except ProblemsFound as error:
        assert error.problems and str(error)
        return []
    tree = composition.tree
    kept = composition.corrections if get(tree, SCALES) == "auto" else get(tree, SCALES)
    tree = {**tree, "recipes": {**tree["recipes"], "scale_config": kept}}
    landed = {text for path, text in composition.explicit.items() if lookup(tree, path) is not ABSENT}
    landed |= {"recipes.scale_config=auto" for _ in [0] if composition.explicit.get(SCALES)}
    removed = set(composition.removed.values())
    noticed = [notice.message for notice in job.notices if notice.code == "N165"]
    effective = landed | removed | built(composition)
    return [
        word
        for word in map(shown, words)
        if word not in effective
        and not any(text.startswith(f"{word} changes nothing") for text in noticed)
        and not (word.startswith("hydra.searchpath=[/") and "/usr" not in word)
    ]


def built(composition: Composition) -> set[str]:
    """Return the choices of files, as typed, that the composition is really made of."""
    made_of = {(layer.config, layer.package) for layer in composition.sources.files}
    found = set()
    for place, text in composition.chosen.items():
        group, _, package = place.partition("@")
        value = text.partition("=")[2].strip("'")
        if ", " in text and place == "cluster":  # the old name, of two keys
            assert composition.backend == backend_registry.name_of("sm_local")
            found.update(text.split(", "))
            continue
        if place == "recipes":
            is_built = composition.recipe == value
        elif place == "cluster":
            is_built = composition.backend == backend_registry.name_of(value)
        else:
            layer = (f"{group}/{value.strip('[]')}", package or group.replace("/", "."))
            is_built = (layer not in made_of) if text.startswith("~") else (layer in made_of)
        if is_built:
            found.add(text)
    return found


def lost(words: list[str]) -> list[str]:
    """Return the keys whose overridden value the job does not have at some size; none where there are Problems."""
    try:
        composition = compose(words, CONTEXT.cwd)
        trees = Sizes(composition).trees if pipeline.prepare(words, CONTEXT).elastic else {}
    except ProblemsFound:
        return []
    of_sizes = [path.split(".", 3)[3] for path in composition.decided if path.count(".") > 2]
    paths = [path.removeprefix("recipes.") for path in composition.decided if is_base(path)]
    free = [path for path in paths if not any(_overlap(path, other) for other in of_sizes)]
    base = composition.tree["recipes"]
    return [path for path in free for tree in trees.values() if lookup(tree, path) != lookup(base, path)]


def _overlap(path: str, other: str) -> bool:
    return f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")


@pytest.mark.slow
@pytest.mark.parametrize("start", [LLAMA_K8S, (*LLAMA_K8S, ELASTIC), ()], ids=["static", "elastic", "default"])
@examples(60)
@given(words=WORDS)
def test_no_override_is_swallowed(start, words):
    started = time.process_time()
    assert swallowed([*start, *words]) == [] == lost([*start, *words])
    assert time.process_time() - started < MOST_S


TINY = "training/tiny/tiny_lm_cpu"
FILE = f"'{ROOT}/recipes_collection/recipes/{TINY}.yaml'"
CHOICES = {
    "recipes": [TINY, f"'{TINY}'", FILE, SHORT_NAME, "[a, b]", "null", ""],
    "recipes@x": [TINY],
    "cluster": ["k8s", "'k8s'", "slurm", "sm_local", "local"],
    "cluster_type": ["k8s", "slurm", "null"],
    "cluster.contract": ["sagemaker"],
    "base/elastic@recipes": ["policy", "'policy'", "[policy]"],
    "base/elastic@_global_.recipes": ["policy"],
    "base/elastic": ["policy"],
    "hydra.searchpath": ["[]", "[/usr]", "/usr"],
}
"""Keys that choose files, and values of each."""
GROUPS_OF_CHOICES = (
    ("recipes", "recipes@x"),
    ("cluster", "cluster_type", "cluster.contract"),
    ("base/elastic@recipes", "base/elastic@_global_.recipes", "base/elastic"),
    ("hydra.searchpath",),
)
"""Keys that decide the same."""
OVERLAPPING = sorted(
    (one, other)
    for one in SUITABLE
    for other in SUITABLE
    if _overlap(one, other) or (one.startswith(SCALES) and other.startswith(ARGS))
)
"""Pairs of keys of which one may decide the other's value."""
ALL_SIGNS = ("", "+", "++", "~")


def forms(keys: Iterable[str], values: dict[str, list[str]]) -> list[str]:
    """Return every form of some keys with each of their values, and without one."""
    return list(
        dict.fromkeys(
            written(sign, key, value)
            for key in keys
            for sign in ALL_SIGNS
            for value in ([*values[key], None] if sign == "~" else values[key])
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("keys", GROUPS_OF_CHOICES, ids=[keys[0] for keys in GROUPS_OF_CHOICES])
def test_no_choice_is_swallowed_by_another(keys):
    """Every ordered pair of all forms of the keys that decide the same."""
    words = forms(keys, CHOICES)
    found = {(one, other): swallowed_choices([one, other]) for one in words for other in words}
    assert {pair: lost for pair, lost in found.items() if lost} == {}


def swallowed_choices(words: list[str]) -> list[str]:
    """Return the choices that neither made the composition nor are said to change nothing. Does not plan the job."""
    try:
        composition = compose(words, CONTEXT.cwd, cache=CACHE)
    except ProblemsFound as error:
        assert error.problems and str(error)
        return []
    unused = [each.override for each in composition.unused]
    effective = built(composition) | set(composition.explicit.values()) | set(composition.removed.values())
    return [word for word in map(shown, words) if word not in effective and word not in unused]


@pytest.mark.slow
@examples(150)
@given(pair=st.sampled_from(OVERLAPPING).flatmap(lambda keys: st.tuples(*(_form(key) for key in keys))))
def test_no_form_of_a_key_is_swallowed_by_a_form_of_one_that_overlaps(pair):
    assert swallowed([*LLAMA_K8S, ELASTIC, *pair]) == [] == lost([*LLAMA_K8S, ELASTIC, *pair])


def _form(key: str) -> st.SearchStrategy[str]:
    return st.sampled_from(forms([key.lstrip("+")], {key.lstrip("+"): SUITABLE[key]}))


@pytest.mark.parametrize(
    "words",
    [
        (f"recipes={SHORT_NAME}", f"+recipes={TINY}"),
        (f"+recipes={TINY}", f"recipes={SHORT_NAME}"),
        (f"recipes={SHORT_NAME}", f"++recipes={FILE}"),
        ("cluster=slurm", "+cluster=k8s"),
        ("+base/elastic@recipes=policy", "base/elastic@_global_.recipes=policy"),
    ],
    ids=["added", "first added", "file", "cluster", "part"],
)
def test_the_last_of_several_choices_decides_and_the_others_are_noticed(words):
    composition = compose(words, CONTEXT.cwd, cache=CACHE)
    assert built(composition) == {words[1]}
    assert [each.override for each in composition.unused] == [words[0]]


@pytest.mark.parametrize("flags", [("--config-dir", "/usr", "--config-dir=/tmp"), ("-c", "job", "--cfg", "all")])
def test_a_flag_that_is_given_twice_is_a_problem(flags, capsys):
    assert hydra_flags.serve(lambda jobs, cache: 0, lambda words: 0, list, flags) == 2
    assert "is given 2 times" in capsys.readouterr().err


@pytest.mark.parametrize("words", [(f"recipes={SHORT_NAME}", f"+recipes={TINY}"), (f"+recipes={FILE}",)])
def test_hydra_s_own_output_shows_what_a_launch_would_build(words, capfd):
    assert hydra_flags.serve(lambda jobs, cache: 0, lambda words: 0, list, ["--cfg", "job", *words]) == 0
    assert "Tiny byte-level language model on CPU" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("learning_rate=1e-4", "E101 learning_rate"),
        ("recipes.trainer.num_node=2", "E101 recipes.trainer.num_node"),
        ("cluster=k8", "E005 cluster"),
        ("a b", "E001 a b"),
    ],
)
@pytest.mark.parametrize("flag", [("--cfg", "job"), ("--info", "defaults")], ids=["cfg", "info"])
def test_what_hydra_refuses_is_refused_as_by_a_launch(recipes, flag, word, says):
    code, _, errors = recipes("run", f"recipes={SHORT_NAME}", word, *flag)
    assert code == 2 and errors.startswith(f"{says}\n")


@pytest.mark.parametrize("flag", [("--cfg", "job"), ("--info", "defaults")], ids=["cfg", "info"])
def test_hydra_s_own_output_leaves_the_loggers_of_the_process(flag):
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    assert (
        hydra_flags.serve(lambda jobs, cache: 0, lambda words: 0, list, ["--cfg", "job", f"recipes={SHORT_NAME}"])
        == 0
    )
    assert (root.level, root.handlers) == before and not logging.getLogger("launcher.config").disabled


def test_large_overrides_take_bounded_time():
    many = ", ".join(f"k{i}: {i}" for i in range(5000))
    words = [*LLAMA_K8S, ELASTIC, f"++recipes.x={{{many}}}", f"++recipes.x={{{many}}}"]
    started = time.process_time()
    assert swallowed(words) == []
    assert time.process_time() - started < MOST_S


@pytest.mark.slow
def test_a_long_word_is_searched_for_secrets_in_linear_time():
    started = time.process_time()
    assert list(random_values.random_parts("b" * 1_000_000)) == []
    assert time.process_time() - started < 10
