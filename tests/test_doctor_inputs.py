"""What an examination finds of a job's samples, model, image and secrets, by the place where the job runs."""

import dataclasses
import json

import httpx2
import huggingface_hub
import pytest
from conftest import CACHE
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError
from test_doctor import PAIR, TALK, model_in, samples_in

from launcher import pipeline
from launcher.common.problems import Problem
from launcher.doctor import inputs
from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.settings import DataSettings

FOLDER = "recipes=fine-tuning/llama/llmft_llama3_2_1b_instruct_seq4k_gpu"
SFT, DPO = f"{FOLDER}_sft_lora", f"{FOLDER}_dpo"
DATASETS = "recipes.training_config.datasets"
TRAIN, VALIDATION = f"{DATASETS}.train_data.file_path", f"{DATASETS}.val_data.file_path"
MODEL = "recipes.training_config.model_config.model_name_or_path"
S3 = "cluster.sm_jobs_config.output_path=s3://bucket/out"
CLUSTERS = {
    "local": ("cluster=local",),
    "k8s": ("cluster=k8s",),
    "slurm": ("cluster=slurm",),
    "ssh": ("cluster=slurm", "cluster.ssh=login"),
    "sm_local": ("cluster=sm_local", S3),
    "sm_jobs": ("cluster=sm_jobs", S3, "cluster.sm_jobs_config.role=arn:aws:iam::123456789012:role/r"),
}


@pytest.fixture
def prepared(context):
    """Return a function from a cluster, a recipe and values to a job that is planned."""

    def found(cluster, recipe=SFT, **values):
        given = {TRAIN: "/fsx/talks.jsonl", MODEL: "/fsx/model", **values}
        words = [f"{key}={value}" for key, value in given.items() if value is not None]
        return pipeline.prepared((recipe, *CLUSTERS[cluster], *words), context, CACHE, needs_inputs=False)

    return found


def asked(prepared, subject):
    """Return the state or the Problem's code and path, and the message, of each answer about a subject."""
    questions = {each.subject: each for each in inputs.questions(prepared)}
    found = []
    for each in questions[subject].ask() if subject in questions else ():
        if isinstance(each, Problem):
            found.append((each.code, each.path, each.value, each.message))
        else:
            assert each.subject == subject
            found.append((each.state.value, each.message))
    return found


@pytest.mark.parametrize(
    ("cluster", "path", "is_here"),
    [
        ("local", "data/a.jsonl", True),
        ("local", "/data/a.jsonl", True),
        ("local", "/opt/ml/input/data/train", False),
        ("local", "s3://bucket/a.jsonl", False),
        ("sm_local", "/data/a.jsonl", True),
        ("sm_local", "data/a.jsonl", False),
        ("slurm", "data/a.jsonl", True),
        ("ssh", "/data/a.jsonl", False),
        ("k8s", "/data/a.jsonl", False),
        ("sm_jobs", "/data/a.jsonl", False),
    ],
)
def test_a_job_finds_a_path_of_this_machine_where_it_shares_its_files(prepared, cluster, path, is_here):
    assert inputs.is_here(prepared(cluster).job, path) is is_here


# Samples


def test_a_rehearsal_needs_neither_samples_nor_a_model(prepared):
    job = prepared("local", rehearse="true")
    assert asked(job, "data") == [("ok", "samples are made up, as is the model: a rehearsal")]
    assert asked(job, "model") == []


def test_the_first_200_samples_of_each_file_are_read(prepared, tmp_path):
    samples_in(tmp_path / "talks.jsonl", *[TALK] * 200, {"question": "x"})
    assert asked(prepared("local", **{TRAIN: "talks.jsonl"}), "data") == [
        ("ok", "talks.jsonl: the first 200 samples are conversations")
    ]


def test_of_a_folder_of_several_splits_each_key_has_its_own(prepared, tmp_path):
    (tmp_path / "data").mkdir()
    samples_in(tmp_path / "data/train.jsonl", PAIR, PAIR)
    samples_in(tmp_path / "data/val.jsonl", PAIR)
    found = asked(prepared("local", DPO, **{TRAIN: "data", VALIDATION: "data"}), "data")
    assert found == [("ok", f"data: the first {number} samples are preference pairs") for number in (2, 1)]
    (tmp_path / "data/val.jsonl").rename(tmp_path / "data/train-2.jsonl")
    found = asked(prepared("local", DPO, **{TRAIN: "data"}), "data")
    assert found == [("ok", "data: the first 3 samples are preference pairs")]


def test_plain_text_is_a_sample_where_every_token_is_trained(prepared, tmp_path):
    samples_in(tmp_path / "text.jsonl", {"text": "a"})
    plain = {TRAIN: "text.jsonl", "++recipes.training_config.training_args.pretrain_mode": "true"}
    assert [each[0] for each in asked(prepared("local", **plain), "data")] == ["ok"]
    (found,) = asked(prepared("local", **{TRAIN: "text.jsonl"}), "data")
    assert found[:3] == ("E277", TRAIN, "text.jsonl") and "pretrain_mode=true" in found[3]


def test_a_fault_of_the_samples_is_a_warning_where_the_image_reads_them(prepared, tmp_path):
    samples_in(tmp_path / "more.jsonl", {"question": "x"})
    ((state, message),) = asked(prepared("slurm", **{TRAIN: None, VALIDATION: "more.jsonl"}), "data")[1:]
    assert state == "warning" and "unknown columns: question" in message
    assert message.endswith("the image's own program may read other forms")


def test_a_file_without_samples_is_a_failure(prepared, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    samples_in(tmp_path / "talks.jsonl", TALK)
    _, found = asked(prepared("local", **{TRAIN: "talks.jsonl", VALIDATION: "empty.jsonl"}), "data")
    assert found == ("E277", VALIDATION, "empty.jsonl", "has no sample")


def test_samples_that_are_not_here_or_not_named_are_unknown(prepared):
    ((state, message),) = asked(prepared("k8s"), "data")
    assert state == "unknown" and message.startswith("/fsx/talks.jsonl is read where the job runs")
    ((state, message),) = asked(prepared("local", **{TRAIN: None}), "data")
    assert state == "unknown" and message.startswith(f"{TRAIN} names no file")


def test_settings_that_the_trainer_refuses_are_failures(prepared, monkeypatch):
    job = prepared("local")

    def refuse(training):
        raise DataError("datasets.split is 2")

    monkeypatch.setattr(DataSettings, "of", refuse)
    assert [each[:2] + each[3:] for each in asked(job, "data")] == [("E277", TRAIN, "datasets.split is 2")]


# The model


def test_a_folder_of_a_model_has_its_weights_and_its_tokenizer(prepared, tmp_path):
    model_in(tmp_path / "org" / "model")
    job = prepared("local", **{MODEL: "org/model"})
    assert asked(job, "model") == [("ok", "org/model: llama, 1 tensors, and its tokenizer")]
    (tmp_path / "org/model/config.json").write_text("{}")
    assert asked(job, "model") == [("ok", "org/model: model of unknown type, 1 tensors, and its tokenizer")]
    (tmp_path / "org/model/tokenizer.json").unlink()
    assert asked(job, "model") == [("E116", MODEL, "org/model", "the folder has no tokenizer.json")]
    (tmp_path / "org/model/config.json").unlink()
    ((code, path, value, message),) = asked(job, "model")
    assert (code, path, value) == ("E116", MODEL, "org/model") and "no readable config.json" in message


def test_a_model_of_the_image_or_of_another_machine_is_unknown(prepared):
    job = prepared("slurm")
    ((state, message),) = asked(job, "model")
    assert state == "unknown" and message.startswith("/fsx/model is read where the job runs")
    ((state, message),) = asked(prepared("k8s", **{MODEL: "a/folder/of"}), "model")
    assert state == "unknown" and message.startswith("a/folder/of is read where the job runs")
    (point,) = job.job.scales
    training = json.loads(json.dumps(point.config["training_config"]))
    training["model_config"]["model_name_or_path"] = None
    point = point._replace(config={**point.config, "training_config": training})
    without = job._replace(job=dataclasses.replace(job.job, scales=(point,)))
    assert asked(without, "model") == [("unknown", f"{MODEL} is empty: the image has its own model")]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Return a function that sets what the Hub answers, and the list of what it is asked for; its cache is empty."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    requests = []

    def answers(answer):
        def metadata(url, *, timeout):
            requests.append((url.partition("/org/")[2], timeout))
            if isinstance(answer, Exception):
                raise answer
            return huggingface_hub.HfFileMetadata(answer, None, url, None, None)

        monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", metadata)
        return requests

    return answers


def refused(status):
    request = httpx2.Request("HEAD", "https://hub")
    return HfHubHTTPError("no", response=httpx2.Response(status, request=request))


def test_the_hub_is_asked_for_the_configuration_at_the_revision(prepared, hub, tmp_path):
    model_in(tmp_path / "org" / "model")  # which a job on a cluster does not see
    requests = hub("0123456789abcdef")
    found = asked(prepared("k8s", **{MODEL: "org/model"}), "model")
    assert found == [("ok", "org/model: the Hub gives it to you, commit 0123456789ab")]
    revision = {"++recipes.training_config.model_config.model_revision": "v2"}
    found = asked(prepared("local", **{MODEL: "org/other", **revision}), "model")
    assert found == [("ok", "org/other@v2: the Hub gives it to you, commit 0123456789ab")]
    assert requests == [("model/resolve/main/config.json", 10), ("other/resolve/v2/config.json", 10)]
    hub(None)
    found = asked(prepared("k8s", **{MODEL: "org/model"}), "model")
    assert found == [("ok", "org/model: the Hub gives it to you, commit unknown")]


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        *((status, "does not answer") for status in (408, 429, 500, 503)),
        *((status, "refuses it") for status in (401, 403, 404, 410, 499)),
    ],
)
def test_a_refusal_of_the_hub_counts_for_a_job_that_has_the_rights_of_this_machine(prepared, hub, status, answer):
    hub(refused(status))
    found = {
        each: asked(prepared(each, **{MODEL: "org/model"}), "model") for each in ("local", "slurm", "k8s", "ssh")
    }
    if answer == "does not answer":
        assert list(found.values()) == [[("unknown", f"org/model: the Hub {answer}: HfHubHTTPError")]] * 4
    else:
        here = [("E116", MODEL, "org/model", f"the Hub {answer}: HfHubHTTPError")]
        there = [("warning", f"org/model: the Hub {answer} to this machine: HfHubHTTPError")]
        assert found == {"local": here, "slurm": here, "k8s": there, "ssh": there}


def test_an_error_of_the_hub_without_a_response_is_no_answer(prepared, hub):
    error = refused(404)
    error.response = None
    hub(error)
    found = asked(prepared("local", **{MODEL: "org/model"}), "model")
    assert found == [("unknown", "org/model: the Hub does not answer: HfHubHTTPError")]


def test_a_name_that_the_hub_cannot_have_is_refused(prepared, hub):
    hub("0123456789abcdef")
    found = asked(prepared("local", **{MODEL: "org/a--b"}), "model")
    assert found == [("E116", MODEL, "org/a--b", "the Hub refuses it: HFValidationError")]


@pytest.mark.parametrize("error", [httpx2.ConnectError("no route"), OSError("no route")], ids=["client", "system"])
def test_a_model_in_the_cache_of_this_machine_is_enough_where_the_job_runs_here(prepared, hub, tmp_path, error):
    hub(error)
    model, name = {MODEL: "org/model"}, type(error).__name__
    away = [("unknown", f"org/model: the Hub is not reachable from here: {name}")]
    assert asked(prepared("local", **model), "model") == away
    snapshot = tmp_path / "hub/models--org--model/snapshots/c1"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    (tmp_path / "hub/models--org--model/refs").mkdir()
    (tmp_path / "hub/models--org--model/refs/main").write_text("c1")
    found = asked(prepared("local", **model), "model")
    assert found == [("ok", "org/model: the Hub is not reachable; this machine's cache has it")]
    assert asked(prepared("k8s", **model), "model") == away
    revision = {"++recipes.training_config.model_config.model_revision": "v2"}
    ((state, message),) = asked(prepared("local", **model, **revision), "model")
    assert state == "unknown" and message.startswith("org/model@v2: the Hub is not reachable from here")


def test_a_fault_of_our_own_is_not_taken_for_a_hub_that_is_away(prepared, hub):
    hub(KeyError("x"))
    with pytest.raises(KeyError):
        asked(prepared("local", **{MODEL: "org/model"}), "model")


# The image


def about_image(prepared, image):
    return asked(prepared._replace(job=dataclasses.replace(prepared.job, image=image)), "image")


ECR, DIGEST = "123456789012.dkr.ecr.eu-west-1.amazonaws.com", "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("image", "state", "message"),
    [
        (f"me/image@{DIGEST}", "ok", f"me/image@{DIGEST} is fixed by its digest"),
        ("me/image:1", "ok", "me/image:1; its registry is asked by the nodes, with their own rights"),
        ("host:5000/image", "warning", "host:5000/image has no fixed tag: a restarted node may pull another image"),
        ("me/image:latest", "warning", "me/image:latest has no fixed tag: a restarted node may pull another image"),
    ],
)
def test_an_image_has_a_tag_or_a_digest(prepared, image, state, message):
    assert about_image(prepared("k8s"), image) == [(state, message)]


@pytest.mark.parametrize("image", ["docker://[::1]:5000/x:1", "[::1]:5000#x:1"])
def test_an_address_of_slurm_s_is_read_to_the_letter(prepared, image):
    assert [each[0] for each in about_image(prepared("slurm"), image)] == ["ok"]


def test_a_registry_of_another_region_is_a_warning(prepared):
    job = prepared("sm_jobs", **{"cluster.sm_jobs_config.region": "us-east-1"})
    far, near = (about_image(job, f"{host}/x:1") for host in (ECR, ECR.replace("eu-west-1", "us-east-1")))
    assert [each[0] for each in far] == ["warning", "ok"] and [each[0] for each in near] == ["ok"]
    assert far[0][1].startswith("its registry is in eu-west-1, and the job in us-east-1")
    assert [each[0] for each in about_image(prepared("k8s"), f"{ECR}/x:1")] == ["ok"]


def test_a_file_as_an_image_is_read_where_the_job_runs(prepared, tmp_path):
    image = str(tmp_path / "a.sqsh")
    slurm, ssh = (about_image(prepared(each), image) for each in ("slurm", "ssh"))
    assert slurm == [("E116", "container", image, "does not exist or is not readable")]
    assert ssh == [("unknown", f"{image} is read where the job runs, which this machine does not see")]
    (tmp_path / "a.sqsh").touch()
    assert about_image(prepared("slurm"), image) == [("ok", f"{image} is readable")]


def test_a_job_on_this_machine_pulls_no_image(prepared):
    assert about_image(prepared("local"), "me/image:1") == []
    assert about_image(prepared("k8s"), None) == []


# Secrets


def test_secrets_of_this_environment_are_set_or_each_a_failure(prepared, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "t")
    monkeypatch.delenv("NO_TOKEN", raising=False)
    set_, unset = {"env_vars.HF_TOKEN": "{env: MY_TOKEN}"}, {"+env_vars.MY_KEY": "{env: NO_TOKEN}"}
    assert asked(prepared("slurm", **set_), "secrets") == [("ok", "set in this environment: MY_TOKEN")]
    found = asked(prepared("slurm", **set_, **unset), "secrets")
    assert [each[:2] for each in found] == [("E448", "env_vars.MY_KEY")]
    assert "secrets" not in {each.subject for each in inputs.questions(prepared("slurm"))}


def test_secrets_of_a_cluster_are_not_looked_for_here(prepared):
    job = prepared("k8s", **{"env_vars.HF_TOKEN": "{secretKeyRef: {name: a, key: b}}"})
    assert "secrets" not in {each.subject for each in inputs.questions(job)}


@pytest.mark.parametrize("cluster", ["slurm", "k8s", "local"])
def test_an_address_of_messages_that_is_not_set_is_a_warning(prepared, monkeypatch, cluster):
    monkeypatch.setenv("MY_URL", "json://127.0.0.1:1/")
    monkeypatch.delenv("NO_URL", raising=False)
    assert asked(prepared(cluster, notify="[{env: MY_URL}]"), "secrets") == [
        ("ok", "set in this environment: MY_URL")
    ]
    found = asked(prepared(cluster, notify="[{env: MY_URL}, {env: NO_URL}]"), "secrets")
    assert found == [("warning", "notify: NO_URL is not set in this environment; no message is sent to it")]


def test_what_this_machine_cannot_see_has_a_remedy_that_names_the_recipe_or_the_region(prepared):
    job = prepared("sm_jobs", **{"cluster.sm_jobs_config.region": "us-east-1"})
    job = job._replace(job=dataclasses.replace(job.job, image=f"{ECR}/x:1"))
    found = {each.subject: next(iter(each.ask())).remedy for each in inputs.questions(job)}
    recipe = SFT.removeprefix("recipes=")
    assert found["data"] == f"recipes data FILE --recipe {recipe} shows what is trained of a copy"
    assert found["image"] == "container=<the image in us-east-1>"


# The text of the tiny model


@pytest.mark.parametrize(
    ("cluster", "path", "state", "message"),
    [
        ("local", "/dev/null", "ok", "is readable"),
        ("local", "/nowhere/corpus.txt", "E116", "does not exist or is not readable"),
        ("k8s", "/nowhere/corpus.txt", "unknown", "is read where the job runs"),
    ],
)
def test_the_text_of_a_recipe_with_a_trainer_of_its_own_exists_where_it_can_be_seen(
    prepared, cluster, path, state, message
):
    given = {"container": "me/image:1", "instance_type": "ml.m5.2xlarge"} if cluster == "k8s" else {}
    values = {TRAIN: path, MODEL: None, **given}
    (found,) = asked(prepared(cluster, "recipes=training/tiny/tiny_lm_cpu", **values), inputs.DATA)
    assert found[0] == state and message in found[-1]
