"""The `recipes` command: its commands in order, and its exit codes. The commands are in `launcher.cli.commands`."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import click
import typer
from click.shell_completion import CompletionItem
from typer.core import TyperArgument, TyperCommand, TyperGroup

from launcher import identity
from launcher.cli.commands import (
    checkpoint,
    cluster,
    compiling,
    data,
    doctor,
    governance,
    inspect,
    job_list,
    jobs,
    page,
    pods,
    project,
    ranks,
    rehearsals,
    reproduce,
    sweeps,
)
from launcher.cli.commands.arguments import FLAGS
from launcher.cli.output import refused
from launcher.common import console, process, redaction
from launcher.common.interrupts import signals_as_interrupts
from launcher.common.problems import Problem, ProblemsFound
from launcher.common.suggestions import nearest, question

_COMPLETE = "_RECIPES_COMPLETE"
"""Environment variable by which a shell asks for completion."""

_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Recipes": {"list": inspect.list_, "show": inspect.show, "explain": inspect.explain, "diff": inspect.diff},
    "From a recipe to a job": {
        "check": compiling.check,
        "plan": compiling.plan,
        "ranks": ranks.ranks,
        "checkpoint": checkpoint.checkpoint,
        "data": data.data,
        "run": jobs.run,
        "render": compiling.render,
        "doctor": doctor.doctor,
        "rehearse": rehearsals.rehearse,
        "launch": jobs.launch,
        "rerun": reproduce.rerun,
        "new": compiling.new,
    },
    "Jobs": {
        "jobs": job_list.jobs,
        "jobs remove": job_list.remove,
        "status": jobs.status,
        "logs": jobs.logs,
        "events": jobs.events,
        "wait": jobs.wait,
        "scale": jobs.scale,
        "cancel": jobs.cancel,
        "timeline": jobs.timeline,
        "adopt": cluster.adopt,
        "sweep": sweeps.sweep,
        "ui": page.ui,
    },
    "Pods of a job": {"pods": pods.pods, "exec": pods.exec_, "port-forward": pods.port_forward},
    "Clusters and images": {
        "instances": cluster.instances,
        "cluster": cluster.cluster,
        "governance": governance.governance,
        "container": governance.container,
    },
    "The program itself": {
        "schema": project.schema,
        "rules": project.rules,
        "scripts": project.scripts,
        "docs": project.docs,
    },
}
"""Every command, under its heading in the help."""


class _Command(TyperCommand):
    """A command whose help shows its arguments by their metavars, without Python types."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click's parser does not know the command of an option without its value
            raise

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        arguments = [p.metavar or "" for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return ["[OPTIONS]", *arguments]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        params = self.get_params(ctx)
        # typer's arguments have a help, click's do not
        arguments = [
            (p.metavar or "", getattr(p, "help", None) or "") for p in params if isinstance(p, TyperArgument)
        ]
        options = [record for p in params if isinstance(p, click.Option) and (record := p.get_help_record(ctx))]
        for heading, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class _AllWords(_Command):
    """A command that gets its words unparsed, `--help` included."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["words"] = args
        return []

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a flag."""
        return [CompletionItem(flag) for flag in FLAGS if flag.startswith(incomplete)]


class _Grouped(TyperGroup):
    """Commands under headings, in the order of `_COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for commands in _COMMANDS.values() for name in commands if " " not in name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command of one word, or of two such as `jobs remove`."""
        if (name := " ".join(args[:2])) in self.commands and len(args) > 1:
            return name, self.commands[name], args[2:]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in _COMMANDS.items():
            with formatter.section(heading):
                limit = formatter.width - 6 - max(map(len, names))
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit)) for name in names])


app = typer.Typer(
    cls=_Grouped,
    add_completion=True,
    rich_markup_mode=None,  # boxes cost 0.2 s and disturb piped output
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        console.say(identity())
        raise typer.Exit


@app.callback()
def _recipes(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Compile training recipes into reviewable bundles, and launch them."""


for _commands in _COMMANDS.values():
    for _name, _function in _commands.items():
        _is_parsed = _function is not jobs.run
        app.command(_name, cls=_Command if _is_parsed else _AllWords, add_help_option=_is_parsed)(_function)


def run(words: Sequence[str]) -> int:
    """Run a command line; return the exit code. A user's mistake prints Problems and exits with 2."""
    redaction.install()
    with signals_as_interrupts() as signals:
        code = process.ended(lambda: _run(words))
    # typer answers every KeyboardInterrupt with 130.
    return 128 + signals[0] if signals and code == process.INTERRUPTED else code


@functools.cache
def _parser() -> Any:
    return typer.main.get_command(app)


def _run(words: Sequence[str]) -> int:
    command = _parser()
    if _COMPLETE in os.environ or any("completion" in word for word in words):
        from launcher.cli.commands import completion

        completion.register_bash()  # after typer's, which it replaces
    try:
        return command(list(words), prog_name="recipes", standalone_mode=False) or 0
    except (ProblemsFound, OSError) as error:
        return refused(error, "nothing was done")
    except click.UsageError as error:
        console.show_problems((_usage_problem(error),), "nothing was done")
        return process.USER_ERROR
    except SystemExit as stop:  # typer exits after a lost reader, and after completion
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None
        return stop.code if isinstance(stop.code, int) else 0


def _usage_problem(error: click.UsageError) -> Problem:
    """Return click's error about a command line as a Problem."""
    where = error.ctx.command_path if error.ctx else "recipes"
    near: list[str] = []
    message = error.format_message()
    if isinstance(error, click.NoSuchOption) and error.ctx:
        near, message = _suggestions(error.option_name, error.ctx.command.params), error.message
    return Problem(
        "E801",
        where,
        message[:1].lower() + message[1:].rstrip("."),
        allowed=error.ctx.get_usage().removeprefix("Usage: ") if error.ctx else None,
        remedy=question(near) or f"{where} --help",
    )


def _suggestions(option: str, params: Sequence[click.Parameter]) -> list[str]:
    """Return similar options, else the override that an option spells if the command takes overrides."""
    near = nearest(option, [name for param in params for name in param.opts])
    takes_overrides = any("[KEY=VALUE]" in (param.metavar or "") for param in params)
    if near or not takes_overrides:
        return near
    from launcher.api.flags import misspelt_keys

    return [problem.remedy for problem in misspelt_keys([option]) if problem.remedy]
