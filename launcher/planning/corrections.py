"""Which key an unknown one probably stands for. A suggestion is tried before it is given."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from launcher.common.problems import Problem
from launcher.common.suggestions import QUESTION, question
from launcher.config.collection import GROUPS
from launcher.config.overrides import typed_key
from launcher.model.config_tree import SCALES, leaves

_MOST, _MOST_SHOWN = 12, 3
"""Keys that are tried for a command line, each of which composes and checks the recipe; and that a Problem names."""
_OF_KEYS = ("E0", "E1")
"""Beginnings of the codes of Problems about keys and the values that they accept; others are about the whole job."""
_SYNONYMS = {
    "learning_rate": "lr learningrate",
    "max_epochs": "epochs epoch num_epochs num_train_epochs n_epochs train_epochs",
    "num_nodes": "nodes node node_count nnodes n_nodes num_node instance_count replicas num_machines",
    "devices": "gpus gpu num_gpus n_gpus ngpus gpus_per_node nproc_per_node num_devices device accelerators",
    "train_batch_size": "batch_size batch bs global_batch_size gbs per_device_train_batch_size batchsize",
    "micro_train_batch_size": "micro_batch_size mbs micro_batch per_device_batch_size",
    "model_name_or_path": "model model_name model_path model_id base_model pretrained_model_name_or_path hf_model",
    "max_len": "max_length max_seq_len seq_len sequence_length max_seq_length seqlen block_size context_length",
    "save_steps": "save_interval checkpoint_interval save_every checkpoint_steps save_freq",
    "logging_steps": "log_steps log_interval log_every logging_interval",
    "eval_steps": "eval_interval eval_every evaluation_steps",
    "lr_warmup_ratio": "warmup warmup_ratio",
    "lr_scheduler": "scheduler lr_scheduler_type",
    "max_norm": "grad_clip clip_grad max_grad_norm gradient_clip_val",
    "seed": "random_seed rng_seed",
    "weight_decay": "wd",
    "r": "lora_r lora_rank rank",
    "lora_alpha": "alpha",
    "file_path": "data dataset train_data data_path train_file dataset_path training_data",
    "training_dir": "checkpoint_dir ckpt_dir output_dir checkpoints",
    "is_elastic": "elastic",
    "min_nodes": "min_replicas",
    "max_nodes": "max_replicas",
    "name": "run_name job_name job",
    "base_results_dir": "output results results_dir out",
    "instance_type": "instance instance_types machine machine_type node_type",
    "container": "image container_image docker_image docker",
    "dry_run": "dryrun dry",
    "queue_name": "queue kueue_queue local_queue",
    "namespace": "ns",
    "rehearse": "rehearsal",
    "tracking_uri": "mlflow_uri mlflow mlflow_tracking_uri",
    "env_vars": "env environment",
    "cluster": "backend platform scheduler_backend",
    "recipes": "recipe",
}
"""Names of settings, and what other programs call them.

Source: Hugging Face TrainingArguments; torchrun; PyTorch Lightning Trainer; NeMo; TRL; AWS CLI; SkyPilot.
"""
_BY_WORD = {word: name for name, words in _SYNONYMS.items() for word in (name, *words.split())}
_FIRST = ("recipes.trainer.", "recipes.run.", "recipes.training_config.datasets.train_data.")
"""Where a name is meant that several sections have."""


def corrected(
    problems: Sequence[Problem],
    overrides: Sequence[str],
    tree_of: Callable[[Sequence[str]], Mapping[str, Any] | None],
    faults_of: Callable[[Sequence[str]], frozenset[tuple[str, str]]],
) -> tuple[Problem, ...]:
    """Return Problems whose suggested keys were tried: one that would be refused is left out.

    Args:
        overrides: The command line that has them.
        tree_of: Returns the composed configuration of overrides; None if they do not compose.
        faults_of: Returns code and key of each Problem that overrides have.
    """

    remaining, unknown = _MOST, {problem.path for problem in problems if problem.code == "E101"}

    def cost(words: Sequence[str], known: frozenset[tuple[str, str]]) -> int | None:
        """Return how many further Problems a suggestion has; None if its key does not accept the value."""
        nonlocal remaining
        remaining -= 1
        new = faults_of(words) - known if remaining >= 0 else {("E101", "")}
        return None if any(code[:2] in _OF_KEYS and path not in GROUPS for code, path in new) else len(new)

    def meant(problem: Problem) -> Problem:
        numbers = [i for i, word in enumerate(overrides) if typed_key(word) == problem.path and "=" in word]
        found = QUESTION.match(problem.remedy or "")
        if problem.code != "E101" or len(numbers) != 1 or (found and found[0] != problem.remedy):
            return problem  # the last: the key beside it is not the only remedy
        (number,) = numbers
        others = [*overrides[:number], *overrides[number + 1 :]]
        parent = problem.path.rpartition(".")[0]
        names = found[1].split(" or ") if found else []
        shown = {name if "." in name or not parent else f"{parent}.{name}": name for name in names}
        keys = (*shown, *_synonyms(problem.path, tree_of(others) or {}))
        before, value = faults_of(others), overrides[number].partition("=")[2]
        known = dict.fromkeys(key for key in keys if key not in unknown)  # others are in the tree, and faulty, too
        costs = {key: cost([*others, f"++{key}={value}"], before) for key in known}
        tried = sorted((key for key, new in costs.items() if new is not None), key=lambda key: costs[key] or 0)
        kept = None if found else problem.remedy
        remedy = question([shown.get(key, key) for key in tried[:_MOST_SHOWN]]) or kept
        return dataclasses.replace(problem, remedy=remedy)

    return tuple(map(meant, problems))


def _synonyms(key: str, tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of a configuration that a name stands for, those that are meant most often first."""
    name = _BY_WORD.get(key.rpartition(".")[2].lower().replace("-", "_"))
    if name is None:
        return
    paths = [path for path, _ in leaves(tree) if path.rpartition(".")[2] == name and not path.startswith(SCALES)]
    if name in tree:
        yield name
    yield from sorted(paths, key=lambda path: not path.startswith(_FIRST))
