"""What preparing data costs beside the tokenizer alone, and a restart beside the preparation."""

import json
import random
import resource
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from conftest import ROOT

from launcher.runtime.finetune import rehearsal_data
from launcher.runtime.finetune.data.encoding import Encoder
from launcher.runtime.finetune.data.preparation import prepare
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.data.sources import CHUNK_SAMPLES, open_source
from launcher.runtime.finetune.data.tokenization import open_tokenizer
from launcher.runtime.finetune.data.workers import SMALL_BYTES

VOCABULARY, ROUNDS = 8192, 3
SIZES = {"in one process": 4_000, "in a process per core": 40_000}


def words() -> list[str]:
    pages = sorted((ROOT / "docs").glob("*.md"))
    return " ".join(page.read_text(encoding="utf-8") for page in pages).split()


def make(folder: Path, num_samples: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Write a tokenizer and conversations of one to three turns; return both places."""
    monkeypatch.setattr(rehearsal_data, "VOCABULARY", VOCABULARY)
    corpus = folder / "corpus.txt"
    corpus.write_text(" ".join(words()))
    monkeypatch.setattr(rehearsal_data, "_CORPUS", corpus)
    draw, known = random.Random(1), words()

    def text() -> str:
        return " ".join(draw.choices(known, k=draw.randint(20, 150)))

    path = folder / "samples.jsonl"
    with path.open("w") as file:
        for _ in range(num_samples):
            turns = [("user", "assistant")] * draw.randint(1, 3)
            messages = [{"role": role, "content": text()} for turn in turns for role in turn]
            file.write(json.dumps({"messages": messages}) + "\n")
    return rehearsal_data.write_rehearsal_data(folder, "sft", 1).tokenizer_folder, path


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds, those of ended children included."""

    def cpu() -> float:
        own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime

    wall, before = time.perf_counter(), cpu()
    work()
    return time.perf_counter() - wall, cpu() - before


@pytest.mark.parametrize("how", SIZES)
def test_preparation_beside_the_tokenizer_alone(how, tmp_path, monkeypatch, report):
    tokenizer, path = make(tmp_path, SIZES[how], monkeypatch)
    assert (path.stat().st_size > SMALL_BYTES) == (how != "in one process")
    settings = DataSettings("sft", str(path))
    encoder = Encoder(settings, open_tokenizer(tokenizer, settings))
    texts = [
        [each.text for each in encoder.rendered(chunk)] for chunk in open_source(str(path), "train").chunks(10**9)
    ]
    assert max(map(len, texts)) <= CHUNK_SAMPLES
    alone = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))

    def encode() -> int:
        return sum(len(found) for text in texts for found in alone.encode_batch_fast(text, add_special_tokens=False))

    def write() -> None:
        shutil.rmtree(tmp_path / "prepared", ignore_errors=True)
        prepare(settings, tokenizer, tmp_path / "prepared")

    encode()
    rounds = [(timed(encode), timed(write)) for _ in range(ROUNDS)]
    wall, cpu = (statistics.median(theirs[kind] / ours[kind] for theirs, ours in rounds) for kind in (0, 1))
    again = statistics.median(timed(lambda: prepare(settings, tokenizer, tmp_path / "prepared"))[1] for _ in range(5))
    found = prepare(settings, tokenizer, tmp_path / "prepared").counts
    rate = found.tokens / statistics.median(ours[0] for _, ours in rounds)
    report(
        f"{found.read} samples, {found.tokens} tokens, {how}: {rate:,.0f} tokens/s; speed of the tokenizer alone "
        f"x {wall:.2f} (wall) x {cpu:.2f} (CPU); again, prepared already: {again * 1e3:.0f} ms CPU"
    )
