"""What the README promises about this program is so."""

import json
import re

import pytest
from conftest import ELASTIC, LLAMA, ROOT, SHORT, shipped
from published_recipes import GOLDEN

LLMFT = json.loads((ROOT / "tests/golden/llmft_published_values.json").read_text(encoding="utf-8"))["recipes"]
PUBLISHED = {*LLMFT, *GOLDEN["digests"]}
README = (ROOT / "README.md").read_text(encoding="utf-8")
POLICY = "++recipes.elastic_policy"
RATE = "recipes.training_config.training_args.learning_rate=0.0002"


@pytest.mark.slow
def test_the_number_of_recipes_is_what_recipes_list_shows(recipes):
    listed = recipes("list")[1].splitlines()
    assert re.findall(r"\*\*(\d+) recipes\*\*", README) == [str(len(listed))]
    assert re.findall(r"(\d+) recipes of the published launcher", README) == [str(len(PUBLISHED))]
    assert {entry.name for entry in shipped()} >= PUBLISHED


@pytest.mark.parametrize(
    ("code", "exit_code", "overrides"),
    [
        ("E101", 2, ["++recipes.elastic_polcy.is_elastic=true"]),
        ("E201", 2, [ELASTIC, f"{POLICY}.min_nodes=40", f"{POLICY}.max_nodes=2"]),
        ("E223", 2, [ELASTIC, "instance_type=g5.12xlarge"]),
        ("N104", 0, [ELASTIC, RATE]),
        ("E601", 2, ["recipes.run.hf_access_token=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"]),
        ("N117", 0, []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fact_of_the_comparison_is_so(recipes, code, exit_code, overrides):
    found, *texts = recipes("check", LLAMA, "cluster=k8s", *overrides)
    assert f"({code})" in README
    assert found == exit_code
    assert any(re.search(rf"^(note +)?{code} ", text, re.M) for text in texts)


def test_an_instance_with_four_gpus_gets_pods_that_request_four(recipes):
    code, manifests, _ = recipes("render", SHORT, "cluster=k8s", "instance_type=g5.12xlarge", "--stdout")
    assert code == 0
    assert set(re.findall(r"nvidia\.com/gpu: \"?(\d+)", manifests)) == {"4"}


def test_the_readme_names_licence_version_and_changelog():
    assert "[Apache 2.0](LICENSE)" in README and "[changelog](CHANGELOG.md)" in README
    version = re.search(r'VERSION = "(\d+\.\d+)', (ROOT / "launcher/__init__.py").read_text(encoding="utf-8"))[1]
    assert f"Version {version}." in README
    assert f"## [{version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
