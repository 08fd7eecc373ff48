"""A compiled recipe as a value: its typed recipe, sizes, files and cost; and the functions that make one."""

import contextlib
import html
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import pipeline
from launcher.api import arguments, comparing, naming, values
from launcher.api import session as sessions
from launcher.api.composed import Composed, Value
from launcher.api.session import Session
from launcher.api.tables import Table, html_table
from launcher.bundle import store
from launcher.bundle.render import directory
from launcher.common.problems import Notice, Problem, ProblemsFound, gathering, raise_any
from launcher.common.texts import counted
from launcher.config.compose import compose
from launcher.model.backend_registry import described
from launcher.model.checked_recipe import Family, recipe_of
from launcher.model.context import LaunchContext, random_suffix
from launcher.model.job_spec import Bundle, JobSpec
from launcher.planning import plan_report

if TYPE_CHECKING:
    from launcher.api.job import Job
    from launcher.job_store.costs import Cost, Given, Priced
    from launcher.model.finding import Finding
    from launcher.model.recipe import RecipeBase

_SUBMITTED = ("request.json", "ray/request.json", "slurm/job.sh", "run.sh")
"""The file of a bundle that a cluster without manifests gets: a request of its API, a batch script, a script here."""


@arguments.checked()
@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """A recipe with overrides, compiled for a cluster.

    Args:
        recipe: Its path under `recipes/`, or its file.
        overrides: As on a command line; they compile to this plan again.
        problems: Every fault in what was given. With faults, only `overrides`, `explain` and this are available.
    """

    recipe: str
    overrides: tuple[str, ...]
    problems: tuple[Problem, ...]
    context: LaunchContext
    session: Session
    _prepared: pipeline.Prepared | None

    @property
    def prepared(self) -> pipeline.Prepared:
        """The typed recipe and its planned job.

        Raises:
            ProblemsFound: The plan has faults.
        """
        if self._prepared is None:
            raise ProblemsFound(self.problems)
        return self._prepared

    @property
    def job(self) -> JobSpec:
        """The planned job."""
        return self.prepared.job

    @property
    def config(self) -> "RecipeBase":
        """The typed recipe, as its family declares it."""
        return self.prepared.checked.recipe

    def config_as(self, family: type[Family]) -> Family:
        """Return the typed recipe as one family declares it, whose keys an editor and a type checker know.

        Args:
            family: Its class, such as `launcher.families.tiny_lm.Recipe`.

        Raises:
            TypeError: The recipe is of another family.
        """
        return recipe_of(self.prepared.checked, family)

    def at(self, nodes: int) -> "RecipeBase":
        """Return the typed recipe at one size.

        Raises:
            ProblemsFound: The plan has no such size (E803).
        """
        sizes = {size.nodes: size.recipe for size in self.prepared.checked.sizes}
        nodes = arguments.number_of(nodes, "E803", "nodes")
        naming.Target(self.recipe, nodes).among(list(sizes))
        return sizes[nodes]

    @property
    def notices(self) -> tuple[Notice, ...]:
        """What the user should know of a valid job."""
        return self.job.notices

    @property
    def sizes(self) -> Table:
        """Every size the job may take; the keys are those of `scales` in `recipes plan --json`."""
        return Table(self.as_json["scales"])

    @cached_property
    def bundle(self) -> Bundle:
        """The bundle that `write` puts on disk. Its MLflow run is opened by a launch."""
        with self.session.active():
            return pipeline.render(pipeline.postponed(self.job, self.context), self.context)

    @property
    def files(self) -> Mapping[str, str]:
        """Relative path to text of every file of the bundle."""
        return dict(self.bundle.files)

    @property
    def as_json(self) -> dict[str, Any]:
        """The plan as plain data, as `recipes plan --json` prints it."""
        return plan_report.plan_json(self.job)

    def draw(self, path: Path | str) -> None:
        """Draw the sizes as .png or .svg."""
        from launcher.planning import plan_picture

        plan_picture.draw(self.job, Path(arguments.text_of(path, "E709", "path")))

    def manifests(self) -> tuple[str, ...]:
        """Return the texts that its cluster takes, such as `kubectl apply -f -`; the request or script elsewhere.

        Manifests may be applied, so their MLflow run is reserved.

        Raises:
            ProblemsFound: The tracking store or the disk refuses.
        """
        job = self.job
        with self.session.active():
            if described(job.backend).files.has_containers:
                job = pipeline.track(job, self.context, is_visible=True)
            files = pipeline.render(job, self.context).files
        found = tuple(text for path, text in files.items() if path.startswith("manifests/"))
        return found or tuple(files[name] for name in _SUBMITTED if name in files)

    def cost(self, prices: "Given" = None, hours: float | None = None) -> "tuple[Cost, ...]":
        """Return the cost at each size.

        Args:
            prices: Price per hour of each instance type, or a file of them; None for the dated ones.
            hours: Duration; None for the time limit of a training job.

        Raises:
            ProblemsFound: A price is missing or invalid, or the job has no instances that are billed (E806).
        """
        from launcher.job_store import costs

        with arguments.as_arguments():
            return costs.costs(self.job, costs.known_prices(self.job, prices), hours)

    def priced(self, prices: "Given" = None, hours: float | None = None) -> "Priced":
        """Return `cost` for people and programs, as far as prices are known, with their origin."""
        from launcher.job_store import costs

        return costs.priced(self.job, prices, hours)

    def price_notices(self, prices: "Given") -> tuple[Notice, ...]:
        """Return a notice of the given prices whose instance types are unknown."""
        from launcher.job_store import costs

        return costs.price_notices(self.job, prices)

    def diff(self, other: "Plan") -> tuple[str, ...]:
        """Return how another plan's configuration differs, one line `- key: value` or `+ key: value` each.

        The name of each job reads `<job>`, since many values are made of it.
        """
        other = arguments.of_type(Plan, other, "E001", "other", "a plan")
        sides = (comparing.of_tree(plan.recipe, plan.job.config, plan.job.name) for plan in (self, other))
        return tuple(comparing.lines(*sides))

    def explain(self, key: str) -> Mapping[str, tuple[Value, ...]]:
        """Return for each leaf that a key names its value at every size, and who set it.

        Raises:
            ProblemsFound: The configuration has no such key (E101), or cannot be composed.
        """
        with self.session.active():
            composition = compose(self._stated, self.context.cwd, cache=self.session.cache)
            return Composed(naming.Target(self.recipe, None), composition).explain(key)

    def doctor(
        self, deadline_s: float = 30.0, show: Callable[[int, int], None] = lambda done, total: None
    ) -> "tuple[Finding, ...]":
        """Return what is found where the job would run: at least one finding for each subject. Creates nothing.

        A `failure` means that the job would be refused, would never start, or would fail; `unknown` that the
        question has no answer. A plan with faults has them as findings.

        Args:
            deadline_s: Time limit of all questions together, in seconds.
            show: Called with the number of answered questions, and of all, while it waits.
        """
        from launcher.doctor.examination import examine
        from launcher.model.finding import found

        with self.session.active():
            if not self.overrides:  # not even its name is known
                return tuple(found("recipe", problem) for problem in self.problems)
            return tuple(examine(self.overrides, self.context, self.session.cache, deadline_s, show))

    def write(self, folder: Path | str | None = None) -> Path:
        """Write the bundle, which `recipes launch` and `submit` take; return its folder.

        Args:
            folder: The results folder that receives it; None for the plan's.

        Raises:
            ProblemsFound: It exists already (E701), or the disk refuses.
        """
        from launcher.api import knobs, running
        from launcher.api.observing import Observer

        made = self
        if folder is not None:
            place = arguments.text_of(folder, "E702", "folder")
            made = self.with_overrides({"base_results_dir": knobs.literal(place)})
        bundle, *_ = running.write(made.job, made.context, Observer(), is_launched=False)
        return bundle.directory

    def with_overrides(self, overrides: values.Overrides) -> "Plan":
        """Return this recipe compiled with further overrides, for a job of the same name."""
        return self._further(overrides, self.context)

    def trial(self, overrides: values.Overrides) -> "Plan":
        """Return this recipe compiled with further overrides, for a job of another name."""
        context = self.context._replace(suffix=random_suffix(), created=self.session.context().created)
        return self._further(overrides, context)

    def _further(self, overrides: values.Overrides, context: LaunchContext) -> "Plan":
        words = (*self._stated, *values.words(overrides))
        return _compiled(self.recipe, words, context, self.session, True)

    @property
    def _stated(self) -> tuple[str, ...]:
        """The overrides; without them, a plan whose recipe or values cannot be stated would be that of no recipe."""
        if self.problems and not self.overrides:
            raise ProblemsFound(self.problems)
        return self.overrides

    def submit(self, name: str | None = None, *, detach: bool = True) -> "Job":
        """Write the bundle, launch its job and return it.

        Args:
            name: A name for the job, which commands accept.
            detach: Whether a job on this machine outlives this process; elsewhere jobs always do.

        Raises:
            ProblemsFound: The plan has faults, its own keys say that it is only written (E726), or the disk, the
                tracking store or the cluster refuses.
        """
        from launcher.api import job, running
        from launcher.api.observing import Observer
        from launcher.job_store import job_names

        running.refuse_only_written(self.job)
        problems: list[Problem] = []
        with gathering(problems):
            store.refuse_unwritable(directory(self.job))
        with gathering(problems), arguments.as_arguments():
            raise_any(job_names.problems(name, self.job.base_results_dir))
        raise_any(problems)
        with self.session.active():
            bundle, *_ = running.write(self.job, self.context, Observer(), is_launched=True)
        return job.launched(bundle.directory, name=name, detach=detach, session=self.session)

    def __repr__(self) -> str:
        if self.problems:
            return f"<Plan of {self.recipe!r} with {counted(len(self.problems), 'fault')}>"
        return f"<Plan {self.job.name}: {self.job.recipe}, {plan_report.kind(self.job)}>"

    def _repr_html_(self) -> str:
        if self.problems:
            return ProblemsFound(self.problems)._repr_html_()
        title = f"{self.job.name}   {plan_report.kind(self.job)}"
        notices = "".join(f"<li>{html.escape(str(notice))}</li>" for notice in self.notices)
        return (
            f"<p><b>{html.escape(title)}</b></p>{html_table(*plan_report.table(self.job, in_full=True))}"
            f"<p>{html.escape(plan_report.summary(self.job))}</p>{self._picture()}"
            + (f"<ul>{notices}</ul>" if notices else "")
        )

    def _picture(self) -> str:
        """Return the plan's picture as SVG; none for one size, or without matplotlib."""
        if len(self.job.scales) < 2:
            return ""
        from launcher.planning import plan_picture

        with contextlib.suppress(ProblemsFound):
            return plan_picture.svg(self.job)
        return ""


def compile(
    recipe: str | os.PathLike[str],
    overrides: values.Overrides = (),
    *,
    cluster: str | None = None,
    elastic: bool | None = None,
    strict: bool = True,
    session: Session | None = None,
) -> Plan:
    """Compose a recipe with overrides, check it and plan every size. Nothing is written, and no cluster is asked.

    Args:
        recipe: Its path under `recipes/`, its last word, or a YAML file.
        overrides: Values by their keys, from `recipes` or the top level; or words in Hydra's grammar, as on the
            command line.
        cluster: Where the job runs, as `cluster=`.
        elastic: Whether the job may change its size; None leaves that to the recipe.
        strict: Whether faults raise; if not, the plan has them as `problems`.
        session: Folder, user, clock and names; None for those of this process.

    Raises:
        ProblemsFound: Every fault in what was given.
    """
    session, strict = sessions.given(session), arguments.of_type(bool, strict, "E001", "strict", "True or False")
    further: dict[str, Any] = {} if cluster is None else {"cluster": cluster}
    if elastic is not None:
        further["recipes.elastic_policy.is_elastic"] = elastic
    name = ""
    try:
        name = naming.text_of(recipe)
        words, unstated = values.read(overrides)
        chosen = naming.choose(name, [*words, *values.words(further)])
        if unstated:  # other faults are reported with them
            found = _compiled(name, chosen, session.context(), session, strict=False)
            raise ProblemsFound((*unstated, *found.problems))
    except ProblemsFound as error:
        if strict:
            raise
        return Plan(name, (), error.problems, session.context(), session, None)
    return _compiled(name, chosen, session.context(), session, strict)


def of_words(words: Sequence[str], session: Session) -> Plan:
    """Return the plan of a command line, also if it has faults, such as a value that only its trials have."""
    return _compiled("", words, session.context(), session, strict=False)


def _compiled(recipe: str, words: Sequence[str], context: LaunchContext, session: Session, strict: bool) -> Plan:
    prepared: pipeline.Prepared | None = None
    problems: tuple[Problem, ...] = ()
    try:
        with session.active():
            prepared = pipeline.prepared(words, context, session.cache)
    except ProblemsFound as error:
        if strict:
            raise
        problems = error.problems
    return Plan(recipe, tuple(words), problems, context, session, prepared)
