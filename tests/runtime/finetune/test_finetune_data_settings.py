"""Settings of the data in compiled recipes, and the seeded split."""

import json
import os
import subprocess
import sys

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.collection import recipe_names
from launcher.config.compose import compose
from launcher.runtime.finetune.data import split
from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.rehearsal_data import write_rehearsal_data

RECIPES = [name for name in recipe_names() if "/llmft_" in name]
SFT = next(name for name in RECIPES if "_sft_" in name)


def config(name: str = SFT) -> dict:
    return compose([f"recipes={name}"], os.curdir).tree["recipes"]["training_config"]


@pytest.mark.slow
def test_every_recipe_has_settings():
    chains = set()
    for name in RECIPES:
        tree = config(name)
        found = DataSettings.of(tree)
        assert found.technique == tree["training_args"]["trainer_type"]
        assert (found.max_samples, found.max_len, found.split_ratio, found.split_seed) == (10**8, 4096, 0.9, 42)
        assert not found.template_file
        chains.add(found.chain)
    assert len(RECIPES) == 86 + 24  # published and our own
    assert len(chains) == 6


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        pytest.param(
            "training_args", "trainer_type", "ppo", "trainer_type is 'ppo'; known are sft, dpo", id="technique"
        ),
        pytest.param("training_args", "max_samples", "many", "max_samples is 'many'", id="text"),
        pytest.param("training_args", "max_samples", 1.5, "max_samples is 1.5", id="fraction"),
        pytest.param("training_args", "max_len", True, "max_len is True", id="truth"),
        pytest.param("datasets", "train_val_split_ratio", 1.5, "train_val_split_ratio is 1.5", id="ratio"),
        pytest.param("datasets", "train_val_split_ratio", 0, "train_val_split_ratio is 0", id="no sample"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(section, key, value, message):
    tree = config()
    changed = tree | {section: tree[section] | {key: value}}
    with pytest.raises(DataError, match=message):
        DataSettings.of(changed)


def test_a_template_with_a_slash_is_a_file_of_the_user():
    tree = config()
    step = {"type": "Seq2SeqTokensProcessor", "chat_template_name": "./own.jinja"}
    changed = tree | {"datasets": tree["datasets"] | {"preprocessor_cfgs": [step]}}
    assert DataSettings.of(changed).template_file == "./own.jinja"
    key = changed | {"model_config": tree["model_config"] | {"chat_template_key": "llama--x"}}
    assert DataSettings.of(key).image_templates == ("llama--x",)


@given(st.integers(1, 2000), st.integers(-(2**63), 2**63))
def test_a_split_is_a_permutation_with_the_size_it_says(num_samples, seed):
    positions = numpy.arange(num_samples, dtype=numpy.uint64)
    assert sorted(split.permuted(positions, num_samples, seed).tolist()) == list(range(num_samples))
    trained = split.is_trained(positions, num_samples, 0.9, seed)
    assert trained.sum() == split.num_trained(num_samples, 0.9) >= 1


@given(st.integers(1, 2**62), st.integers(0, 2**32))
def test_a_split_needs_no_other_positions(num_samples, seed):
    some = numpy.unique(numpy.array([0, num_samples // 2, num_samples - 1], numpy.uint64))
    together = split.permuted(some, num_samples, seed)
    alone = [split.permuted(some[index : index + 1], num_samples, seed)[0] for index in range(len(some))]
    assert together.tolist() == alone
    assert len(set(alone)) == len(alone)
    assert max(alone) < num_samples


def test_a_split_is_spread_over_the_file():
    held_out = ~split.is_trained(numpy.arange(100_000, dtype=numpy.uint64), 100_000, 0.9, 42)
    assert held_out.sum() == 10_000
    tenths = held_out.reshape(10, -1).sum(axis=1)
    assert tenths.min() > 900 and tenths.max() < 1100


@pytest.mark.slow
def test_preparation_imports_neither_torch_nor_transformers_nor_datasets(tmp_path):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from launcher.runtime.finetune.data.preparation import prepare\n"
        "from launcher.runtime.finetune.data.settings import DataSettings\n"
        "from launcher.runtime.finetune.rehearsal_data import write_rehearsal_data\n"
        "made = write_rehearsal_data(Path(sys.argv[1]), 'sft', 1)\n"
        "prepare(DataSettings('sft', str(made.train_file)), made.tokenizer_folder, Path(sys.argv[1], 'prepared'))\n"
        "print(*sorted({'torch', 'transformers', 'datasets', 'pandas', 'pyarrow', 'pydantic'} & set(sys.modules)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert ended.stdout == "\n"


@pytest.mark.slow
def test_reading_prepared_data_imports_no_tokenizer():
    program = (
        "import sys\n"
        "import launcher.runtime.finetune.data.prepared\n"
        "print(*sorted({'tokenizers', 'jinja2', 'torch', 'transformers'} & set(sys.modules)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "\n"


@pytest.mark.slow
@pytest.mark.parametrize("technique", ["sft", "dpo"])
def test_rehearsal_data_are_the_same_bytes_in_every_process(tmp_path, technique):
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from launcher.runtime.finetune.rehearsal_data import write_rehearsal_data\n"
        "write_rehearsal_data(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))\n"
    )
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        subprocess.run([sys.executable, "-c", program, tmp_path / name, technique, seed], check=True)
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert len(files) == 3
    for path in files:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()
    assert (tmp_path / "a" / f"{technique}.jsonl").read_bytes() != (
        tmp_path / "c" / f"{technique}.jsonl"
    ).read_bytes()


def test_rehearsal_samples_are_of_unequal_lengths_and_several_turns(tmp_path):
    made = write_rehearsal_data(tmp_path, "sft", 1)
    chats = [json.loads(line)["messages"] for line in made.train_file.read_text().splitlines()]
    assert len(chats) == 240
    assert {len([each for each in chat if each["role"] == "assistant"]) for chat in chats} == {1, 2, 3}
    assert {chat[0]["role"] for chat in chats} == {"system", "user"}
    assert len({sum(len(each["content"]) for each in chat) for chat in chats}) > 150
