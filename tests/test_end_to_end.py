"""The main job as a user runs it: real agents, a real process group, a real MLflow store."""

import signal

import pytest
from background import await_true
from whole_jobs import ARGS, bundle_of, curve, finish, left_behind, mlflow_run, start

pytest.importorskip("hyperpod_elastic_agent", reason="pip install --no-deps hyperpod-elastic-agent==1.1.3")
pytestmark = pytest.mark.whole_job

SHORT = (f"{ARGS}.max_epochs=1", f"{ARGS}.save_steps=4")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train one epoch on one node; return the folder and what was printed."""
    folder = tmp_path_factory.mktemp("one")
    code, out, err = finish(start(*SHORT, cwd=folder))
    assert code == 0, err
    return folder, out


@pytest.mark.sample
def test_the_job_ends_well_and_says_where_everything_is(trained):
    folder, out = trained
    bundle = bundle_of(folder)
    assert f"bundle results/{bundle.name}  11 files" in out
    assert "step 1/" in out and "finished at step" in out
    assert out.splitlines()[-4] == "succeeded"
    run_line, ui_line = out.splitlines()[-2:]
    assert run_line.startswith("mlflow run ") and ui_line.startswith("mlflow ui --backend-store-uri ")
    assert left_behind(folder) == []


@pytest.mark.sample
def test_one_run_holds_the_curve_and_it_falls(trained):
    folder, _ = trained
    _, run = mlflow_run(folder)
    assert run.info.status == "FINISHED"
    losses = curve(folder)
    steps = [step for step, _ in losses]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > 8
    assert losses[-1][1] < losses[0][1] - 1
    assert {value for _, value in curve(folder, "world_size")} == {2.0}
    assert len(curve(folder, "learning_rate")) == len(curve(folder, "samples_per_s")) == len(steps)


@pytest.mark.sample
def test_the_bundle_is_what_was_rendered(trained):
    from launcher.bundle import store as bundles

    folder, _ = trained
    bundles.read(bundle_of(folder))


@pytest.mark.usefixtures("store")
def test_three_uneven_nodes_train_the_same_curve(trained, tmp_path):
    folder, _ = trained
    code, _, err = finish(start("recipes.trainer.num_nodes=3", *SHORT, cwd=tmp_path))
    assert code == 0, err
    assert {value for _, value in curve(tmp_path, "world_size")} == {6.0}
    for (step, loss), (other_step, other) in zip(curve(tmp_path), curve(folder), strict=True):
        assert step == other_step and loss == pytest.approx(other, abs=1e-4)


@pytest.mark.usefixtures("store")
def test_a_failed_job_is_exit_code_3_with_its_reason(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("raise RuntimeError('out of patience')\n")
    code, out, err = finish(start(f"cluster.command=['{script}']", cwd=tmp_path))
    assert code == 3
    assert err.splitlines()[1].startswith("failed") and "out of patience" in err
    assert "Traceback (most recent call last)" not in out
    assert mlflow_run(tmp_path)[1].info.status == "FAILED"
    assert left_behind(tmp_path) == []


@pytest.mark.usefixtures("store")
def test_ctrl_c_stops_everything_and_the_bundle_resumes(tmp_path):
    folder = f"{ARGS}.training_dir='saved/${{recipes.run.name}}'"
    process = start(f"{ARGS}.max_epochs=3", f"{ARGS}.save_steps=4", folder, cwd=tmp_path)
    for line in process.stdout:
        if line.startswith("step ") and int(line.split()[1].split("/")[0]) >= 2:
            break
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130 and "Traceback" not in err
    await_true(lambda: left_behind(tmp_path) == [], "the end of every process")
    assert mlflow_run(tmp_path)[1].info.status == "KILLED"

    code, out, err = finish(start("launch", str(bundle_of(tmp_path)), cwd=tmp_path, module=True))
    assert code == 0, err
    assert "resumed from step" in out
    assert [each.name for each in (tmp_path / "saved").iterdir()] == [bundle_of(tmp_path).name]
    steps = [step for step, _ in curve(tmp_path)]
    assert steps == list(range(1, len(steps) + 1))
    assert mlflow_run(tmp_path)[1].info.status == "FINISHED"
