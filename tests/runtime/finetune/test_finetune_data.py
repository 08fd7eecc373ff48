"""Prepared data: forms of samples, trained parts, chains, limits, splits, and what is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.preparation import prepare
from launcher.runtime.finetune.data.prepared import Prepared, PreparedConversations, PreparedPairs, load
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.data.tokenization import open_tokenizer
from launcher.runtime.finetune.rehearsal_data import NUM_SAMPLES, VOCABULARY, write_rehearsal_data

CHAT = [{"role": "user", "content": "What rings twice?"}, {"role": "assistant", "content": "The ferry bell."}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rehearsal_data(tmp_path_factory.mktemp("rehearsal"), "sft", 1).tokenizer_folder


@pytest.fixture
def prepared(tokenizer: Path, tmp_path: Path) -> Callable[..., Prepared]:
    """Prepares a list of samples; further arguments are settings."""

    def prepare_samples(samples: list[Any], technique: str = "sft", **settings: Any) -> Prepared:
        path = tmp_path / "samples.jsonl"
        path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
        folder = settings.pop("tokenizer", tokenizer)
        given = {"split_ratio": 1.0} | settings
        return prepare(DataSettings(technique, str(path), **given), folder, tmp_path / "prepared")

    return prepare_samples


def text_of(tokenizer: Path, ids: Any) -> str:
    plain = open_tokenizer(tokenizer, DataSettings("sft", "")).tokenizer
    return plain.decode([int(each) for each in ids], skip_special_tokens=False)


def trained_text(tokenizer: Path, data: Any, index: int) -> str:
    ids, trained = data.sample(index)
    return text_of(tokenizer, [each for each, flag in zip(ids, trained, strict=True) if flag])


def test_rehearsal_data_is_prepared_and_read_again_without_a_tokenizer(tmp_path):
    made = write_rehearsal_data(tmp_path / "made", "sft", 3)
    written = prepare(DataSettings("sft", str(made.train_file)), made.tokenizer_folder, tmp_path / "prepared")
    read = load(written.folder)
    assert isinstance(read.train, PreparedConversations)
    assert (len(read.train), len(read.validation)) == (216, 24)
    assert read.digest == written.digest == written.folder.name
    assert read.counts == written.counts
    assert read.counts.read == read.counts.kept == NUM_SAMPLES
    assert read.train.ids.max() < VOCABULARY
    for index in range(len(read.train)):
        ids, trained = read.train.sample(index)
        assert len(ids) == len(trained)
        assert read.train.targets[index] == trained[1:].sum() > 0


def test_rehearsal_pairs_are_prepared(tmp_path):
    made = write_rehearsal_data(tmp_path / "made", "dpo", 3)
    found = prepare(DataSettings("dpo", str(made.train_file)), made.tokenizer_folder, tmp_path / "prepared")
    assert isinstance(found.train, PreparedPairs)
    assert (len(found.train), len(found.validation)) == (216, 24)
    for index in range(len(found.train)):
        prompt, chosen, rejected = found.train.sample(index)
        assert len(prompt)
        assert found.train.targets[index].tolist() == [len(chosen), len(rejected)]


def test_only_the_answers_are_trained(prepared, tokenizer):
    found = prepared([{"messages": CHAT + CHAT}])
    assert trained_text(tokenizer, found.train, 0) == "The ferry bell.<|end|>" * 2


def test_a_corrupted_line_is_named(prepared, tmp_path, tokenizer):
    path = tmp_path / "broken.jsonl"
    path.write_text(json.dumps({"messages": CHAT}) + "\n\n" + '{"messages": [')
    with pytest.raises(DataError, match=r"broken\.jsonl:3: not valid JSON"):
        prepare(DataSettings("sft", str(path)), tokenizer, tmp_path / "prepared")
    assert not [each for each in (tmp_path / "prepared").iterdir() if each.suffix != ".lock"]
