"""What sweeps of Hydra's grammar mean to a sampler, and which words of Hydra's Optuna sweeper are accepted."""

import pytest

from launcher.common.problems import ProblemsFound
from launcher.config import dimensions, search_space
from launcher.config.dimensions import Dimension

A = "recipes.a"


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        (f"{A}=interval(1e-5,1e-3)", Dimension(A, low=1e-5, high=1e-3)),
        (f"{A}=tag(log, interval(1e-5,1))", Dimension(A, low=1e-5, high=1.0, is_log=True)),
        (f"{A}=int(interval(1,5))", Dimension(A, low=1, high=5)),
        (f"{A}=range(1,10,2)", Dimension(A, low=1, high=9, step=2)),
        (f"{A}=tag(log, range(1,9))", Dimension(A, low=1, high=8, step=1, is_log=True)),
        (f"{A}=range(10,1,-3)", Dimension(A, ("10", "7", "4"))),
        (f"+{A}=choice(8,16)", Dimension(f"+{A}", ("8", "16"))),
        (f"++{A}=1,null,'x y',1", Dimension(f"++{A}", ("1", "null", "'x y'"))),
        (f"{A}=choice([1,2],{{b:1}})", Dimension(A, ("[1,2]", "{b:1}"))),
    ],
)
def test_a_sweep_is_a_dimension(text, dimension):
    assert search_space.dimensions([text]) == (dimension,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{A}=interval(5,1)", "reversed"),
        (f"{A}=interval(1,inf)", "not finite"),
        (f"{A}=tag(log, interval(0,1))", "no logarithm"),
        (f"{A}=tag(log, range(0,9))", "no logarithm"),
        (f"{A}=tag(log, range(1,9,2))", "no logarithm"),
        (f"{A}=tag(quiet, interval(0,1))", "tag that no sampler reads"),
        (f"{A}=choice()", "empty choice"),
        (f"{A}=range(5,1)", "is 0 values"),
        (f"{A}=shuffle(range(1,5))", "random order"),
        (f"{A}=8", "has one value"),
        ("recipes=glob(tiny*)", "glob"),
        (f"{A}=[1,interval(0,1)]", "E00"),
    ],
)
def test_a_sweep_that_no_sampler_draws_from_is_a_problem(text, says):
    with pytest.raises(ProblemsFound, match=says):
        search_space.dimensions([text])


def test_a_key_sweeps_once():
    with pytest.raises(ProblemsFound, match="sweeps twice"):
        search_space.dimensions([f"{A}=1,2", f"++{A}=interval(0,1)"])


def test_a_grid_is_every_combination_and_an_interval_has_none():
    found = search_space.dimensions([f"{A}=range(0.1,0.4,0.1)", "b=x,y"])
    assert dimensions.points(found)[:3] == ((0.1, "x"), (0.1, "y"), (0.2, "x"))
    with pytest.raises(ProblemsFound, match="no single values"):
        dimensions.points(search_space.dimensions([f"{A}=interval(0,1)"]))
    with pytest.raises(ProblemsFound, match="is 10000 jobs"):
        dimensions.points(search_space.dimensions([f"{A}=range(100)", "b=range(100)"]))


def test_the_words_of_the_published_sweeper_are_read():
    found = search_space.read(
        [
            *("hydra/sweeper=optuna", "hydra/sweeper/sampler=random", "hydra.sweeper.sampler.seed=7"),
            *("hydra.sweeper.n_trials=20", "hydra.sweeper.n_jobs=2", "hydra.sweeper.direction=maximize"),
            *("hydra.sweeper.study_name=mine", "hydra.sweeper.objective=eval_loss", "hydra/sweeper/pruner=median"),
            *("+hydra.sweeper.params.recipes.x=interval(0,1)", "hydra.sweeper.params={b.c: 'choice(1,2)'}"),
            *("recipes.y=choice(8,16)", "cluster=local"),
        ]
    )
    assert found.fixed == ("cluster=local",)
    assert [each.key for each in found.dimensions] == ["recipes.x", "b.c", "recipes.y"]
    assert found.settings == {
        **{"sampler": "random", "seed": 7, "trials": 20, "parallel": 2, "direction": "maximize"},
        **{"name": "mine", "objective": "eval_loss", "pruner": "median"},
    }


def test_every_word_that_the_sweeper_does_not_support_is_a_problem():
    words = [
        *("hydra/sweeper=ax", "hydra/sweeper/sampler=nsgaii", "hydra.sweeper.storage=sqlite:///x.db"),
        *("hydra.sweeper.n_jobs=two", "hydra.sweeper.direction=[minimize,maximize]", "hydra.sweeper.params=1"),
        *("hydra.sweeper.max_failure_rate=0.5", "hydra.sweeper._target_=os.system", "a=interval(5,1)"),
    ]
    with pytest.raises(ProblemsFound) as found:
        search_space.read(words)
    assert [problem.code for problem in found.value.problems] == ["E009"] * 8 + ["E002"]
    assert [problem.path for problem in found.value.problems] == [word.partition("=")[0] for word in words[:-1]] + [
        words[-1]
    ]
    with pytest.raises(ProblemsFound, match="no override sweeps"):
        search_space.read(["hydra/sweeper=optuna", "a=1"])


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        (f"{A}=interval(2,2)", Dimension(A, low=2.0, high=2.0)),
        (f"{A}=range(0.5,1.5,0.5)", Dimension(A, low=0.5, high=1.0, step=0.5)),
        (f"{A}=range(3)", Dimension(A, low=0, high=2, step=1)),
        (f"{A}=range(1,3,0.5)", Dimension(A, low=1, high=2.5, step=0.5)),
    ],
)
def test_the_bounds_of_a_sweep_are_those_of_its_values(text, dimension):
    assert search_space.dimensions([text]) == (dimension,)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"{A}=1,2\0", "E001"),
        (f"{A}=choice(1", "E001"),
        (f"{A}=tag(log, choice(1,2))", "E002"),
        (f"{A}=tag(log, range(1.0,3.0,1.0))", "E002"),
        (f"{A}=tag(b, a, log, range(1,3))", "E002"),
        (f"{A}=interval(-inf,1)", "E002"),
        (f"{A}=shuffle(1,2)", "E002"),
    ],
)
def test_what_a_sampler_could_not_draw_again_is_refused(text, code):
    with pytest.raises(ProblemsFound) as found:
        search_space.dimensions([text.replace(f"{A}=1,2\0", "recipes=a,b\0")])
    assert [problem.code for problem in found.value.problems] == [code]


def test_unknown_tags_are_named_in_order_and_a_reversed_interval_the_right_way_round():
    with pytest.raises(ProblemsFound) as found:
        search_space.dimensions([f"{A}=tag(b, a, log, range(1,3))", f"{A}x=interval(5,1)"])
    tags, order = found.value.problems
    assert (tags.value, tags.allowed) == ("a, b", "log") and order.remedy == "interval(1.0,5.0)"


@pytest.mark.parametrize(
    ("words", "is_search"),
    [
        ("hydra/sweeper=optuna", True),
        ("+hydra/sweeper=optuna", True),
        ("a=1 hydra/sweeper/sampler=tpe", True),
        ("a=1 hydra.sweeper.n_trials=3", True),
        ("a=hydra/sweeper=optuna b=hydra.sweeper.", False),
        ("hydra/sweepers=optuna", False),
        ("hydra.sweep.dir=x", False),
        ("a=1,2", False),
    ],
)
def test_a_command_line_that_names_a_sweeper_is_a_search(words, is_search):
    assert search_space.is_search(words.split()) is is_search


@pytest.mark.parametrize(
    ("word", "settings"),
    [
        ("+hydra.sweeper.n_trials=1", {"trials": 1}),
        ("hydra.sweeper.n_trials=10000", {"trials": 10_000}),
        ("hydra.sweeper.n_jobs=256", {"parallel": 256}),
        ("hydra.sweeper.sampler.seed=2147483647", {"seed": 2**31 - 1}),
        ("hydra.sweeper.pruner.n_startup_trials=4", {"startup_trials": 4}),
        ("hydra.sweeper.pruner.n_warmup_steps=5", {"warmup_steps": 5}),
        ("hydra/sweeper/sampler=grid", {"sampler": "grid"}),
        ("hydra/sweeper/sampler=tpe", {"sampler": "tpe"}),
        ("hydra.sweeper.direction=minimize", {"direction": "minimize"}),
        ("hydra.sweeper.objective='a b'", {"objective": "a b"}),
        ("Xhydra.sweeper.n_jobs=2", {}),
    ],
)
def test_a_setting_of_the_sweeper_is_an_argument_of_a_sweep(word, settings):
    found = search_space.read([word, "a=1,2"])
    assert dict(found.settings) == settings
    assert found.fixed == (() if settings else (word,)) and found.dimensions == (Dimension("a", ("1", "2")),)


@pytest.mark.parametrize(
    ("word", "value", "allowed"),
    [
        ("hydra.sweeper.n_trials=10001", 10_001, "a whole number from 1 to 10000"),
        ("hydra.sweeper.n_trials=0", 0, "a whole number from 1 to 10000"),
        ("hydra.sweeper.n_jobs=true", True, "a whole number from 1 to 256"),
        ("hydra.sweeper.n_jobs=1.0", 1.0, "a whole number from 1 to 256"),
        ("hydra.sweeper.sampler.seed=2147483648", 2**31, "a whole number from 0 to 2147483647"),
        ("hydra.sweeper.objective=3", 3, None),
        ("hydra.sweeper.study_name=''", "", None),
        ("hydra/sweeper/pruner=hyperband", "hyperband", "median"),
        ("hydra/sweeper/sampler=nsgaii", "nsgaii", "tpe, random, grid"),
        ("hydra.sweeper.params={}", "{}", "{key: 'interval(low, high)', …}"),
        (
            "hydra.sweeper.storage=x",
            None,
            "hydra/sweeper, hydra/sweeper/sampler, hydra/sweeper/pruner, hydra.sweeper.direction, "
            "hydra.sweeper.study_name, hydra.sweeper.objective, hydra.sweeper.n_trials, hydra.sweeper.n_jobs, "
            "hydra.sweeper.sampler.seed, hydra.sweeper.pruner.n_startup_trials, "
            "hydra.sweeper.pruner.n_warmup_steps, hydra.sweeper.params.…",
        ),
    ],
)
def test_a_faulty_setting_is_named_with_what_is_allowed(word, value, allowed):
    with pytest.raises(ProblemsFound) as found:
        search_space.read([word, "a=1,2"])
    (problem,) = found.value.problems
    assert (problem.code, problem.path) == ("E009", word.partition("=")[0])
    assert (problem.value, problem.allowed) == (value, allowed)


def test_parameters_of_the_sweeper_are_overrides_that_sweep():
    words = ["hydra.sweeper.params={a: 'choice(1,2)', b: 'range(3)'}", "+hydra.sweeper.params.c='interval(0,1)'"]
    found = search_space.read([*words, "++hydra.sweeper.params.d.e=x,y"])
    assert found.dimensions == (
        Dimension("a", ("1", "2")),
        Dimension("b", low=0, high=2, step=1),
        Dimension("c", low=0.0, high=1.0),
        Dimension("d.e", ("x", "y")),
    )
    assert found.fixed == () and found.settings == {}


def test_a_fault_of_a_sweep_names_the_setting_that_was_typed(recipes):
    rate = "recipes.training_config.training_args.learning_rate"
    words = ("recipes=training/tiny/tiny_lm_cpu", "-m", "hydra/sweeper=optuna", f"{rate}=interval(0.1,0.2)")
    code, _, errors = recipes("run", *words, "hydra.sweeper.study_name=' '", "hydra.sweeper.n_trials=3")
    assert code == 2 and "E725 hydra.sweeper.study_name\n" in errors and "E725 hydra.sweeper.objective\n" in errors
    assert "E725 name" not in errors
