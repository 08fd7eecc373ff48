"""The command `recipes data`: samples with their trained parts, lengths, what is dropped, and bad input."""

import dataclasses
import json
from pathlib import Path

import pytest

from launcher.cli import data_report
from launcher.runtime.finetune.data.report import Piece, Shown, Summary, summarize
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.rehearsal_data import write_rehearsal_data

SFT = "llmft_llama3_2_1b_instruct_seq4k_gpu_sft_lora"
DPO = "llmft_llama3_2_1b_instruct_seq4k_gpu_dpo"
QUESTION, ANSWER = {"role": "user", "content": "What rings?"}, {"role": "assistant", "content": "The bell."}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "samples.jsonl"
    samples = [{"messages": [QUESTION, ANSWER]}, {"messages": [QUESTION]}, *[{"messages": [QUESTION, ANSWER]}] * 18]
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return path


def test_the_trained_part_is_marked_and_what_is_dropped_is_named(recipes, file):
    code, out, err = recipes("data", str(file), "--recipe", SFT, "--rehearse", "--samples", "2")
    assert (code, err) == (0, "")
    assert "▌ The bell.<|end|>" in out
    assert "  <|begin|><|role|>user<|text|>What rings?<|end|><|role|>assistant<|text|>\n" in out
    assert f"{file}:2  dropped: no turn of the assistant" in out
    assert f"    {file}:2  no turn of the assistant" in out
    assert "samples.jsonl: 20 samples read" in out
    assert "17 to train on, 2 held out" in out or "18 to train on, 1 held out" in out
    assert f"25–29 {'█' * 40} 19" in out


def test_json_holds_samples_lengths_and_places(recipes, file):
    code, out, _ = recipes("data", str(file), "--recipe", SFT, "--rehearse", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["counts"]["dropped"] == {"no turn of the assistant": 1}
    assert found["dropped"] == [[f"{file}:2", "no turn of the assistant"]]
    assert sum(found["lengths"].values()) == 19
    assert [piece["is_trained"] for piece in found["samples"][0]["pieces"]] == [False, True]


def test_overrides_of_the_recipe_apply(recipes, file):
    words = ("data", str(file), "recipes.training_config.training_args.max_len=32", "--recipe", SFT, "--rehearse")
    code, out, _ = recipes(*words, "--json")
    assert code == 0
    assert max(map(int, json.loads(out)["lengths"])) <= 32


def test_pairs_show_both_answers(recipes, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"prompt": "What rings?", "chosen": "The bell.", "rejected": "Nothing."}) + "\n")
    code, out, _ = recipes("data", str(path), "--recipe", DPO, "--rehearse")
    assert code == 0
    assert "▌ The bell.<|end|>" in out and "▌ Nothing.<|end|>" in out


def test_every_sample_that_is_not_valid_is_a_problem(recipes, tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text('{"a": 1}\n{\n' + json.dumps({"messages": [QUESTION, ANSWER]}) + "\n" + '{"messages": []}\n' * 20)
    code, _, err = recipes("data", str(path), "--recipe", SFT, "--rehearse")
    assert code == 2
    for line, message in ((1, "unknown columns: a"), (2, "not valid JSON"), (4, "messages is an empty list")):
        assert f"{path}:{line}: {message}" in err
    assert f"and 12 more up to {path}:23" in err
    assert "11 problems; nothing was done" in err


def test_a_tokenizer_of_a_folder_is_used(recipes, file, tmp_path):
    folder = write_rehearsal_data(tmp_path / "made", "sft", 1).tokenizer_folder
    model = f"recipes.training_config.model_config.model_name_or_path={folder}"
    for words in (("--tokenizer", str(folder)), (model,)):
        assert recipes("data", str(file), "--recipe", SFT, *words)[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        pytest.param(("samples.jsonl",), "E801", "missing option --recipe", id="no recipe"),
        pytest.param(("samples.jsonl", "--recipe", SFT), "E808", "--tokenizer FOLDER", id="no tokenizer"),
        pytest.param(
            ("samples.jsonl", "--recipe", SFT, "--tokenizer", "."), "E808", "no tokenizer.json", id="no file"
        ),
        pytest.param(
            ("samples.jsonl", "--recipe", "tiny_lm_cpu", "--rehearse"),
            "E808",
            "does not train the recipe",
            id="family",
        ),
        pytest.param(("no.jsonl", "--recipe", SFT, "--rehearse"), "E808", "no such file or folder", id="no data"),
        pytest.param(
            ("samples.jsonl", "--recipe", DPO, "--rehearse"), "E808", "samples.jsonl:1: unknown columns", id="form"
        ),
        pytest.param(
            ("samples.jsonl", "--recipe", SFT, "--rehearse", "--picture", "x.gif"), "E709", ".svg", id="gif"
        ),
        pytest.param(
            ("samples.jsonl", "--recipe", SFT, "--rehearse", "--tokenizer", "."),
            "E801",
            "one of",
            id="two tokenizers",
        ),
        pytest.param(
            (
                "samples.jsonl",
                "recipes.training_config.datasets.preprocessor_cfgs=[{type: Shuffle}]",
                *("--recipe", SFT, "--rehearse"),
            ),
            "E808",
            "known are TrainingSFTSampleConverter",
            id="step",
        ),
    ],
)
def test_bad_input_is_a_problem(recipes, file, words, code, says):
    exit_code, _, err = recipes("data", *words)
    assert exit_code == 2 and code in err and says in err


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_picture_is_the_same_bytes_again(recipes, file, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    for name in (f"a.{suffix}", f"b.{suffix}"):
        assert recipes("data", str(file), "--recipe", SFT, "--rehearse", "--picture", name)[0] == 0
    first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
    assert first == second and len(first) > 5_000


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [{12: 1}, {12: 1, 13: 2}, {10: 3, 400: 1}, {}], ids=str)
def test_axes_of_counts_have_whole_numbers_only_and_dropped_samples_are_drawn(lengths):
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    from launcher.runtime.finetune.data.losses import Counts

    fields = {field.name: 0 for field in dataclasses.fields(Counts)}
    dropped = {"nothing of it is trained": 3, "longer than max_len " + "x" * 200: 1} if lengths else {}
    counts = Counts(**fields | {"kept": sum(lengths.values()), "dropped": dropped})
    found = Summary(counts, 1, 0, lengths, (), (), ())
    figure = data_report._figure(found, 4096, "data")
    try:
        figure.canvas.draw()
        axes, *below = figure.axes
        shown = [tick for each in figure.axes for tick in (*each.get_xticks(), *each.get_yticks())]
        assert shown and all(tick == int(tick) for tick in shown)
        assert [bar.get_width() for each in below for bar in each.patches] == sorted(dropped.values())
        texts = [text.get_text() for each in below for text in each.texts]
        assert len(texts) == len(dropped) and all(len(text) < 110 for text in texts)
        assert ("3  nothing of it is trained" in texts) is bool(dropped)
    finally:
        pyplot.close("all")


@pytest.mark.slow
def test_the_summary_counts_what_preparation_writes(tmp_path):
    from launcher.runtime.finetune.data.preparation import prepare

    made = write_rehearsal_data(tmp_path / "made", "sft", 1)
    settings = DataSettings("sft", str(made.train_file), max_len=150, split_ratio=0.8)
    written = prepare(settings, made.tokenizer_folder, tmp_path / "prepared")
    found = summarize(settings, made.tokenizer_folder, 3)
    assert found.counts == written.counts
    assert (found.num_train, found.num_validation) == (len(written.train), len(written.validation))
    assert len(found.samples) == 3


def test_control_characters_of_a_sample_do_not_reach_the_terminal():
    sample = Shown("a.jsonl:1", {}, (Piece("\x1b[2Jbell\a\r\n\u202eend", True),), None, 3, 3)
    found = summary_of(sample)
    text = "\n".join(line for line, _ in data_report.lines(found, "a.jsonl"))
    assert "▌ \\x1b[2Jbell\\x07\\r↵\n▌ \\u202eend" in text


def test_control_characters_of_a_sample_do_not_reach_the_terminal_as_json():
    sample = Shown("a\x9b1m.jsonl:1", {"x": "\x9b31m\u202e\x7f"}, (Piece("\x1b[2J\n", True),), None, 3, 3)
    text = data_report.as_json(summary_of(sample))
    assert all(each.isprintable() or each == "\n" for each in text)
    assert json.loads(text)["samples"][0]["record"] == {"x": "\x9b31m\u202e\x7f"}


def test_what_is_not_trained_is_counted_by_reason(recipes, tmp_path):
    path = tmp_path / "samples.jsonl"
    silent = {"messages": [QUESTION, ANSWER | {"weight": 0}, QUESTION, ANSWER]}
    samples = [{"messages": [QUESTION]}, silent, *[{"messages": [QUESTION, ANSWER]}] * 4, {"messages": [QUESTION]}]
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    code, out, _ = recipes("data", str(path), "--recipe", SFT, "--rehearse", "--json")
    losses = {loss["reason"]: loss for loss in json.loads(out)["counts"]["losses"]}
    dropped, silent = losses["no turn of the assistant"], losses["weight 0"]
    assert code == 0 and len(losses) == 2
    assert (dropped["is_drop"], dropped["samples"], dropped["example"]) == (True, 2, f"{path}:1")
    assert (silent["is_drop"], silent["samples"], silent["turns"], silent["example"]) == (False, 1, 1, f"{path}:2")
    _, out, _ = recipes("data", str(path), "--recipe", SFT, "--rehearse")
    assert f"1 turn of the assistant in 1 sample not trained: weight 0; such as {path}:2" in out


def summary_of(sample: Shown) -> Summary:
    from launcher.runtime.finetune.data.losses import Counts

    return Summary(Counts(1, 1, {}, 0, 0, 3, 3), 1, 0, {3: 1}, (), (sample,), ())


@pytest.mark.parametrize("longest", [0, 1, 7, 12, 99, 100, 4096, 10**6])
def test_a_histogram_has_few_bars_and_loses_no_sample(longest):
    lengths = {longest: 3, longest // 2: 2, longest // 3: 1}
    found = data_report.bins(lengths)
    assert sum(number for _, _, number in found) == sum(lengths.values())
    assert 1 <= len(found) <= 12
    assert found[-1][0] <= longest <= found[-1][1]
