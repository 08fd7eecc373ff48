"""The five programs of proximal policy optimization, each on nodes of its own.

Source: the objects and configurations that the published launcher makes; the generation of answers is a StatefulSet
there, whose container is privileged.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.families.amazon_nova.sections import Images
from launcher.families.amazon_nova.techniques import PPO_GENERATION, PPO_TRAIN
from launcher.model.interface import WORKERS, Component, PodNeeds, Role
from launcher.model.job_spec import JobSpec


class Program(NamedTuple):
    """One of the programs."""

    name: str
    """Ending of the names of its objects."""
    section: str
    """Its section of the recipe."""
    replicas: str
    """Key of `run` with its number of nodes."""
    task_type: str
    """How its configuration names it."""


_PROGRAMS = (
    Program("at", PPO_TRAIN, "actor_train_replicas", "ppo_actor_train"),
    Program("rm", "ppo_reward", "rm_replicas", "ppo_rm"),
    Program("cm", "ppo_critic", "cm_replicas", "ppo_cm"),
    Program("am", "ppo_anchor", "am_replicas", "ppo_anchor"),
    Program("ag", PPO_GENERATION, "actor_generation_replicas", "ppo_actor_gen"),
)
_UNREAD = ("actor_train_replicas", "rm_replicas", "cm_replicas", "am_replicas")
"""Keys of `run` that no program reads."""


def roles(workers: Role) -> tuple[Role, ...]:
    """Return the roles of a job, of which the training of the policy is the workers.

    Args:
        workers: How any program of Nova is started.
    """
    return tuple(_role(workers, program) for program in _PROGRAMS)


def _role(workers: Role, program: Program) -> Role:
    is_generation = program.section == PPO_GENERATION

    def config(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
        run = {key: value for key, value in recipe["run"].items() if key not in _UNREAD}
        return {"run": run, "training_config": {**recipe[program.section], "task_type": program.task_type}}

    def nodes(job: JobSpec) -> int:
        return int(job.recipe_tree["run"][program.replicas])

    def image(job: JobSpec) -> str | None:
        images = Images.model_validate(job.recipe_tree["images"])
        return images.located(images.generation) if is_generation and images.generation else job.image

    def pod_needs(job: JobSpec) -> PodNeeds:
        return workers.pod_needs(job)._replace(is_privileged=is_generation)

    return workers._replace(
        name=WORKERS if program.section == PPO_TRAIN else program.name,
        nodes=nodes,
        pod_needs=pod_needs,
        component=Component(program.name, config, image, is_service=is_generation),
    )
