"""What a training tells of the data that it does not train on: printed, as metrics, and in the model card."""

import json
from dataclasses import replace

import pytest
from runtime_ranks import run_ranks

from launcher.runtime.finetune import trainer
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.rehearsal_data import write_rehearsal_data
from launcher.runtime.finetune.settings import settings_of

from .cases import compiled, inputs
from .runs import lines

pytestmark = pytest.mark.slow

QUESTION, ANSWER = {"role": "user", "content": "What rings?"}, {"role": "assistant", "content": "The bell."}


def test_what_is_not_trained_is_printed_once_and_is_in_metrics_and_card(tmp_path, capfd):
    made = write_rehearsal_data(tmp_path / "made", "sft", 1)
    silent = {"messages": [QUESTION, ANSWER | {"weight": 0}, QUESTION, ANSWER]}
    samples = [*[{"messages": [QUESTION, ANSWER]}] * 6, silent, silent, {"messages": [QUESTION]}]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in samples))
    config = compiled(train_batch_size=4, micro_train_batch_size=2, max_epochs=1)
    data = DataSettings("sft", str(path), split_ratio=1.0, max_lost_share=0.2)
    given = replace(inputs(config, tmp_path), data=data, tokenizer=made.tokenizer_folder)

    def work(place):
        assert trainer.FineTuning(settings_of(config, place.world_size), given, place, tmp_path).run()

    run_ranks(2, work, tmp_path)
    printed = [line for line in capfd.readouterr().out.splitlines() if line.startswith("data  ")]
    assert len(printed) == 3
    assert printed[0].startswith("data  8 of 9 samples, ")
    assert "1 of 9 samples dropped (11.1 %): no turn of the assistant; " in printed[1]
    assert printed[1].endswith(f"such as {path}:9")
    assert f"2 turns of the assistant in 2 samples not trained: weight 0; such as {path}:7" in printed[2]
    first, *others = lines(tmp_path)
    expected = {"samples_read": 9, "samples_dropped": 1, "samples_cut": 0, "turns_untrained": 2}
    assert {f"data/{name}": value for name, value in expected.items()}.items() <= first.items()
    assert first["data/lost_share"] == pytest.approx(1 / 9)
    assert others and not any(name.startswith("data/") for line in others for name in line)
    card = (given.results / "README.md").read_text()
    assert (
        "| dropped: no turn of the assistant | 1 | 0 |" in card and "| weight 0 | 2 | 2 | 0 | chats.jsonl:7 |" in card
    )
    assert str(tmp_path) not in card
    assert json.loads((given.results / "result.json").read_text())["data_counts"]["dropped"] == {
        "no turn of the assistant": 1
    }
