import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace

import pytest
from background import await_true

from launcher.common import names
from launcher.runtime.metric_shipping import METRIC_NAMES, TrackingUnavailable, _Delivery, prefix, ship
from launcher.runtime.reporting import MetricsFile, Reporter, StepMetrics

FIRST = StepMetrics(1, 5.5, 0.001, 2, 1, 100.0, 32, 1_700_000_000.25, attempt=0, cursor=32)
UNREACHABLE = "http://127.0.0.1:9"


def write_steps(run_dir, *steps: int, attempt: int = 0) -> None:
    file = MetricsFile(run_dir)
    for step in steps:
        file.append(asdict(replace(FIRST, step=step, loss=5.5 - step / 100 + attempt, attempt=attempt)))
    file.close()


def steps_in(run_dir) -> list[int]:
    return [json.loads(line)["step"] for line in (run_dir / names.METRICS_FILE).read_text().splitlines()]


@pytest.fixture(scope="module")
def mlflow_store(tmp_path_factory):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=uri)
    return client, uri, client.create_experiment("tiny")


@pytest.fixture
def mlflow_run(mlflow_store):
    client, uri, experiment = mlflow_store
    return client, uri, client.create_run(experiment).info.run_id


def logged(client, run_id: str, name: str = "loss") -> list[int]:
    return sorted(metric.step for metric in client.get_metric_history(run_id, name))


def losses(client, run_id: str) -> dict[int, float]:
    history = client.get_metric_history(run_id, "loss")
    assert len({metric.step for metric in history}) == len(history)
    return {metric.step: metric.value for metric in history}


def test_redone_steps_are_written_again(tmp_path):
    write_steps(tmp_path, 1, 2, 3)
    write_steps(tmp_path, 2, 3, 4, attempt=1)
    lines = [json.loads(line) for line in (tmp_path / names.METRICS_FILE).read_text().splitlines()]
    assert [(line["step"], line["attempt"]) for line in lines] == [(1, 0), (2, 0), (3, 0), (2, 1), (3, 1), (4, 1)]


@pytest.mark.parametrize("whole", [0, 2, 100], ids=["only_line", "after_whole_lines", "in_a_long_file"])
@pytest.mark.parametrize("torn", [1, 10_000], ids=["short", "long"])
def test_a_torn_last_line_is_dropped(tmp_path, whole, torn):
    write_steps(tmp_path, *range(1, whole + 1))
    with (tmp_path / names.METRICS_FILE).open("a") as file:
        file.write('{"step": 7, "lo' + "s" * torn)
    write_steps(tmp_path, whole + 1)
    assert steps_in(tmp_path) == list(range(1, whole + 2))


@pytest.mark.slow
def test_every_step_reaches_a_real_store_once(tmp_path, mlflow_run):
    client, uri, run_id = mlflow_run
    write_steps(tmp_path, 1, 2, 3)
    assert ship(tmp_path, uri, run_id) == 3
    write_steps(tmp_path, 3, 4, attempt=1)
    assert ship(tmp_path, uri, run_id) == 1
    assert ship(tmp_path, uri, run_id) == 0
    for name in METRIC_NAMES:
        assert logged(client, run_id, name) == [1, 2, 3, 4]
    assert losses(client, run_id) == pytest.approx({1: 5.49, 2: 5.48, 3: 5.47, 4: 6.46})
    assert client.get_metric_history(run_id, "loss")[0].timestamp == 1_700_000_000_250


@pytest.mark.slow
def test_of_a_step_redone_before_it_was_sent_the_last_time_counts(tmp_path, mlflow_run):
    """Two faults: steps out of order within the file, some done three times."""
    client, uri, run_id = mlflow_run
    write_steps(tmp_path, 1, 2)
    assert ship(tmp_path, uri, run_id) == 2
    write_steps(tmp_path, 3, 4, 5)
    write_steps(tmp_path, 2, 3, 4, 5, 6, attempt=1)
    write_steps(tmp_path, 4, 5, attempt=2)
    assert ship(tmp_path, uri, run_id) == 4
    assert losses(client, run_id) == pytest.approx({1: 5.49, 2: 5.48, 3: 6.47, 4: 7.46, 5: 7.45, 6: 6.44})
    write_steps(tmp_path, 6, 7, attempt=2)
    assert ship(tmp_path, uri, run_id) == 1
    assert logged(client, run_id) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.slow
def test_redone_steps_in_a_batch_that_failed_are_sent_once(tmp_path, mlflow_run, monkeypatch):
    """The second batch of two is refused: what the first one took is not sent again."""
    client, uri, run_id = mlflow_run
    monkeypatch.setattr("launcher.runtime.metric_shipping.POINTS_PER_CALL", 12)
    write_steps(tmp_path, 1, 2, 3, 4)
    write_steps(tmp_path, 3, 4, 5, attempt=1)
    courier = _Delivery(tmp_path, uri, run_id)
    courier._connect()
    whole, refused = courier._client.log_batch, iter([False, True])

    def log_batch(*args, **kwargs):
        if next(refused, False):
            raise OSError("refused")
        whole(*args, **kwargs)

    monkeypatch.setattr(courier._client, "log_batch", log_batch)
    with pytest.raises(TrackingUnavailable, match="refused"):
        courier.deliver()
    assert logged(client, run_id) == [1, 2, 3]
    assert courier.deliver() == 2
    assert losses(client, run_id) == pytest.approx({1: 5.49, 2: 5.48, 3: 6.47, 4: 6.46, 5: 6.45})


@pytest.mark.slow
def test_a_step_without_a_loss_is_sent_without_one(tmp_path, mlflow_run):
    client, uri, run_id = mlflow_run
    file = MetricsFile(tmp_path)
    file.append(asdict(replace(FIRST, loss=None, learning_rate=None)))
    file.close()
    assert ship(tmp_path, uri, run_id) == 1
    (tmp_path / names.SHIPPED_FILE).unlink()
    assert ship(tmp_path, uri, run_id) == 0
    assert (logged(client, run_id), logged(client, run_id, "samples_per_s")) == ([], [1])


@pytest.mark.slow
def test_steps_are_not_sent_twice_when_the_acknowledgement_was_lost(tmp_path, mlflow_run):
    client, uri, run_id = mlflow_run
    write_steps(tmp_path, 1, 2, 3)
    ship(tmp_path, uri, run_id)
    (tmp_path / names.SHIPPED_FILE).unlink()
    write_steps(tmp_path, 4)
    assert ship(tmp_path, uri, run_id) == 1
    assert logged(client, run_id) == [1, 2, 3, 4]


def test_only_whole_lines_are_sent_and_acknowledged(tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr(_Delivery, "_connect", lambda self: setattr(self, "_client", object()))
    monkeypatch.setattr(_Delivery, "_last_step_of_server", lambda self, name: 0)
    monkeypatch.setattr(_Delivery, "_log", lambda self, records: sent.extend(r.step for r in records))
    write_steps(tmp_path, *range(1, 300))
    size = (tmp_path / names.METRICS_FILE).stat().st_size
    with (tmp_path / names.METRICS_FILE).open("a") as file:
        file.write('{"step": 300')
    assert ship(tmp_path, None, "id") == 299
    assert sent == list(range(1, 300))
    assert (tmp_path / names.SHIPPED_FILE).read_text() == f"{size} 1"


MALFORMED = {
    "no_json": b'{"step": 2, "lo',
    "no_object": b"[1, 2]",
    "no_text": b"\xff\xfe",
    "no_step": b'{"loss": 1.0, "time": 1.0}',
    "no_number": b'{"step": "two", "time": 1.0, "loss": 1, "learning_rate": 1, "world_size": 1, "samples_per_s": 1}',
    "further_no_numbers": b'{"step": 2, "time": 1.0, "further": {"a": "b"}}',
    "further_no_object": b'{"step": 2, "time": 1.0, "further": [1]}',
    "nothing_further": b'{"step": 2, "time": 1.0, "further": {}}',
    "no_time": b'{"step": 2, "time": Infinity, "loss": 1, "learning_rate": 1, "world_size": 1, "samples_per_s": 1}',
}


@pytest.mark.slow
@pytest.mark.parametrize("line", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_line_is_passed_over(tmp_path, mlflow_run, line):
    client, uri, run_id = mlflow_run
    write_steps(tmp_path, 1)
    with (tmp_path / names.METRICS_FILE).open("ab") as file:
        file.write(line + b"\n")
    write_steps(tmp_path, 3)
    assert ship(tmp_path, uri, run_id) == 2
    assert logged(client, run_id) == [1, 3]
    write_steps(tmp_path, 4)
    assert ship(tmp_path, uri, run_id) == 1
    assert logged(client, run_id) == [1, 3, 4]


@pytest.mark.slow
def test_steps_after_a_start_anew_are_a_curve_of_their_own(tmp_path, mlflow_run):
    """Fewer steps than the old curve has, then more; and a restart within the new launch goes on with it."""
    client, uri, run_id = mlflow_run
    Reporter(tmp_path, uri, run_id).begin_new_curves()
    assert prefix(tmp_path) == ""  # nothing to set apart from
    write_steps(tmp_path, 1, 2, 3)
    ship(tmp_path, uri, run_id)
    with (tmp_path / names.METRICS_FILE).open("a") as file:
        file.write('{"step": 4')  # torn by the end of the old launch
    Reporter(tmp_path, uri, run_id).begin_new_curves()
    assert ship(tmp_path, uri, run_id) == 0
    write_steps(tmp_path, 1, 2)
    assert ship(tmp_path, uri, run_id) == 2
    write_steps(tmp_path, 2, 3, 4, attempt=1)
    assert ship(tmp_path, uri, run_id) == 2
    assert prefix(tmp_path) == "launch-2/"
    for name in METRIC_NAMES:
        assert (logged(client, run_id, name), logged(client, run_id, prefix(tmp_path) + name)) == (
            [1, 2, 3],
            [1, 2, 3, 4],
        )


@pytest.mark.slow
def test_an_offset_written_without_its_curve_is_of_the_first(tmp_path, mlflow_run):
    _, uri, run_id = mlflow_run
    write_steps(tmp_path, 1, 2)
    ship(tmp_path, uri, run_id)
    path = tmp_path / names.SHIPPED_FILE
    path.write_text(path.read_text().split()[0])
    write_steps(tmp_path, 3)
    assert ship(tmp_path, uri, run_id) == 1


@pytest.mark.slow
def test_a_closed_reporter_may_go_on(tmp_path, mlflow_run):
    client, uri, run_id = mlflow_run
    reporter = Reporter(tmp_path, uri, run_id)
    for step in (1, 2):
        reporter.report(replace(FIRST, step=step))
        reporter.close(timeout_s=20)
    assert steps_in(tmp_path) == logged(client, run_id) == [1, 2]


@pytest.mark.slow
def test_the_reporter_sends_while_training_goes_on(tmp_path, mlflow_run):
    client, uri, run_id = mlflow_run
    reporter = Reporter(tmp_path, uri, run_id)
    for step in range(1, 6):
        reporter.report(replace(FIRST, step=step))
    await_true((tmp_path / names.SHIPPED_FILE).exists)
    assert logged(client, run_id) == [1, 2, 3, 4, 5]
    reporter.report(replace(FIRST, step=6))
    reporter.close(timeout_s=20)
    assert Counter(logged(client, run_id)) == Counter(range(1, 7))


@pytest.mark.slow
def test_an_unreachable_server_is_said_once_and_stops_nothing(tmp_path, monkeypatch, capfd):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr("launcher.runtime.metric_shipping.POLL_INTERVAL_S", 0.05)
    reporter = Reporter(tmp_path, UNREACHABLE, "some-run")
    for step in range(1, 4):
        reporter.report(replace(FIRST, step=step))
        time.sleep(0.3)
    reporter.close(timeout_s=10)
    assert steps_in(tmp_path) == [1, 2, 3]
    assert capfd.readouterr().err.count("training continues") == 1
    with pytest.raises(TrackingUnavailable):
        ship(tmp_path, UNREACHABLE, "some-run")


@pytest.mark.slow
def test_further_metrics_reach_a_real_store_once(tmp_path, mlflow_run):
    """A fault in step 5 redoes steps 3 and 4, and the evaluation after 4; the acknowledgement was lost."""
    client, uri, run_id = mlflow_run
    reporter = Reporter(tmp_path)
    for step, attempt in [(1, 0), (2, 0), (3, 0), (4, 0), (3, 1), (4, 1), (5, 1), (6, 1)]:
        reporter.report(replace(FIRST, step=step, attempt=attempt, further={"grad_norm": step + attempt / 10}))
        if step % 2 == 0:
            reporter.report_further(step, attempt, {"eval/loss": step + attempt / 10, "eval/accuracy": 0.5})
        if (step, attempt) == (4, 0):
            assert ship(tmp_path, uri, run_id) == 4
        if (step, attempt) == (5, 1):
            (tmp_path / names.SHIPPED_FILE).unlink()
    assert ship(tmp_path, uri, run_id) == 2
    found = {
        name: {point.step: point.value for point in client.get_metric_history(run_id, name)}
        for name in ("grad_norm", "eval/loss", "eval/accuracy")
    }
    assert found == {
        "grad_norm": {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 5.1, 6: 6.1},
        "eval/loss": {2: 2.0, 4: 4.0, 6: 6.1},
        "eval/accuracy": {2: 0.5, 4: 0.5, 6: 0.5},
    }
    for name in found:
        assert len(logged(client, run_id, name)) == len(found[name])


@pytest.mark.slow
def test_many_further_metrics_are_sent_in_several_calls(tmp_path, mlflow_run):
    """The server takes 1000 metrics in a call."""
    client, uri, run_id = mlflow_run
    reporter = Reporter(tmp_path)
    for step in range(1, 31):
        reporter.report(replace(FIRST, step=step, further={f"group/{number}": step for number in range(90)}))
    assert ship(tmp_path, uri, run_id) == 30
    assert logged(client, run_id, "group/89") == logged(client, run_id) == list(range(1, 31))


@pytest.mark.slow
def test_tags_reach_a_real_store_and_the_last_ones_count(tmp_path, mlflow_run):
    client, uri, run_id = mlflow_run
    for tokens in (5, 7):
        reporter = Reporter(tmp_path, uri, run_id)
        reporter.describe({"training.tokens": tokens, "training.lora": "none"})
        reporter.report(replace(FIRST, step=tokens))
        reporter.close(timeout_s=120)
    tags = client.get_run(run_id).data.tags
    assert (tags["training.tokens"], tags["training.lora"]) == ("7", "none")


def test_tags_of_a_job_without_a_run_are_not_kept(tmp_path):
    Reporter(tmp_path).describe({"training.tokens": 5})
    assert not (tmp_path / names.TAGS_FILE).exists()


def test_a_step_without_further_metrics_has_no_field_for_them(tmp_path):
    reporter = Reporter(tmp_path)
    reporter.report(FIRST)
    assert "further" not in json.loads((tmp_path / names.METRICS_FILE).read_text())


def test_without_a_run_there_is_no_shipper(tmp_path):
    reporter = Reporter(tmp_path, None, "")
    reporter.report(FIRST)
    reporter.close(timeout_s=1)
    assert steps_in(tmp_path) == [1]
    assert not (tmp_path / names.SHIPPED_FILE).exists()


def test_the_module_needs_neither_torch_nor_mlflow():
    program = "import sys, launcher.runtime.reporting; print({'torch', 'mlflow'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
