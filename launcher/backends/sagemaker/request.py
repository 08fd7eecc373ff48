"""CreateTrainingJob: a planned job as the request that starts it. Pure.

Source: Amazon SageMaker API 2017-07-24, CreateTrainingJob.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.backends.sagemaker import default_values, sections
from launcher.backends.sagemaker.default_values import DEFAULT_MAX_RUNTIME_S, RECIPE_DIR, START, Plan
from launcher.backends.sagemaker.keys import effective, given_jobs
from launcher.backends.sagemaker.training_options import SmJobs
from launcher.common import yaml_io
from launcher.common.names import CONFIG_DIR
from launcher.common.templating import render_template
from launcher.families import interface
from launcher.model.instances import canonical
from launcher.model.job_spec import JobSpec

REQUEST = "request.json"


def render(job: JobSpec, configs: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a job's bundle, path to text; the recipe's channel provides `configs`."""
    plan = of_job(job)
    start = {}
    if default_values.is_started(plan):
        program = interface(job.model_type, job.trainer).workers.program(job)
        start[START] = render_template("sagemaker/start.sh.j2", processes=plan.processes, program=program)
    request = build(plan, job.name, {**configs, **start})
    return {REQUEST: json.dumps(request, indent=2, ensure_ascii=False) + "\n", **start}


def build(plan: Plan, name: str, recipe: Mapping[str, str]) -> dict[str, Any]:
    """Return the request; `recipe` holds the files of the recipe's channel, file name to text."""
    jobs, channels = plan.jobs, default_values.channels(plan.jobs)
    if not default_values.is_serverless(jobs):  # which runs a recipe of AWS
        channels.append(default_values.recipe_channel(jobs, name, recipe))
    start = ["/bin/bash", f"{RECIPE_DIR}/{START}"]
    text = render_template(
        "sagemaker/request.yaml.j2",
        name=name,
        jobs=jobs,
        image=plan.image,
        entrypoint=start if default_values.is_started(plan) else jobs.container_entrypoint,
        channels=channels,
        placement=sections.api(jobs.placement),
        is_serverless=default_values.is_serverless(jobs),
        hyperparameters=default_values.hyperparameters(plan),
        environment=default_values.environment(plan),
        groups=[(group, canonical(group.instance_type)) for group in default_values.groups(jobs)],
        instance_type=plan.instance_type,
        nodes=plan.nodes,
        max_runtime_s=jobs.stopping_condition.max_runtime_s or DEFAULT_MAX_RUNTIME_S,
    )
    request: dict[str, Any] = yaml_io.load(text) | dict(members(jobs))
    return request


def of_job(job: JobSpec) -> Plan:
    """Return the inputs of a planned job's request."""
    family = interface(job.model_type, job.trainer)
    return Plan(
        effective(given_jobs(job)),
        job.config,
        family.entry,
        job.initial_nodes,
        job.nproc_per_node,
        job.resources.instance_type or "",
        job.image,
        family.workers.env(job),
    )


def recipe_files(files: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a bundle's recipe channel, file name to text."""
    configs = {
        path.removeprefix(f"{CONFIG_DIR}/"): text for path, text in files.items() if path.startswith(CONFIG_DIR)
    }
    return configs | ({START: files[START]} if START in files else {})


def members(jobs: SmJobs) -> Iterator[tuple[str, Any]]:
    """Yield the request's members that come from sections and switches, except those of ResourceConfig."""
    for name, section in (
        ("DebugHookConfig", jobs.debugger),
        ("ProfilerConfig", jobs.profiler),
        ("ExperimentConfig", jobs.experiment),
        ("ModelPackageConfig", jobs.model_package),
        ("ServerlessJobConfig", jobs.serverless),
    ):
        if value := sections.api(section, without={"rules"}):
            yield name, value
    for name, rules in (
        ("DebugRuleConfigurations", jobs.debugger.rules),
        ("ProfilerRuleConfigurations", jobs.profiler.rules),
    ):
        if rules:
            yield name, [sections.api(rule) for rule in rules]
    for name, switch, is_on in (
        ("RemoteDebugConfig", "EnableRemoteDebug", jobs.remote_debug),
        ("InfraCheckConfig", "EnableInfraCheck", jobs.infra_check),
        ("SessionChainingConfig", "EnableSessionTagChaining", jobs.session_tag_chaining),
    ):
        if is_on is not None:
            yield name, {switch: is_on}
