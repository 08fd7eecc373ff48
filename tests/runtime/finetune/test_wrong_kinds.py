"""Files of a wrong kind in a model's folder."""

import os

import pytest
from wrong_kinds import of_kind

from launcher.runtime.finetune.architectures import ModelUnknown, read_config
from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.data.tokenization import open_tokenizer
from launcher.runtime.finetune.weight_files import WeightsInvalid, saved_tensors


@pytest.mark.parametrize("kind", ["pipe", "link to nothing", "link to a device"])
@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "pytorch_model-1.bin"])
def test_weights_that_are_not_files_are_named_and_not_opened(tmp_path, name, kind):
    of_kind(kind, tmp_path / name)
    with pytest.raises(WeightsInvalid, match=rf"{name}: is a (FIFO|link to no file|device)"):
        saved_tensors(tmp_path)


def test_a_configuration_that_is_not_a_file_is_named_and_not_opened(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelUnknown, match="config.json: is a FIFO"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_tokenizer_s_file_that_is_not_a_file_is_named_and_not_opened(tmp_path, name):
    (tmp_path / "tokenizer.json").write_text("{}")
    of_kind("pipe", tmp_path / name)
    with pytest.raises(DataError, match=rf"{name}: is a FIFO"):
        open_tokenizer(tmp_path, DataSettings("sft", "train.jsonl"))
