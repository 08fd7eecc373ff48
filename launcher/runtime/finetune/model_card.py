"""The model card of a result: what was trained, on what, with which outcome. Names no path of this machine."""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from torch import nn

from launcher.common import names
from launcher.common.texts import in_line
from launcher.runtime.durable import read_object
from launcher.runtime.finetune.data.losses import Counts
from launcher.runtime.finetune.data.prepared import Prepared
from launcher.runtime.finetune.inputs import Inputs
from launcher.runtime.finetune.settings import Settings
from launcher.runtime.metric_shipping import parsed
from launcher.runtime.model_configs import is_on_hub

BUNDLE_FILE = "bundle.json"
_PACKAGES = ("torch", "transformers", "peft", "safetensors")
_OF_THE_MACHINE = ("world_size", "samples_per_s")
"""Metrics of a step that describe no result."""
_TECHNIQUES = {"sft": "supervised fine-tuning", "dpo": "direct preference optimization"}
_CONTENTS = {
    "adapters": "The adapters are in this folder: `PeftModel.from_pretrained(base, folder)`.",
    "merged": "The model with the adapters merged into it is in `merged`: `from_pretrained(folder)`.",
    "model": "The model is in this folder: `from_pretrained(folder)`.",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """About a training and its result.

    Args:
        recipe: In the collection; empty if not known.
        technique: `sft` or `dpo`.
        base_model: That was trained: its name on the Hub, or that of its folder.
        base_commit: Of a base model on the Hub; empty for a folder.
        is_rehearsal: Whether the model was a small random one.
        samples: That it was trained on.
        data_counts: What became of the samples that were read.
        bundle_digest: Empty if not known.
        steps: Of the optimizer.
        metrics: Last value of each, by name.
        contents: What the result holds: `adapters`, `merged`, `model`.
    """

    name: str
    recipe: str
    technique: str
    base_model: str
    is_lora: bool
    is_rehearsal: bool
    data_digest: str
    samples: int
    data_counts: Counts
    bundle_digest: str
    steps: int
    metrics: Mapping[str, float]
    versions: Mapping[str, str]
    contents: tuple[str, ...] = ()
    base_commit: str = ""


def facts_of(settings: Settings, inputs: Inputs, run_dir: Path, *, data: Prepared, steps: int) -> Facts:
    """Return the facts about a finished training; `run_dir` has its metrics, and the bundle is above it, if any."""
    bundle = read_object(run_dir.parent / BUNDLE_FILE)  # of a job on this machine; nothing elsewhere
    # Examples name the file, but not where it is on this machine.
    losses = tuple(replace(loss, example=Path(loss.example).name) for loss in data.counts.losses)
    return Facts(
        name=settings.name,
        recipe=str(bundle.get("recipe", "")),
        technique=settings.technique,
        base_model=public_name(settings.model.path),
        is_lora=settings.model.lora is not None,
        is_rehearsal=inputs.is_rehearsal,
        data_digest=data.digest,
        samples=len(data.train),
        data_counts=replace(data.counts, losses=losses),
        bundle_digest=str(bundle.get("digest", "")),
        steps=steps,
        metrics=last_metrics(run_dir / names.METRICS_FILE),
        base_commit=inputs.commit,
        versions={"python": platform.python_version()} | {each: metadata.version(each) for each in _PACKAGES},
    )


def public_name(path: str) -> str:
    """Return the name of a model on the Hub as it is, and of a path its last part."""
    return path if is_on_hub(path) and not Path(path).is_dir() else Path(path).name


def last_metrics(file: Path) -> dict[str, float]:
    """Return the last value of each metric in a metrics file, without those of the machine."""
    found: dict[str, float] = {}
    if not file.exists():
        return found
    with file.open("rb") as lines:
        for line in filter(None, map(parsed, lines)):
            found |= {name: value for name, value in line.values.items() if value is not None}
    return {name: value for name, value in found.items() if name not in _OF_THE_MACHINE}


def card(facts: Facts) -> str:
    """Return the text of README.md, with the metadata that the Hugging Face Hub reads.

    Source: Hugging Face Hub documentation, Model Cards, model card metadata.
    """
    lines = ["---", *_metadata(facts), "---", "", f"# {facts.name}", ""]
    if facts.is_rehearsal:
        lines += ["**A rehearsal**: a small model with random weights, trained on made-up samples. Of no use.", ""]
    trained = "LoRA adapters" if facts.is_lora else "all weights"
    lines += [f"{_TECHNIQUES[facts.technique].capitalize()} of {facts.base_model or 'a model'}; {trained}.", ""]
    if facts.contents:
        lines += [*(_CONTENTS[each] for each in facts.contents), ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in _rows(facts)), ""]
    if losses := facts.data_counts.losses:
        lines += ["| not trained | samples | turns | tokens | example |", "|---|---|---|---|---|"]
        for loss in losses:
            reason, example = f"{'dropped: ' if loss.is_drop else ''}{loss.reason}", in_line(loss.example)
            cells = (reason, loss.samples, loss.turns, loss.tokens, example.replace("|", "\\|"))
            lines.append(f"| {' | '.join(map(str, cells))} |")
        lines.append("")
    if facts.metrics:
        lines += ["| metric | last value |", "|---|---|"]
        lines += [f"| {name} | {value:.6g} |" for name, value in sorted(facts.metrics.items())] + [""]
    return "\n".join(lines)


def _metadata(facts: Facts) -> list[str]:
    found = ["library_name: " + ("peft" if facts.is_lora else "transformers")]
    if facts.base_model and not facts.is_rehearsal:
        found.append(f"base_model: {json.dumps(facts.base_model)}")
    tags = [facts.technique, *(["lora"] if facts.is_lora else []), *(["rehearsal"] if facts.is_rehearsal else [])]
    return [*found, f"tags: [{', '.join(tags)}]"]


def _rows(facts: Facts) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [
        ("recipe", facts.recipe),
        ("base model", facts.base_model),
        ("commit of the base model", facts.base_commit),
        ("samples trained on", facts.samples),
        ("samples read", facts.data_counts.read),
        ("optimizer steps", facts.steps),
        ("digest of the data", facts.data_digest),
        ("digest of the bundle", facts.bundle_digest),
        ("versions", ", ".join(f"{name} {version}" for name, version in facts.versions.items())),
    ]
    return [(name, value) for name, value in rows if value != ""]


def tags_of(model: nn.Module, settings: Settings, inputs: Inputs, data: Prepared) -> dict[str, object]:
    """Return tags of the MLflow run beside the recipe's parameters: sizes of the model, its adapters and the data."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    lora = settings.model.lora
    return {
        "training.technique": settings.technique,
        "training.base_model": public_name(settings.model.path),
        **({"training.base_commit": inputs.commit} if inputs.commit else {}),
        "training.rehearsal": str(inputs.is_rehearsal).lower(),
        "training.parameters": sum(size for size, _ in sizes),
        "training.trained_parameters": sum(size for size, trains in sizes if trains),
        "training.lora": f"r={lora.r} alpha={lora.alpha}" if lora else "none",
        "training.samples": len(data.train),
        "training.tokens": data.counts.tokens,
        "training.trained_tokens": data.counts.targets,
        "training.data_digest": data.digest,
        "training.samples_dropped": data.counts.num_dropped,
    }
