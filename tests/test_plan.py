import json
import re

import pytest
from conftest import ELASTIC, LLAMA_K8S, ROOT, shipped

from launcher import pipeline
from launcher.backends.local import rehearsal
from launcher.backends.local.scenario import Scenario
from launcher.cli import terminal
from launcher.common import console
from launcher.model.context import job_name
from launcher.model.family_registry import interface
from launcher.planning import plan_picture, plan_report
from launcher.planning.job_planner import with_run
from launcher.runtime.shares import micro_batches
from launcher.runtime.training_config import shares_of

LR = "recipes.training_config.training_args.learning_rate"
SCALE_LR = "recipes.scale_config.4.training_config.training_args.learning_rate"


def test_every_size_of_the_elastic_llama(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC)
    assert job.name == "llama-3-1-8b-instruct-x068q"
    assert [plan_report.row(point) for point in job.scales] == [
        ("1", "8", "16", "8 x 2", "0.0004"),
        ("2", "16", "8", "8 x 1", "0.0004"),
        ("3", "24", "5 on 16, 6 on 8", "6 x 1", "0.0004"),
        ("4", "32", "4", "4 x 1", "0.0004"),
        ("6", "48", "2 on 16, 3 on 32", "3 x 1", "0.0004"),
        ("8", "64", "2", "2 x 1", "0.0004"),
        ("16", "128", "1", "1 x 1", "0.0004"),
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
    assert "learning_rate=0.0002 from the command line overrides scale_config at 7 sizes" in str(job.notices)


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
    assert name == "a" * 41 + "-x068q"


@pytest.mark.slow
def test_no_recipe_s_name_is_cut_in_that_of_its_jobs():
    """The last letters tell full fine-tuning from adapters. 47 is the most that KubeRay leaves a RayJob."""
    names = {entry.model: job_name(entry.model, "x068q") for entry in shipped()}
    assert {run_name: name for run_name, name in names.items() if name != f"{run_name}-x068q"} == {}
    assert max(map(len, names.values())) == 47 == len(job_name("a" * 63, "x068q"))


def test_the_table_states_which_sizes_are_uneven_and_which_are_no_faster(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, "++recipes.scale_config=auto", "recipes.elastic_policy.max_nodes=5")
    head, rows = plan_report.table(job)
    assert head[-1] == "remarks" and rows[4][-1] == "uneven, no faster than 4" and rows[3][-1] == ""
    assert (
        plan_report.plan_json(job)["scales"][4] | {"balance": 1.25, "idle_fraction": 0.2, "as_fast_as_nodes": 4}
        == (plan_report.plan_json(job)["scales"][4])
    )
    assert "| 20.0 % | 4.00 | uneven, no faster than 4 |" in plan_report.plan_markdown(job)


def test_the_table_in_full_states_idle_time_and_speedup(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, "++recipes.scale_config=auto")
    head, rows = plan_report.table(job, in_full=True)
    assert head[-3:] == ("idle", "speedup", "remarks")
    assert [row[5] for row in rows[:6]] == ["0.0 %", "0.0 %", "11.1 %", "0.0 %", "20.0 %", "11.1 %"]
    assert [float(row[6]) for row in rows if "no faster" not in row[7]] == [1, 2, 2.67, 4, 5.33, 8, 16]
    assert rows[14][0] == "15" and rows[14][-1] == "uneven, no faster than 8"


def test_a_plan_without_remarks_has_no_column_for_them(prepare):
    head, rows = plan_report.table(prepare(*LLAMA_K8S))
    assert head == plan_report.COLUMNS and len(rows[0]) == len(head)


@pytest.mark.parametrize(
    ("overrides", "nodes"),
    [
        ((*LLAMA_K8S, ELASTIC), 1),
        ((*LLAMA_K8S, ELASTIC, "recipes.trainer.num_nodes=4"), 4),
        (("cluster.scenario=preemption",), 4),
        (("cluster.scenario=tour",), 2),
        (("cluster.scenario=scale-up",), 1),
        (("cluster.scenario=tour", "recipes.elastic_policy.max_nodes=1"), 1),
        (("+cluster.events=[{at:{step:20},capacity:3}]", "recipes.trainer.num_nodes=3"), 3),
        (("+cluster.events=[{at:{seconds:0},capacity:2}]", "recipes.trainer.num_nodes=3"), 2),
        (("+cluster.events=[{at:{seconds:0},capacity:0},{at:{seconds:9},capacity:4}]",), 4),
    ],
    ids=["smallest", "num_nodes", "preemption", "tour", "scale-up", "bounded", "events", "taken", "later"],
)
def test_the_console_plan_md_and_the_job_agree_on_the_size_it_starts_with(prepare, render, capsys, overrides, nodes):
    job = prepare(*overrides)
    terminal.show_plan(job)
    out, bundle = capsys.readouterr().out, render(*overrides)
    starts_on = f"* starts on {nodes} node{'s' if nodes > 1 else ''}"
    assert starts_on in out and starts_on in bundle.files["plan.md"]
    assert re.findall(r"^ +\* (\d+) ", out, re.M) == re.findall(r"^\| \* (\d+) \|", bundle.files["plan.md"], re.M)
    assert f"* {nodes} " in out and json.loads(bundle.files["plan.json"])["initial_nodes"] == nodes
    if scenario := bundle.files.get("scenario.json"):
        cluster = rehearsal.begin(Scenario.model_validate_json(scenario))
        times = (event.at.seconds or 0 for event in cluster.scenario.events)
        capacities = []
        for now_s in sorted({0.0, *times}):
            cluster, _ = rehearsal.advance(cluster, rehearsal.Progress(now_s, 0, 0), 0)
            capacities.append(cluster.capacity)
        sizes = [[point.nodes for point in job.scales if point.nodes <= capacity] for capacity in capacities]
        assert max(next(filter(None, sizes))) == nodes


def test_num_nodes_that_a_scenario_overrules_is_a_notice(prepare):
    (notice,) = prepare("cluster.scenario=preemption", "recipes.trainer.num_nodes=2").notices
    assert notice.code == "N102" and "starts on 4 nodes" in notice.message and "num_nodes=2" in notice.message
    assert prepare("cluster.scenario=preemption").notices == ()


MODULE = "training_cfg.entry_module=json.tool"
STATED = "recipes.training_config.training_args.learning_rate=0.5"
BATCH = "recipes.training_config.training_args.train_batch_size=32"
RATE_OF_2 = "+recipes.scale_config.2.training_config.training_args.learning_rate=0.25"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "rates"),
    [
        (("recipes=training/custom/script",), [None]),
        (("recipes=training/custom/script", STATED), [0.5]),
        (("recipes=training/custom/elastic_script", BATCH, "++recipes.scale_config=auto"), [None] * 4),
        (
            (
                "recipes=training/custom/elastic_script",
                BATCH,
                "++recipes.scale_config=auto",
                "++recipes.planner.learning_rate=sqrt",
            ),
            [None] * 4,
        ),
        (("recipes=training/custom/elastic_script", BATCH, "++recipes.scale_config=auto", STATED), [0.5] * 4),
        (
            ("recipes=training/custom/elastic_script", BATCH, "++recipes.scale_config=auto", RATE_OF_2),
            [None, 0.25, None, None],
        ),
    ],
    ids=["none", "stated", "planned", "scaled", "planned and stated", "one size"],
)
def test_a_placeholder_learning_rate_is_shown_as_none(prepare, tmp_path, overrides, rates):
    job = prepare(*overrides, MODULE)
    cells = ["none" if rate is None else f"{rate:g}" for rate in rates]
    assert [plan_report.row(point)[4] for point in job.scales] == cells
    assert [scale["learning_rate"] for scale in plan_report.plan_json(job)["scales"]] == rates
    assert ("learning rate" in " ".join(notice.message for notice in job.notices if notice.code == "N109")) is (
        STATED in overrides and len(rates) > 1
    )
    plan_picture.draw(job, tmp_path / "plan.svg")


@pytest.mark.parametrize("page", ["docs/concepts.md", "plan.md", "recipes plan", "main.py"])
def test_one_vocabulary_for_the_columns_of_a_plan(prepare, capsys, page):
    job = prepare(*LLAMA_K8S, ELASTIC)
    columns = [*plan_report.COLUMNS, plan_report.IDLE, plan_report.SPEEDUP, plan_report.REMARKS]
    if page == "docs/concepts.md":
        section = (
            (ROOT / page).read_text(encoding="utf-8").partition("The columns of a plan")[2].partition("\n\nA ")[0]
        )
        found = re.findall(r"^\| ([a-z ]+?) \|", section, re.M)[1:]
    elif page == "plan.md":
        line = next(line for line in plan_report.plan_markdown(job).splitlines() if line.startswith("| nodes"))
        found = line.strip("| ").split(" | ")
    else:
        terminal.show_plan(job, in_full=page == "recipes plan")
        found = re.split(r" {2,}", capsys.readouterr().out.splitlines()[1].strip())
        columns = columns if page == "recipes plan" else [*plan_report.COLUMNS, plan_report.REMARKS]
    assert found == columns


@pytest.mark.parametrize("room", [len(plan_report.BARS), 80])
def test_bars_fit_their_room_and_mark_idle_time(prepare, room):
    bars = plan_report.bars(prepare(*LLAMA_K8S, ELASTIC, "++recipes.scale_config=auto"), room)
    assert len(bars) == 16 and max(map(len, bars)) <= room and all("█" in bar for bar in bars)
    assert [("░" in bar) for bar in bars[:5]] == [False, False, True, False, True]


def test_there_are_no_bars_without_room_or_for_one_size(prepare):
    assert plan_report.bars(prepare(*LLAMA_K8S, ELASTIC), len(plan_report.BARS) - 1) == []
    assert plan_report.bars(prepare(*LLAMA_K8S), 80) == []


@pytest.mark.parametrize("columns", [None, 80, 100, 120, 160])
def test_a_plan_lists_its_sizes_once_with_their_costs_within_the_terminal(prepare, monkeypatch, capsys, columns):
    job = prepare(*LLAMA_K8S, ELASTIC)
    found = (("per hour USD",), [(f"{55.04 * point.nodes:,.2f}",) for point in job.scales])
    monkeypatch.setattr(terminal, "width", lambda: columns)
    monkeypatch.setattr(console, "width", lambda: columns)
    terminal.show_plan(job, in_full=True, costs=found)
    out = capsys.readouterr().out
    head, *lines = out.splitlines()[1:]
    for point, (cost,) in zip(job.scales, found[1], strict=True):
        rows = [line for line in lines if re.match(rf" +(\* )?{point.nodes} +{point.ranks} ", line)]
        assert len(rows) == 1 and f" {cost}" in rows[0]
    table = lines[: next(i for i, line in enumerate(lines) if "per optimizer step" in line)]
    assert max(map(len, [head, *table])) <= (columns or 200)
    assert ("learning rate" in head) != ("; learning rate 0.0004" in out)
    assert (plan_report.BARS in head) is (columns in (120, 160))


@pytest.mark.parametrize(
    ("settings", "has_speedup", "place"),
    [
        ({}, False, "plan.md in the bundle"),
        ({"in_full": True}, True, "recipes plan --notes"),
        ({"all_notes": True}, False, None),
    ],
    ids=["short", "full", "notes"],
)
def test_notes_of_most_elastic_jobs_are_named_unless_all_are_requested(prepare, capsys, settings, has_speedup, place):
    job = prepare(*LLAMA_K8S, ELASTIC, "recipes.trainer.num_nodes=4", STATED, STATED)
    terminal.show_plan(job, **settings)
    out = capsys.readouterr().out
    assert out.startswith(f"{job.name}   ")
    assert ("\nspeedup: of the computation, by the largest share; " in out) is has_speedup
    codes = [notice.code for notice in job.notices]
    named = re.findall(r"^(\d) notes of most elastic jobs: (.*)   (.*)$", out, re.M)
    usual = named[0][1].split(", ") if named else []
    assert "N165" in codes and "N165" not in usual and (place is None or len(usual) > 1)
    assert re.findall(r"^note  (N\d+) ", out, re.M) == [code for code in codes if code not in usual]
    assert named == ([(str(len(usual)), ", ".join(usual), place)] if place else [])


def test_a_plan_of_one_size_has_no_speedup_in_full(prepare, capsys):
    terminal.show_plan(prepare(*LLAMA_K8S), in_full=True)
    assert "speedup: of the" not in capsys.readouterr().out


def test_a_job_s_sizes_are_not_changed_by_its_run(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC)
    before = [point.config["training_config"]["mlflow"]["run_id"] for point in job.scales]
    written = with_run(job, run_id="abc")
    assert {point.config["training_config"]["mlflow"]["run_id"] for point in written.scales} == {"abc"}
    assert written.config["recipes"]["training_config"]["mlflow"]["run_id"] == "abc"
    assert [point.config["training_config"]["mlflow"]["run_id"] for point in job.scales] == before


@pytest.mark.crossed
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
        passes = len(list(micro_batches(range(point.batch.split.large), point.batch.split.large, shares.micro)))
        assert (shares.micro, passes) == (point.batch.micro_batch_size, point.batch.grad_accumulation), point.nodes


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("recipes.trainer.devices=4", "N128 4 of 8 accelerators of ml.p5.48xlarge stay idle"),
        ("++recipes.extra_keys=[zzz]", "N127 extra_keys names zzz"),
        (
            "++env_vars.CUDA_VISIBLE_DEVICES=0",
            "N193 env_vars.CUDA_VISIBLE_DEVICES=0 shows 1 device to the 8 ranks of a",
        ),
        ("++env_vars.CUDA_VISIBLE_DEVICES='0,1,2'", "shows 3 devices to the 8 ranks of a node"),
    ],
    ids=["idle accelerators", "unmatched extra key", "a hidden device", "hidden devices"],
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


@pytest.mark.crossed
@pytest.mark.parametrize("name", ["", "training_cfg.run.name=other", "recipes.run.name=other"])
@pytest.mark.parametrize("cluster", ["local", "k8s"])
def test_two_launches_share_no_folder_and_every_path_of_one_agrees(context, cluster, name):
    devices = "training_cfg.run.ntasks_per_node=8" if cluster == "k8s" else "training_cfg.run.ntasks_per_node=2"
    volumes = ["cluster.volumes=[{volumeName: a, hostPath: '/${recipes.run.name}', mountPath: /fsx}]"]
    words = [*SCRIPT, f"cluster={cluster}", devices, *NAMED_PATHS, *filter(None, [name])]
    words += volumes if cluster == "k8s" else []
    for suffix in ("aaaaa", "bbbbb"):
        job = pipeline.prepare(words, context._replace(suffix=suffix))
        stated = "other" if name else "custom-script"
        (point,) = job.scales
        assert job.name == f"{stated}-{suffix}"
        assert point.config["run"]["name"] == job.name
        assert point.config["run"]["results_dir"] == f"results/{job.name}"
        assert point.config["training_config"]["training_args"]["training_dir"] == f"/fsx/{job.name}"
        assert job.config["env_vars"]["OUT"] == f"results/{job.name}"
        assert interface(job).workers.program(job)[-2:] == ("--out", f"results/{job.name}/out")
        assert plan_report.plan_json(job)["job_name"] == job.name
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
    assert job.scales[0].config["run"]["results_dir"] == f"results/{'a' * 41}-x068q"


def test_a_folder_that_is_stated_stays_as_it_is(prepare):
    job = prepare(*LLAMA_K8S, ELASTIC, "recipes.run.results_dir=/fsx/results")
    assert {point.config["run"]["results_dir"] for point in job.scales} == {"/fsx/results"}


@pytest.mark.parametrize("name", ["My_Run", "''", "3", "null", "'${nowhere}'", "'${recipes.run.results_dir}'"])
def test_a_faulty_name_is_reported_as_it_is_stated(problems, name):
    found = problems(*LLAMA_K8S, f"recipes.run.name={name}")
    assert "x068q" not in str(found)
    assert "recipes.run.name" in {problem.path for problem in found}
