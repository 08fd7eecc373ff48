"""A job's variables reach its processes under any name, and change neither the scripts nor the node's programs."""

import re
import subprocess
import sys

import pytest
from conftest import LLAMA, ROOT, rendered

from launcher.common.syntax import SET_BY_BASH
from launcher.common.templating import render_template

SCRIPT = ("recipes=training/custom/script", "training_cfg.entry_script=/a.py", "training_cfg.run.ntasks_per_node=8")
TINY = ("recipes=training/tiny/tiny_lm_cpu", "recipes.trainer.devices=1", "++recipes.scale_config=auto")
SLURM = (*SCRIPT, "cluster=slurm", "env_vars.TOKEN={env: MINE}")
RUNTIMES = {
    "none": (),
    "pyxis": ("container=/fsx/i.sqsh",),
    "docker": ("container=a/b:1",),
    "apptainer": ("container=/fsx/i.sif", "cluster.container_runtime=apptainer"),
    "charliecloud": ("container=/fsx/i", "cluster.container_runtime=charliecloud"),
}
ELASTIC = (*TINY, "cluster=slurm", "instance_type=m5.2xlarge", "env_vars.TOKEN={env: MINE}")
LOCAL = (*TINY, "cluster=local", "env_vars.TOKEN={env: MINE}")
JOBS = {
    **{runtime: ((*SLURM, *words), "slurm/node.sh", ()) for runtime, words in RUNTIMES.items()},
    "elastic": (ELASTIC, "slurm/agent.sh", ("0", "127.0.0.1", "9")),
    "elastic warm": (ELASTIC, "slurm/agent.sh", ("warm", "a-socket")),
    "local": (LOCAL, "run.sh", ("0", "9")),
    "local warm": (LOCAL, "run.sh", ("warm", "a-socket")),
}
OF_BASH = ("IFS", "PWD", "OLDPWD", "PS4", "REPLY", "MAPFILE", "HOSTNAME", "SHELL")
OF_NODES = ("HOME", "TMPDIR", "LD_PRELOADED", "PYTHONHOMES", "DOCKER_HOST", "RECIPES_PORT", "SLURM_NODEID", "NNODES")
CONTAINER = f"""#!{sys.executable}
import os, sys
words = sys.argv[1:]
if os.environ.get("HOME") != "/home/me" or "DOCKER_HOST" in os.environ:
    sys.exit("the environment of the node's own program has changed")
names = [words[i + 1] for i, word in enumerate(words) if word == "--env"]
if "docker" in sys.argv[0]:
    if words[0] != "run":
        sys.exit(0)
    given = {{name: os.environ[name] for name in names}}
    os.environ.clear()
    os.environ.update(given, PATH="{{folder}}:/usr/bin:/bin", PYTHONPATH="/image")
own = words[words.index("-euo") :] if "-euo" in words else sys.exit(0)
os.execv("/bin/bash", ["bash", *own])
"""


def assigned(files):
    """Return every name of a variable that the scripts of a job assign for themselves."""
    texts = [text for name, text in files.items() if name.endswith(".sh") and "variables" not in name]
    found = re.findall(r"\b([a-z_]+)\+?=|\bread -r ([a-z_]+)", "\n".join(texts))
    return {name for names in found for name in names if name} | {"command", "name", "python", "node"}


def started(folder, words, script, values, arguments):
    """Render a job and run the script of a node with made-up programs; return the environment of the agent."""
    texts = {f"env_vars.{name}={value}" for name, value in values.items()}
    for path, text in rendered(folder, *words, *texts).files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    tools = folder / "tools"
    tools.mkdir()
    programs = {"python3": f"#!/bin/bash\n/usr/bin/env -0 > '{folder}/found'\n", "scontrol": "#!/bin/sh\n"}
    programs |= dict.fromkeys(("docker", "apptainer", "ch-run"), CONTAINER.replace("{folder}", str(tools)))
    for name, text in programs.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "1"}
    nodes = {"SLURM_STEP_NODELIST": "n1", "SLURM_JOB_NODELIST": "n1", "RECIPES_PORT": "12000", "MINE": "secret"}
    places = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": "/home/me", "RECIPES_PYTHONPATH": "/launcher"}
    given = {**slurm, **nodes, **places}
    done = subprocess.run(("bash", folder / script, *arguments), env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pairs = (each.partition("=")[::2] for each in (folder / "found").read_text().split("\0"))
    return dict(pairs)


@pytest.mark.parametrize("kind", JOBS)
def test_variables_reach_the_processes_under_any_name(tmp_path, kind):
    words, script, arguments = JOBS[kind]
    names = {*assigned(rendered(tmp_path, *words).files), *OF_BASH, *OF_NODES} - SET_BY_BASH
    assert {"port", "bundle"} <= names
    values = {name: f"mine-{name}" for name in names} | {"PATH": f"/mine:{tmp_path}/tools:/usr/bin:/bin"}
    found = started(tmp_path, words, script, {**values, "PYTHONPATH": "/mine"}, arguments or (str(tmp_path), "7"))
    # the made-up python is a script of bash, which replaces these
    kept = {name: value for name, value in values.items() if name not in ("IFS", "PWD", "OLDPWD", "PS4")}
    assert {name: found.get(name) for name in kept} == kept
    assert found["TOKEN"] == "secret"
    behind = {"docker": ":/image", "none": ":/launcher", "elastic": ":/launcher", "elastic warm": ":/launcher"}
    assert found["PYTHONPATH"] == f"/mine{behind.get(kind, '')}"


def test_commands_before_and_after_the_program_have_the_variables_too(tmp_path):
    commands = (f"++recipes.{kind}_script=['echo $port >> {tmp_path}/{kind}']" for kind in ("pre", "post"))
    own = (
        f"recipes={LLAMA}",
        "cluster=slurm",
        "instance_type=ml.p5.48xlarge",
        "cluster.trainer=open",
        "container=null",
    )
    started(tmp_path, (*own, "rehearse=true", *commands), "slurm/node.sh", {"port": 8080}, (str(tmp_path), "7"))
    assert [(tmp_path / kind).read_text() for kind in ("pre", "post")] == ["8080\n", "8080\n"]


def test_a_secret_is_that_of_its_source_though_another_variable_has_its_name():
    text = render_template("shell/variables.sh.j2", env={"D": "plain"}, secrets={"A": "B", "B": "A", "C": "D"})
    given = {"A": "a", "B": "b", "D": "d", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(("bash", "-euc", f"{text}\necho $A $B $C $D"), env=given, capture_output=True, text=True)
    assert done.stdout == "b a d plain\n", done.stderr


@pytest.mark.parametrize("name", sorted(SET_BY_BASH))
def test_names_that_are_refused_would_not_reach_a_program(name):
    line = f"[[ a =~ a ]]; : | :\nexport {name}=mine-1; : | :\nexec env"
    done = subprocess.run(("bash", "-euc", line), env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert f"{name}=mine-1" not in done.stdout.splitlines()


@pytest.mark.parametrize("template", ["ray/node.sh.j2", "sagemaker/start.sh.j2", "kubernetes/entrypoint.sh.j2"])
def test_scripts_that_start_with_the_variables_set_none_of_them(template):
    text = (ROOT / "templates" / template).read_text()
    words = re.findall(r"(?m)^\s*((?:[a-z_]+\+?=\S+ ?)+)|^\s*for ([a-z_]+) in|read -r ([a-z_ ]+)", text)
    found = {name.partition("=")[0].strip("+") for group in words for name in " ".join(group).split()}
    later = {"missed", "found", "_", "group"}  # local, or no program starts later
    assert found and {name for name in found - later if not name.startswith("recipes_")} == set()
