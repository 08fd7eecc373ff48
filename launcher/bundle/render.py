"""A planned job to a bundle: text from templates, then parsed back; nothing edits it afterwards. Pure."""

import hashlib
import json
from pathlib import Path

from launcher.bundle.manifest import MANIFEST, bundle_digest
from launcher.checkpointing import access
from launcher.common import yaml_io
from launcher.common.names import BASE_CONFIG, CONFIG_DIR, config_name
from launcher.common.problems import shown
from launcher.model.backend import Backend
from launcher.model.context import LaunchContext
from launcher.model.family_registry import interface
from launcher.model.job_spec import Bundle, JobSpec
from launcher.model.sources import sources_of
from launcher.planning import plan_report


def render_bundle(job: JobSpec, context: LaunchContext, backend: Backend) -> Bundle:
    """Put together every file of a job's bundle.

    Returns:
        The bundle, its files in the order of their names, `bundle.json` last.
    """
    configs = config_files(job)
    files = {
        "recipe.yaml": yaml_io.dump(job.config),
        **{f"{CONFIG_DIR}/{name}": text for name, text in configs.items()},
        "plan.json": json.dumps(plan_report.plan_json(job), indent=2) + "\n",
        "plan.md": plan_report.plan_markdown(job),
        **access.files(job),
        **backend.render(job, configs),
    }
    hashes = {path: hashlib.sha256(files[path].encode()).hexdigest() for path in sorted(files)}
    digest = bundle_digest(hashes)
    manifest = {
        "job_name": job.name,
        "backend": job.backend,
        "recipe": job.recipe,
        "trainer": job.trainer,
        "rehearsal": job.is_rehearsal,
        "overrides": [shown(text) for text in job.overrides],
        "created": context.created,
        "user": context.user,
        "git_revision": context.git_revision(),
        "versions": dict(context.versions),
        "digest": digest,
        "files": hashes,
    }
    files = {path: files[path] for path in sorted(files)} | {MANIFEST: json.dumps(manifest, indent=2) + "\n"}
    return Bundle(job.name, directory(job), files, digest, job.config, sources_of(job))


def directory(job: JobSpec) -> Path:
    """Return the directory that a job's bundle is written to."""
    return job.base_results_dir / job.name


def config_files(job: JobSpec) -> dict[str, str]:
    """Return the configurations the container reads: the initial size's under the base name, then one per size.

    A job of several programs has one for each.

    Source: file names as the published image looks them up.
    """
    first = next(point for point in job.scales if point.nodes == job.initial_nodes)
    family = interface(job)
    own = {role.config_file: role.component.config(first.config) for role in family.components if role.component}
    trees = (own or {BASE_CONFIG: family.config(first)}) | dict(family.own_configs(first))
    files = {name: yaml_io.dump(tree) for name, tree in trees.items()}
    if job.elastic:
        files |= {config_name(point.nodes): yaml_io.dump(family.config(point)) for point in job.scales}
    return files
