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
    with pytest.raises(ProblemsFound, match="no override sweeps"):
        search_space.read(["hydra/sweeper=optuna", "a=1"])
