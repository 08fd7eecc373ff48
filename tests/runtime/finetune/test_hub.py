"""Models from the Hugging Face Hub, against a small stand-in: which files are fetched, which commit a job keeps."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from launcher.runtime.finetune.inputs import wanted_files
from launcher.runtime.finetune.model_card import card, facts_of
from launcher.runtime.finetune.settings import settings_of

from .cases import compiled, conversations, inputs, prepared, saved_model
from .hub_server import Hub, serving

NAME = "org/model"
DESCRIBED = {"config.json": b"{}", "tokenizer.json": b"[]", "chat_template.jinja": b"x", "README.md": b"of no use"}
"""The cache fetches files of the same content once."""
INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "other.safetensors"}}).encode()
REPOSITORIES = {
    "safetensors": (
        DESCRIBED
        | {"model.safetensors": b"w", "pytorch_model.bin": b"w", "consolidated.safetensors": b"w"}
        | {"original/model.safetensors": b"w", "original/params.json": b"{}", "metal/model.bin": b"w"},
        ["model.safetensors"],
    ),
    "indexed": (
        DESCRIBED
        | {"model.safetensors.index.json": INDEX, "model-1.safetensors": b"1", "other.safetensors": b"2"}
        | {"model-of-an-earlier-save.safetensors": b"3", "original/model-1.safetensors": b"1"},
        ["model-1.safetensors", "other.safetensors"],
    ),
    "pickled": (
        DESCRIBED
        | {"pytorch_model.bin.index.json": b"{ }", "pytorch_model-1.bin": b"1", "pytorch_model-2.bin": b"2"}
        | {"training_args.bin": b"of no use", "optimizer.bin": b"of no use", "adapter_model.safetensors": b"3"},
        ["pytorch_model-1.bin", "pytorch_model-2.bin"],
    ),
    "odd_names": (
        DESCRIBED | {"model[1].safetensors": b"1", "model1.safetensors.txt": b"2"},
        ["model[1].safetensors"],
    ),
}

STARTER = """
import json, os, sys
from pathlib import Path
from launcher.runtime.finetune.inputs import ModelMissing, model_folder

for line in sys.stdin:
    name, revision, job, environment = json.loads(line)
    if os.fork():
        _, status = os.wait()
        if status:
            print("null", flush=True)
        continue
    os.environ |= environment
    try:
        folder, commit = model_folder(name, revision or None, Path(job))
        answer = [str(folder), commit, sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))]
    except ModelMissing as error:
        answer = str(error)
    print(json.dumps(answer), flush=True)
    os._exit(0)
"""
"""Forks a process for each start of a job: it has imported torch, and not the Hub's library, which reads its
environment when it is imported."""


@pytest.fixture(scope="module")
def starter():
    """Return the process that starts of jobs are forked from."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    words = [sys.executable, "-c", STARTER]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as found:
        yield found
        found.stdin.close()


@pytest.fixture
def hub(starter):
    """Return a hub that serves."""
    with serving(Hub()) as found:
        found.starter = starter
        yield found


def model_of(
    hub: Hub,
    folder: Path,
    revision: str = "",
    *,
    name: str = NAME,
    job: str = "job",
    cache: str = "cache",
    **more: str,
):
    """Return folder, commit and files that a start of a job finds, or why it finds none."""
    environment = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        **more,
    }
    print(json.dumps([name, revision, str(folder / job), environment]), file=hub.starter.stdin, flush=True)
    assert select.select([hub.starter.stdout], [], [], 240)[0], "no answer"
    found = json.loads(hub.starter.stdout.readline())
    assert found is not None, "it ended with an error"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", REPOSITORIES)
def test_one_format_of_the_weights_is_fetched_and_nothing_of_other_folders(hub, tmp_path, kind):
    files, weights = REPOSITORIES[kind]
    commit = hub.push(NAME, files)
    folder, found_commit, found = model_of(hub, tmp_path)
    descriptions = [file for file in files if file.endswith((".json", ".jinja", ".txt")) and "/" not in file]
    assert found == sorted([*weights, *descriptions])
    assert sorted(hub.fetched) == found  # each once
    assert (Path(folder).name, found_commit) == (commit, commit)


def test_pickled_weights_are_wanted_where_there_are_no_others():
    files = ["pytorch_model.bin", "config.json", "tokenizer.model", "flax_model.msgpack", "a/b.bin"]
    assert wanted_files(files) == ["config.json", "pytorch_model.bin", "tokenizer.model"]
    assert wanted_files([*files, "model.safetensors"]) == ["config.json", "model.safetensors", "tokenizer.model"]


@pytest.mark.slow
def test_a_job_keeps_its_commit_while_the_branch_moves(hub, tmp_path, closed_port):
    """Also on a node that downloads later, and while the Hub is not reachable."""
    old = hub.push(NAME, DESCRIBED | {"model.safetensors": b"old"})
    assert model_of(hub, tmp_path)[1] == old
    new = hub.push(NAME, DESCRIBED | {"model.safetensors": b"new"})
    for cache in ("cache", "of-another-node"):
        folder, commit, _ = model_of(hub, tmp_path, cache=cache)
        assert commit == old and (Path(folder) / "model.safetensors").read_bytes() == b"old"
    assert model_of(hub, tmp_path, job="another")[1] == new
    record = json.loads((tmp_path / "job" / "base-model.json").read_text())
    files = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert record == {"model": NAME, "revision": None, "commit": old, "files": files}
    hub.is_down = True
    assert model_of(hub, tmp_path)[1] == old
    assert model_of(hub, tmp_path, job="on-a-node-with-a-copy")[1:] == [new, files]
    assert "cannot be reached" in model_of(hub, tmp_path, job="third", cache="empty")
    hub.url = f"http://127.0.0.1:{closed_port}"
    assert model_of(hub, tmp_path, job="where-nothing-listens")[1:] == [new, files]
    assert "cannot be reached" in model_of(hub, tmp_path, job="fourth", cache="empty")
    environment = {"HF_HUB_OFFLINE": "1"}
    assert model_of(hub, tmp_path, job="offline", **environment)[1:] == [new, files]
    assert "cannot be reached" in model_of(hub, tmp_path, job="fifth", cache="empty", **environment)


@pytest.mark.slow
def test_a_revision_is_a_branch_a_tag_or_a_commit(hub, tmp_path):
    first = hub.push(NAME, DESCRIBED | {"model.safetensors": b"1"}, "v1")
    second = hub.push(NAME, DESCRIBED | {"model.safetensors": b"2"}, "main")
    for revision, commit in (("v1", first), (first, first), ("main", second), ("", second)):
        folder, found, _ = model_of(
            hub, tmp_path, revision
        )  # another revision than the recorded one is resolved anew
        assert found == commit
        assert (Path(folder) / "model.safetensors").read_bytes() == (b"1" if commit == first else b"2")
    assert "model_revision='v9'" in model_of(hub, tmp_path, "v9")
    assert "org/absent" in model_of(hub, tmp_path, name="org/absent")
    (tmp_path / "folder").mkdir()
    assert "a folder has no revisions" in model_of(hub, tmp_path, "v1", name=str(tmp_path / "folder"))


@pytest.mark.slow
def test_a_pickled_model_of_the_hub_trains(hub, tmp_path):
    """The documented way of pickled files, from the download to the loaded weights."""
    model = saved_model(tmp_path / "model", "llama")
    torch.save(model.state_dict(), tmp_path / "model" / "pytorch_model.bin")
    (tmp_path / "model" / "model.safetensors").unlink()
    hub.push(NAME, {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()})
    folder, _, files = model_of(hub, tmp_path)
    assert "pytorch_model.bin" in files
    from launcher.runtime.finetune.architectures import read_config
    from launcher.runtime.finetune.loading import converted

    weights = converted(Path(folder), read_config(Path(folder)))
    for name, parameter in model.named_parameters():
        assert torch.equal(weights[name], parameter)


def test_the_commit_is_in_the_model_card(tmp_path):
    config = compiled()
    from dataclasses import replace

    given = replace(inputs(config, tmp_path), is_rehearsal=False, commit="0123abc")
    data = prepared(conversations(2))
    facts = facts_of(settings_of(config, 1), given, tmp_path, data=data, steps=1)
    assert "| commit of the base model | 0123abc |" in card(facts)
    assert facts.base_commit == "0123abc"
    without = facts_of(settings_of(config, 1), replace(given, commit=""), tmp_path, data=data, steps=1)
    assert "commit" not in card(without)
