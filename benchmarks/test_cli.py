"""What a user waits for before the `recipes` command answers."""

import pytest
from conftest import LLAMA, paired

FLOOR = ["-c", "import typer, rich"]
CONVERTING = ["-c", "import typer, rich, pydantic"]
"""What typer itself imports to convert one argument; older releases do not."""
RECIPE = LLAMA.removeprefix("recipes=")


@pytest.mark.parametrize(
    ("words", "floor"),
    [
        pytest.param(["list"], FLOOR, id="list"),
        pytest.param(["list"], CONVERTING, id="list, against typer with its converter"),
        pytest.param(["--help"], FLOOR, id="help"),
        pytest.param(["explain", RECIPE, "learning_rate"], FLOOR, id="explain"),
    ],
)
def test_cold_command(tmp_path, report, request, words, floor):
    """Target: `recipes list` at most 0.4 s; the others are reported."""
    ours = ["-m", "launcher", *words]
    paired(ours, floor, tmp_path, rounds=2)  # fills the bytecode caches
    found = paired(ours, floor, tmp_path, rounds=11)
    name = request.node.callspec.id
    report("recipes {}: {ours_s:.3f} s, floor {floor_s:.3f} s, peak {peak_mib:.0f} MiB".format(name, **found))
