"""Why Hydra refused to compose the chosen files, in the user's terms."""

import re
from collections.abc import Sequence

from hydra.errors import MissingConfigException

from launcher.common.problems import Problem, ProblemsFound, fail, first_line
from launcher.common.suggestions import nearest
from launcher.config import defaults_list
from launcher.config.choices import Choices
from launcher.config.collection import ALL_RECIPES, GROUPS, clusters
from launcher.config.hydra_sources import known_configs
from launcher.config.override_text import REMEDY_SYNTAX

_MOST_NEAR = 3
"""Names that a Problem suggests."""
_CLUSTERS = {
    "k8s": "kubernetes kube kubectl eks gke aks openshift hyperpod hyperpod-eks hyperpod_eks rke k3s minikube kueue",
    "slurm": "sbatch srun hyperpod-slurm hyperpod_slurm parallelcluster pcluster hpc pbs lsf sge flux torque",
    "sm_jobs": "sagemaker sagemaker-training sm smjobs training-job training_job aws",
    "local": "localhost laptop here docker single none",
}
"""Clusters, and other names of them; of batch systems there is only Slurm."""
_CLUSTER_NAMED = {word: cluster for cluster, words in _CLUSTERS.items() for word in words.split()}
_NOT_CHOSEN = re.compile(r"Could not override '([^']+)'\. No match in the defaults list")


def refused(error: Exception, choices: Choices) -> ProblemsFound:
    """Return why Hydra refused: a choice that does not exist, or faulty `defaults` behind one that does."""
    missing = error.missing_cfg_file or "" if isinstance(error, MissingConfigException) else ""
    for group, option in map(_group_and_option, choices.words):
        if missing == f"{group}/{option}" or (group in GROUPS and "${" in option):
            return unknown_choice(group, option, choices)
    if problems := _faulty_defaults(choices):
        return ProblemsFound(problems)
    message = first_line(error)
    if absent := _NOT_CHOSEN.match(message):
        return fail("E003", absent[1], "no file of this group is chosen yet", remedy=f"+{absent[1]}=… adds one")
    return fail("E003", " ".join(choices.words), message, remedy=REMEDY_SYNTAX)


def too_many_files(config: str, most: int, choices: Choices) -> ProblemsFound:
    """Return why a composition reads more than `most` files: `defaults` that lead back to themselves, or too many.

    Args:
        config: The first file above the bound.
        most: The bound.
        choices: The chosen files.
    """
    if problems := _faulty_defaults(choices):
        return ProblemsFound(problems)
    return fail("E005", "defaults", f"name more than {most} files", value=config)


def _faulty_defaults(choices: Choices) -> tuple[Problem, ...]:
    chosen = map(_group_and_option, choices.words)
    return tuple(p for group, option in chosen for p in defaults_list.faults(group, option, choices.search))


def _group_and_option(word: str) -> tuple[str, str]:
    """Return the group of files that an override chooses from, without its package, and the file's name."""
    key, _, option = word.lstrip("+").partition("=")
    return key.partition("@")[0], option.strip("'\"")


def unknown_choice(group: str, name: str, choices: Choices) -> ProblemsFound:
    """Return the Problem of a name that no file of a group has; all names of it are listed unless there are many."""
    names = (
        config.removeprefix(f"{group}/") for config in known_configs(choices.search) if config.startswith(f"{group}/")
    )
    known = clusters() if group == "cluster" else list(names)
    remedy = _near(group, name, known)
    what = group.removesuffix("s") if group in GROUPS else "file of this group"
    return fail(
        "E005",
        group,
        f"there is no {what} of that name",
        value=name,
        allowed=None if group == "recipes" else ", ".join(known),
        remedy=_from_list(name, known) or remedy or ALL_RECIPES if group == "recipes" else remedy,
    )


def _near(group: str, name: str, known: Sequence[str]) -> str | None:
    if group == "cluster" and (cluster := _CLUSTER_NAMED.get(name.lower())) in known:
        return f"did you mean cluster={cluster}?"
    near = nearest(name, known, cutoff=0.5) or ([] if name else known)
    if group == "cluster" and not near:  # a slip in another name of one
        words = nearest(name, list(_CLUSTER_NAMED), count=1)
        near = [_CLUSTER_NAMED[word] for word in words if _CLUSTER_NAMED[word] in known]
    return f"did you mean {' or '.join(f'{group}={n}' for n in near[:_MOST_NEAR])}?" if near else None


def _from_list(name: str, known: Sequence[str]) -> str | None:
    """Return the listing to choose from where a name of a recipe is absent, or a part of many names."""
    count = sum(name.lower() in other.lower() for other in known)
    if not name:
        return ALL_RECIPES
    if count <= _MOST_NEAR or not re.fullmatch(r"[\w./-]+", name):
        return None
    return f"recipes list {name} shows the {count} recipes with this in their names"
