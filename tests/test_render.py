import hashlib
import json

import pytest
from conftest import ELASTIC, LLAMA_K8S, frozen_context

from launcher import pipeline
from launcher.bundle import store as bundles
from launcher.common import templating, yaml_io
from launcher.common.problems import ProblemsFound


@pytest.fixture
def llama(render):
    return render(*LLAMA_K8S, ELASTIC)


def test_a_bundle_holds_what_people_and_programs_read(llama):
    assert list(llama.files) == [
        "configs/config-n1.yaml", "configs/config-n16.yaml", "configs/config-n2.yaml", "configs/config-n3.yaml",
        "configs/config-n4.yaml", "configs/config-n6.yaml", "configs/config-n8.yaml", "configs/config.yaml",
        "manifests/configmap.yaml", "manifests/job.yaml", "plan.json", "plan.md", "recipe.yaml", "bundle.json",
    ]  # fmt: skip


def test_same_inputs_and_context_give_the_same_bytes(llama, tmp_path):
    again = pipeline.render(
        pipeline.prepare((*LLAMA_K8S, ELASTIC), frozen_context(tmp_path)), frozen_context(tmp_path)
    )
    assert again.files == llama.files and again.digest == llama.digest


def test_the_order_of_overrides_of_different_keys_changes_nothing_but_their_record(llama, render):
    again = render(*reversed((*LLAMA_K8S, ELASTIC)))
    assert {path for path, text in again.files.items() if text != llama.files[path]} == {"bundle.json"}


def test_bundle_json_accounts_for_every_file(llama):
    manifest = json.loads(llama.files["bundle.json"])
    others = {path: text for path, text in llama.files.items() if path != "bundle.json"}
    assert manifest["files"] == {path: hashlib.sha256(text.encode()).hexdigest() for path, text in others.items()}
    assert manifest["digest"] == llama.digest
    assert manifest["overrides"] == [*LLAMA_K8S, ELASTIC]
    assert manifest["git_revision"] == "0" * 40 and manifest["versions"]


@pytest.mark.parametrize("name", ["bundle.json", "plan.json"])
def test_json_files_are_indented_by_two_blanks_and_end_their_last_line(llama, name):
    text = llama.files[name]
    assert text.startswith('{\n  "') and text.endswith("\n}\n")
    assert text == json.dumps(json.loads(text), indent=2) + "\n"


def test_recipe_yaml_is_the_composed_configuration_which_the_bundle_carries_with_its_sources(llama, tmp_path):
    composed = yaml_io.load(llama.files["recipe.yaml"])
    assert composed["recipes"]["elastic_policy"]["is_elastic"] is True
    assert llama.config == composed
    assert (llama.sources.cwd, llama.sources.overrides) == (str(tmp_path), (*LLAMA_K8S, ELASTIC))


def test_a_program_that_reads_a_file_of_its_own_has_it_beside_the_recipe_s(render):
    data = "recipes.training_config.data.train_files=/data/a"
    recipe = "recipes=fine-tuning/qwen/verl-grpo-rlvr-qwen-3-8b-fft"
    files = render(recipe, "cluster=k8s", "instance_type=p5.48xlarge", data).files
    recipe, own = (yaml_io.load(files[f"configs/{name}.yaml"]) for name in ("config", "verl_config"))
    assert own == recipe["training_config"] and own["data"]["train_files"] == "/data/a"


def test_digest_is_what_sha256sum_gives(llama, tmp_path):
    bundles.write(llama)
    paths = sorted(path for path in llama.files if path != "bundle.json")
    lines = "".join(f"{hashlib.sha256((llama.directory / p).read_bytes()).hexdigest()}  {p}\n" for p in paths)
    assert hashlib.sha256(lines.encode()).hexdigest() == llama.digest


def test_plan_json_tells_every_size(llama):
    plan = json.loads(llama.files["plan.json"])
    assert [scale["nodes"] for scale in plan["scales"]] == [1, 2, 3, 4, 6, 8, 16]
    assert plan["scales"][2]["samples_per_rank"] == {"small": 5, "large": 6, "num_small": 16}
    assert {scale["samples_per_step"] for scale in plan["scales"]} == {128}


def test_config_of_a_size_is_the_recipe_at_that_size(llama):
    args = yaml_io.load(llama.files["configs/config-n3.yaml"])["training_config"]["training_args"]
    assert args["uneven_batch"]["small_local_batch_size"] == 5


def test_configurations_hold_no_policy_of_sizes(llama, render):
    for files in (llama.files, render(*LLAMA_K8S).files, render("cluster=local").files):
        for text in (text for name, text in files.items() if name.startswith("configs/")):
            assert not {"elastic_policy", "scale_config"} & yaml_io.load(text).keys()


def test_write_and_read_back(llama):
    bundles.write(llama)
    read, backend = bundles.read(llama.directory)
    assert (read.digest, backend) == (llama.digest, "k8s")
    assert sorted(p.name for p in llama.directory.parent.iterdir()) == [llama.job_name]


def test_an_existing_bundle_is_never_overwritten(llama):
    bundles.write(llama)
    before = (llama.directory / "plan.md").stat().st_mtime_ns
    with pytest.raises(ProblemsFound, match="E701"):
        bundles.write(llama)
    assert (llama.directory / "plan.md").stat().st_mtime_ns == before


def test_a_failed_write_leaves_nothing(llama, monkeypatch):
    def full(self, text, encoding):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(ProblemsFound, match="the disk is full"):
        bundles.write(llama)
    assert not llama.directory.parent.exists()


def test_a_file_in_the_way_is_a_problem(render, tmp_path):
    (tmp_path / "results").write_text("")
    with pytest.raises(ProblemsFound, match="E702"):
        bundles.write(render(*LLAMA_K8S))


@pytest.mark.parametrize("change", ["edit", "remove", "add", "garbage", "no_bundle"])
def test_a_changed_bundle_is_not_launched(llama, change):
    bundles.write(llama)
    if change == "edit":
        (llama.directory / "configs/config.yaml").write_text("a: 1\n")
    elif change == "remove":
        (llama.directory / "plan.md").unlink()
    elif change == "add":
        (llama.directory / "manifests/extra.yaml").write_text("a: 1\n")
    elif change == "garbage":
        (llama.directory / "bundle.json").write_text('{"files": 5}')
    directory = llama.directory.parent if change == "no_bundle" else llama.directory
    with pytest.raises(ProblemsFound, match="E70[34]"):
        bundles.read(directory)


def test_a_template_that_leaves_a_field_empty_is_our_fault(monkeypatch):
    monkeypatch.setattr(templating, "render_template", lambda *args, **values: "a:\n  b:\n  - c: ''\n")
    with pytest.raises(ValueError, match=r"a\.b\[0\]\.c"):
        templating.render_yaml("x")
