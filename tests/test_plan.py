import dataclasses

import pytest
from conftest import ELASTIC, LLAMA_K8S

from launcher import pipeline, report
from launcher.families import interface
from launcher.plan import with_run
from launcher.runtime.settings import shares_of
from launcher.runtime.shares import micro_batches

LR = "recipes.training_config.training_args.learning_rate"
SCALE_LR = "recipes.scale_config.4.training_config.training_args.learning_rate"


def test_every_size_of_the_elastic_llama(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC)
    assert job.name == "llama-3-1-8b-instruct-x068q"
    assert [report.row(point) for point in job.scales] == [
        ("1", "8", "16", "8 x 2", "0.0004", ""),
        ("2", "16", "8", "8 x 1", "0.0004", ""),
        ("3", "24", "5 on 16, 6 on 8", "6 x 1", "0.0004", "uneven"),
        ("4", "32", "4", "4 x 1", "0.0004", ""),
        ("6", "48", "2 on 16, 3 on 32", "3 x 1", "0.0004", "uneven"),
        ("8", "64", "2", "2 x 1", "0.0004", ""),
        ("16", "128", "1", "1 x 1", "0.0004", ""),
    ]
    assert {point.samples_per_step for point in job.scales} == {128}
    assert job.elastic.replica_values == (1, 2, 3, 4, 6, 8, 16)
    assert job.elastic.replica_increment_step is None


def test_a_static_job_has_one_size_and_ignores_scale_config(prepare):
    job = prepare(*LLAMA_K8S)
    assert job.elastic is None
    assert [(p.nodes, p.samples_per_step, p.learning_rate) for p in job.scales] == [(1, 8, 1e-4)]


def test_scale_config_wins_over_the_base(prepare):
    assert {p.learning_rate for p in prepare(*LLAMA_K8S, ELASTIC).scales} == {4e-4}


def test_an_override_of_the_base_wins_at_every_size_and_says_so(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, f"{LR}=0.0002")
    assert {p.learning_rate for p in job.scales} == {2e-4}
    assert "learning_rate=0.0002 from the command line wins over scale_config at 7 sizes" in str(job.notices)


def test_an_override_of_one_size_wins_over_all(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, f"{LR}=0.0002", f"{SCALE_LR}=0.0003")
    assert [p.learning_rate for p in job.scales] == [2e-4] * 3 + [3e-4] + [2e-4] * 3
    assert "at 6 sizes" in str(job.notices)


def test_a_text_key_and_a_number_key_are_one_size(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, f"++{SCALE_LR}=0.0003")
    assert len(job.scales) == 7 and job.scales[3].learning_rate == 3e-4


def test_moved_bounds_drop_sizes_with_a_notice(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, "recipes.elastic_policy.max_nodes=5", "recipes.elastic_policy.min_nodes=2")
    assert [p.nodes for p in job.scales] == [2, 3, 4]
    assert job.initial_nodes == 2
    codes = [n.code for n in job.notices]
    assert "N101" in codes and "N102" in codes


def test_a_size_can_be_overridden_away(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, "~recipes.scale_config.3")
    assert 3 not in [p.nodes for p in job.scales]


def test_the_start_size_is_the_user_s(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, "recipes.trainer.num_nodes=4")
    assert job.initial_nodes == 4
    assert [p.config["trainer"]["num_nodes"] for p in job.scales] == [1, 2, 3, 4, 6, 8, 16]


def test_a_stepped_job_takes_min_plus_k_steps(prepare):
    job = prepare(
        *LLAMA_K8S,
        ELASTIC,
        "~recipes.scale_config",
        "++recipes.elastic_policy.replica_increment_step=3",
        "recipes.elastic_policy.max_nodes=8",
        "recipes.training_config.training_args.train_batch_size=224",
    )
    assert [p.nodes for p in job.scales] == [1, 4, 7]
    assert job.elastic.replica_increment_step == 3 and job.elastic.replica_values is None


def test_fewer_accelerators_mean_fewer_processes(prepare):
    job = prepare(*LLAMA_K8S, "instance_type=g5.12xlarge")
    assert (job.nproc_per_node, job.resources.accelerators) == (4, 4)
    assert job.scales[0].config["trainer"]["devices"] == 4
    assert "N103" in [n.code for n in job.notices]


@pytest.mark.parametrize("max_nodes", [1, 2, 4])
def test_the_tiny_recipe_keeps_its_batch_at_every_size(prepare, max_nodes):
    job = prepare(f"recipes.elastic_policy.max_nodes={max_nodes}")
    assert {p.samples_per_step for p in job.scales} == {32}
    assert job.scales[-1].nodes == max_nodes


def test_long_run_names_are_cut(prepare):
    name = prepare(*LLAMA_K8S, f"recipes.run.name={'a' * 60}").name
    assert name == "a" * 34 + "-x068q"


def test_the_table_says_balance_and_what_wins_nothing(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, "++recipes.scale_config=auto", "recipes.elastic_policy.max_nodes=5")
    assert report.table(job)[-1].endswith("0.0004         uneven, no faster than 4")
    assert (
        report.plan_json(job)["scales"][4] | {"balance": 1.25, "idle_fraction": 0.2, "as_fast_as_nodes": 4}
        == (report.plan_json(job)["scales"][4])
    )
    assert "| 1.25 | uneven, no faster than 4 |" in report.plan_markdown(job)


def test_the_whole_table_says_what_sizes_cost_and_are_worth(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, "++recipes.scale_config=auto")
    head, *rows = report.table_in_full(job)
    assert head.split()[-3:] == ["idle", "speed", "worth"] and max(map(len, rows)) <= 80
    said = [row.split("0.0004")[1].split() for row in rows]
    assert [float(idle) for idle, *_ in said[:6]] == [0, 0, 11.1, 0, 20, 11.1]
    assert [float(cells[2]) for cells in said if cells[3] == "yes"] == [1, 2, 2.67, 4, 5.33, 8, 16]
    assert rows[14].split()[0] == "15" and rows[14].endswith("as 8 nodes")


@pytest.mark.parametrize("width", [20, 80, 160])
def test_the_chart_fits_its_terminal(prepare, width):
    job = prepare(*LLAMA_K8S, ELASTIC, "++recipes.scale_config=auto")
    head, *bars = report.chart(job, width)
    assert len(bars) == 16 and all("█" in bar for bar in bars)
    assert max(map(len, bars)) <= max(width, 40)


def test_the_chart_marks_idle_time(prepare):
    _, *bars = report.chart(prepare(*LLAMA_K8S, ELASTIC, "++recipes.scale_config=auto"))
    assert [("░" in bar) for bar in bars[:6]] == [False, False, True, False, True, True]


def test_a_long_chart_shows_both_ends(prepare):
    overrides = (
        "recipes.elastic_policy.max_nodes=500",
        "recipes.training_config.training_args.train_batch_size=4096",
    )
    job = prepare(*LLAMA_K8S, ELASTIC, "++recipes.scale_config=auto", *overrides)
    lines = report.chart(job)
    assert len(lines) < 50 and any(line.strip() == "…" for line in lines)
    assert lines[1].split()[0] == "1" and lines[-1].split()[0] == "500"


def test_a_job_s_sizes_are_not_changed_by_its_run(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC)
    before = [point.config["training_config"]["mlflow"]["run_id"] for point in job.scales]
    written = with_run(job, run_id="abc")
    assert {point.config["training_config"]["mlflow"]["run_id"] for point in written.scales} == {"abc"}
    assert written.config["recipes"]["training_config"]["mlflow"]["run_id"] == "abc"
    assert [point.config["training_config"]["mlflow"]["run_id"] for point in job.scales] == before


@pytest.mark.parametrize("micro", [1, 2, 4, 16])
@pytest.mark.parametrize(
    "sizes", [(), ("recipes.scale_config=auto", "recipes.elastic_policy.max_nodes=7")], ids=["own", "auto"]
)
def test_the_trainer_of_this_package_takes_the_passes_of_the_plan(prepare, sizes, micro):
    args = "recipes.training_config.training_args"
    own = [
        f"recipes.scale_config.{n}.{args.removeprefix('recipes.')}.micro_train_batch_size={micro}" for n in (1, 2, 4)
    ]
    overrides = [f"{args}.micro_train_batch_size={micro}"] if sizes else own if micro <= 4 else []
    for point in prepare(*sizes, *overrides).scales:
        shares = shares_of(point.config["training_config"]["training_args"], point.ranks)
        passes = len(list(micro_batches(range(point.split.large), point.split.large, shares.micro)))
        assert (shares.micro, passes) == (point.micro_batch_size, point.grad_accumulation), point.nodes


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("recipes.trainer.devices=4", "N128 4 of 8 accelerators of ml.p5.48xlarge stay idle"),
        ("++recipes.extra_keys=[zzz]", "N127 extra_keys names zzz"),
    ],
    ids=["idle accelerators", "unmatched extra key"],
)
def test_a_likely_slip_is_noticed(prepare, override, says):
    assert any(says in str(notice) for notice in prepare(*LLAMA_K8S, override).notices)


def test_a_recipe_that_leaves_the_model_open_says_so(prepare):
    job = prepare("recipes=fine-tuning/gpt_oss/llmft_gpt_oss_20b_seq4k_gpu_sft_lora", "cluster=k8s")
    assert "N126" in {notice.code for notice in job.notices}


SCRIPT = ("recipes=training/custom/script", "training_cfg.entry_module=json.tool", "container=me/image:1")
NAMED_PATHS = (
    "recipes.training_config.training_args.training_dir='/fsx/${recipes.run.name}'",
    "training_cfg.script_args=[{--out: '${recipes.run.results_dir}/out'}]",
    "+env_vars.OUT='${recipes.run.results_dir}'",
    "++recipes.training_config.mlflow.experiment_name='${recipes.run.name}'",
)


@pytest.mark.parametrize("name", ["", "training_cfg.run.name=other", "recipes.run.name=other"])
@pytest.mark.parametrize("cluster", ["local", "k8s"])
def test_two_launches_share_no_folder_and_every_path_of_one_agrees(context, cluster, name):
    devices = "training_cfg.run.ntasks_per_node=8" if cluster == "k8s" else "training_cfg.run.ntasks_per_node=2"
    volumes = ["cluster.volumes=[{volumeName: a, hostPath: '/${recipes.run.name}', mountPath: /fsx}]"]
    words = [*SCRIPT, f"cluster={cluster}", devices, *NAMED_PATHS, *filter(None, [name])]
    words += volumes if cluster == "k8s" else []
    for suffix in ("aaaaa", "bbbbb"):
        job = pipeline.prepare(words, dataclasses.replace(context, suffix=suffix))
        stated = "other" if name else "custom-script"
        (point,) = job.scales
        assert job.name == f"{stated}-{suffix}"
        assert point.config["run"]["name"] == job.name
        assert point.config["run"]["results_dir"] == f"results/{job.name}"
        assert point.config["training_config"]["training_args"]["training_dir"] == f"/fsx/{job.name}"
        assert job.config["env_vars"]["OUT"] == f"results/{job.name}"
        assert interface("custom").program(job)[-2:] == ("--out", f"results/{job.name}/out")
        assert report.plan_json(job)["job_name"] == job.name
        if cluster == "k8s":
            assert job.settings.volumes[0].hostPath == f"/{job.name}"
        assert job.config["recipes"]["run"]["name"] == stated
        assert point.config["training_config"]["mlflow"]["experiment_name"] == stated


@pytest.mark.parametrize("overrides", [(), (ELASTIC,), (ELASTIC, "recipes.scale_config=auto")])
def test_the_job_s_name_is_in_the_configuration_of_every_size(prepare, overrides):
    job = prepare(*LLAMA_K8S, *overrides)
    for point in job.scales:
        run = point.config["run"]
        assert (run["name"], run["results_dir"]) == (job.name, f"results/{job.name}")


def test_a_long_name_is_cut_where_paths_are_made_of_it_too(prepare):
    job = prepare(*LLAMA_K8S, f"recipes.run.name={'a' * 60}")
    assert job.scales[0].config["run"]["results_dir"] == f"results/{'a' * 34}-x068q"


def test_a_folder_that_is_stated_stays_as_it_is(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, "recipes.run.results_dir=/fsx/results")
    assert {point.config["run"]["results_dir"] for point in job.scales} == {"/fsx/results"}


@pytest.mark.parametrize("name", ["My_Run", "''", "3", "null", "'${nowhere}'", "'${recipes.run.results_dir}'"])
def test_a_faulty_name_is_reported_as_it_is_stated(problems, name):
    found = problems(*LLAMA_K8S, f"recipes.run.name={name}")
    assert "x068q" not in str(found)
    assert "recipes.run.name" in {problem.path for problem in found}
