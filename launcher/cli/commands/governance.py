"""Commands for administrators, which write files: the objects of teams on a cluster, and an image's build context."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from launcher.api.files import write_build_context, write_new
from launcher.cli.commands.arguments import AsJson
from launcher.cli.output import print_json
from launcher.common import console, yaml_io
from launcher.common.problems import fail

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Write one file per subject there; with several teams, each in its own folder.",
        file_okay=False,
    ),
]
Cluster = Annotated[
    bool, typer.Option("--cluster", help="Read Kueue's version from the cluster, and compare shared objects with it.")
]
Context = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="With --cluster: a context of the kubeconfig.")
]


def governance(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE...", help="team, instance_type, nodes; see docs/governance.md."),
    ] = None,
    out: Out = None,
    cluster: Cluster = False,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Print the objects of a team. Namespace, quotas, roles, queue and priorities, for kubectl apply -f -.

    Each team= starts another team. Objects that teams share must be the same for all of them.
    """
    from launcher.api import teams

    if context and not cluster:
        raise fail("E801", "--context", "selects the cluster for --cluster", value=context, remedy="add --cluster")
    made = teams.objects(words or (), of_cluster=cluster, context=context, out=out)
    if as_json:
        items = [each for text in made.texts for each in yaml_io.load_documents(text)]
        print_json({"apiVersion": "v1", "kind": "List", "items": items})
    elif out is None:
        sys.stdout.write("---\n".join(made.texts))
    else:
        write_new(out, made.paths)
        for path, text in made.paths.items():
            kinds = [f"{each['kind']} {each['metadata']['name']}" for each in yaml_io.load_documents(text)]
            console.say(f"{console.shown_path((out / path).absolute())}   {', '.join(kinds)}")
    console.show_notice(*made.notices, stderr=True)


def container(
    base: Annotated[str, typer.Option("--base", metavar="IMAGE", help="Base image, with python3, pip and torch.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the build.", file_okay=False)],
) -> None:
    """Write the build context of an image. It adds the agent and this launcher's runtime to yours."""
    write_build_context(out, base)
    build = f"docker build --tag <registry>/<name>:<tag> {console.typed_path(out)}"
    console.say(f"{console.shown_path(out.absolute())}   next: {build}")
