"""The training stages: tokens per second, operations per second, and peak memory beside the estimate."""

import math
import traceback
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from benchmarks.gpu import devices, estimate
from benchmarks.gpu.results import Measurement, Results, median_of
from benchmarks.gpu.shapes import EXPERTS, GPT_OSS, LLAMA_1B, LLAMA_3B, LLAMA_8B, LORA, Shape
from benchmarks.gpu.training import OURS, TRL, Measured, Pace, measured

PACE, TINY_PACE = Pace(seconds=10, steps=8), Pace(seconds=0.2, steps=2)
TURNS = 2
"""How often each training takes its turn: the second time in the reverse order."""
OUT_OF_MEMORY, LONGEST = "out of memory", "longest_case_s"


@dataclass(frozen=True, slots=True)
class Case:
    """A training by one of the trainers."""

    who: str
    shape: Shape


def lora(results: Results) -> None:
    """Train Llama 3.1 8B's adapters without recomputation, against TRL."""
    _against_trl(results, "no recomputation", recomputes=False, micros=(1, 2), goal=11_000)


def lora_recomputed(results: Results) -> None:
    """Train Llama 3.1 8B's adapters with recomputation, as the recipes have it, against TRL."""
    _against_trl(results, "recomputation", recomputes=True, micros=(2, 4), goal=8_300)


def _against_trl(results: Results, label: str, *, recomputes: bool, micros: Sequence[int], goal: float) -> None:
    shapes = [_sized(results, Shape(LLAMA_8B, 4096, 4, micro, recomputes, LORA)) for micro in micros]
    cases = [Case(who, shape) for shape in shapes for who in (OURS, TRL)]
    found = taken_in_turns(results, cases)
    best: dict[str, Measurement] = {}
    for shape in shapes:
        theirs = found.get(Case(TRL, shape), [])
        for who in (OURS, TRL):
            name = f"Llama 3.1 8B, adapters, {label}, micro batch {shape.micro}: {who}"
            speeds = _speeds(shape, found.get(Case(who, shape), []))
            floor = median_of("", "", _speeds(shape, theirs)).value if who == OURS else None
            row = median_of(name, "tokens/s", speeds, floor=floor, floor_name="TRL", shape=_described(shape))
            results.add(row)
            if row.value is not None and row.value > (best[who].value or 0 if who in best else 0):
                best[who] = row
        _add_costs(results, f"Llama 3.1 8B, adapters, {label}, micro batch {shape.micro}", shape, found)
    if OURS in best:
        row = best[OURS]
        results.add(replace(row, name=f"Llama 3.1 8B, adapters, {label}: best", goal=goal, floor=None, ratio=None))
    if OURS in best and TRL in best:
        ratio = (best[OURS].value or 0) / (best[TRL].value or 1)
        results.add(Measurement(f"Llama 3.1 8B, adapters, {label}: best to TRL's best", ratio, "×", goal=1.3))


def full(results: Results) -> None:
    """Train all weights of Llama 3.2 1B and 3B."""
    for label, name in (("Llama 3.2 1B", LLAMA_1B), ("Llama 3.2 3B", LLAMA_3B)):
        _alone(results, f"{label}, all weights", [Shape(name, 4096, 4, micro, recomputes=True) for micro in (2, 1)])


def dpo(results: Results) -> None:
    """Train Llama 3.1 8B's adapters on preference pairs; the loss of the first step is known."""
    shapes = [Shape(LLAMA_8B, 2048, 4, micro, True, LORA, technique="dpo") for micro in (2, 1)]
    found = _alone(results, "Llama 3.1 8B, adapters, preference pairs", shapes)
    if found and found.losses:
        results.add(
            Measurement(
                "preference pairs: loss of the first step",
                found.losses[0],
                "nats",
                floor=math.log(2),
                floor_name="ln 2",
                ratio=found.losses[0] / math.log(2),
            )
        )


def gpt_oss(results: Results) -> None:
    """Train adapters of gpt-oss 20B, on its experts, too; with as many tokens as fit."""
    shapes = [Shape(GPT_OSS, tokens, 4, 1, True, EXPERTS) for tokens in (4096, 2048, 1024)]
    _alone(results, "gpt-oss 20B, adapters on experts", shapes)


def _alone(results: Results, label: str, shapes: Sequence[Shape]) -> Measured | None:
    """Measure the first of `shapes` that fits into memory."""
    for shape in [_sized(results, each) for each in shapes]:
        case = Case(OURS, shape)
        taken, note = _taken(results, case)
        name = f"{label}: ours"
        if taken is None:
            results.add(Measurement(name, None, "tokens/s", shape=_described(shape), note=note))
            continue
        results.add(median_of(name, "tokens/s", _speeds(shape, [taken]), shape=_described(shape)))
        _add_costs(results, label, shape, {case: [taken]})
        return taken
    results.problem(f"{label}: nothing was measured")
    return None


def _sized(results: Results, shape: Shape) -> Shape:
    return shape.tiny() if results.tiny else shape


def taken_in_turns(results: Results, cases: Sequence[Case]) -> dict[Case, list[Measured]]:
    """Measure each case once in every turn; one that does not fit, or lacks a library, once only."""
    found: dict[Case, list[Measured]] = defaultdict(list)
    notes: dict[Case, str] = {}
    for turn in range(TURNS):
        for case in cases[:: -1 if turn % 2 else 1]:
            if case in notes:
                continue
            taken, notes_of_case = _taken(results, case)
            if taken:
                found[case].append(taken)
            else:
                notes[case] = notes_of_case
    for case, note in notes.items():
        if note != OUT_OF_MEMORY and case not in found:
            results.problem(f"{case.who}, micro batch {case.shape.micro}: {note}")
    results.facts["notes"] = {f"{case.who}, micro batch {case.shape.micro}": note for case, note in notes.items()}
    return found


def _taken(results: Results, case: Case) -> tuple[Measured | None, str]:
    """Return what a case measures, or why it does not."""
    pace = TINY_PACE if results.tiny else PACE
    longest = results.facts.get(LONGEST, 2 * pace.seconds)
    if not results.budget.fits(longest):
        return None, "no time was left"
    began = results.budget.spent
    try:
        taken = measured(case.who, case.shape, pace, results.budget, tiny=results.tiny)
    except torch.OutOfMemoryError:
        return None, OUT_OF_MEMORY
    except ModuleNotFoundError as error:
        return None, f"{error.name} is not installed"
    except Exception as error:  # another case may work, and its figures count
        traceback.print_exc()
        return None, f"{type(error).__name__}: {str(error)[:500]}"
    finally:
        results.facts[LONGEST] = max(longest, results.budget.spent - began)
    return (taken, "") if taken.steps_s else (None, "no step ended in time")


def _speeds(shape: Shape, taken: Sequence[Measured]) -> list[float]:
    """Return the tokens per second of each turn."""
    return [shape.tokens_per_step / each.step_s for each in taken]


def _described(shape: Shape) -> dict[str, Any]:
    return {key: value for key, value in asdict(shape).items() if key != "peft"} | {
        "rank": shape.peft["r"] if shape.peft else None
    }


def _add_costs(results: Results, label: str, shape: Shape, found: dict[Case, list[Measured]]) -> None:
    """Add the operations per second beside those of a matrix product, and the peak memory beside the estimate."""
    taken = found.get(Case(OURS, shape))
    if not taken:
        return
    where, config = devices.device(), taken[0].config
    if "matmul_flops" not in results.facts:
        results.facts["matmul_flops"] = devices.matmul_flops(where, tiny=results.tiny)
    per_token = estimate.flops_per_token(shape, config)
    rates = [per_token * speed / 1e12 for speed in _speeds(shape, taken)]
    results.add(
        median_of(
            f"{label}: model operations",
            "TFLOP/s",
            rates,
            floor=results.facts["matmul_flops"] / 1e12,
            floor_name="matrix product",
        )
    )
    parts = estimate.memory_bytes(shape, config)
    peaks = [each.peak / 1e9 for each in taken if each.peak]
    results.add(
        median_of(
            f"{label}: peak memory",
            "GB",
            peaks,
            floor=sum(parts.values()) / 1e9,
            floor_name="estimate",
            shape={key: round(value / 1e9, 2) for key, value in parts.items()},
            note="" if peaks else "the CPU counts no peak",
        )
    )
