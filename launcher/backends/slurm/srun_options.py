"""The options of srun that `cluster.srun_args` may add to the steps of a job.

Source: srun(1), Slurm 22.05 to 24.11; pyxis, args.c.
"""

from collections.abc import Iterator, Sequence

_SETS, _RUNS = "the launcher sets it", "the step would not run the job's program on its nodes"
_REFUSED = {
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node", "input", "overlap", "job-name"), _SETS),
    **dict.fromkeys(("nodelist", "nodefile", "exclude", "relative", "clusters", "jobid", "no-allocate"), _RUNS),
    **dict.fromkeys(("multi-prog", "test-only", "help", "usage", "version", "het-group", "pty"), _RUNS),
    **dict.fromkeys(("output", "error"), "the launcher reads the step's log where it is"),
    **dict.fromkeys(("container-mount-home", "container-readonly"), _SETS),
    "container-image": "its key is container",
    "auto-resume": "its key is cluster.auto_resume",
    "export": "processes need all variables: --export=ALL,NAME=value, or env_vars",
}
"""Options that would undo what the launcher's steps need, and why."""
_VALUED = (
    *("accel-bind", "account", "acctg-freq", "bb", "bbf", "bcast-exclude", "begin", "chdir", "cluster-constraint"),
    *("comment", "constraint", "container", "container-env", "container-mounts", "container-name", "container-save"),
    *("container-workdir", "core-spec", "cores-per-socket", "cpu-bind", "cpu-freq", "cpus-per-gpu", "cpus-per-task"),
    *("deadline", "delay-boot", "dependency", "distribution", "epilog", "extra-node-info", "gid", "gpu-bind"),
    *("gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint"),
    *("licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus"),
    *("mpi", "msg-timeout", "network", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-socket", "open-mode"),
    *("partition", "power", "prefer", "priority", "profile", "prolog", "qos", "reservation", "signal"),
    *("slurmd-debug", "sockets-per-node", "switches", "task-epilog", "task-prolog", "thread-spec", "threads"),
    *("threads-per-core", "time", "time-min", "tmp", "tres-bind", "tres-per-task", "uid", "wait", "wckey"),
)
"""Other options whose value may be the next word."""
_LETTERS = {
    **{"N": "nodes", "n": "ntasks", "i": "input", "J": "job-name", "w": "nodelist", "F": "nodefile", "x": "exclude"},
    **{"r": "relative", "M": "clusters", "Z": "no-allocate", "h": "help", "V": "version"},
    **{"o": "output", "e": "error"},
}
"""Short forms of refused options."""
_VALUED_LETTERS, _OPTIONAL_LETTERS = "AbBcCdDeFGiJLmMnNopqrStTwWx", "IkK"
"""Short options that take the rest of their word as their value; the first ones, or the next word."""


def refuse_undoing(words: list[str]) -> list[str]:
    """Return words for srun; a ValueError names those that would undo what the launcher sets."""
    if faults := list(_faults(words)):
        raise ValueError("; ".join(dict.fromkeys(faults)))
    return words


def _faults(words: Sequence[str]) -> Iterator[str]:
    before = ""  # an option whose value is the next word
    for word in words:
        if before:
            before = ""
        elif word in ("-", "--") or not word.startswith("-"):
            yield "a word that is not an option would replace the job's program: write values as --option=value"
        else:
            for name, value, takes_next in _options(word):
                before = name if takes_next else ""
                if name in _REFUSED and not (name == "export" and f"{value},".startswith("ALL,")):
                    yield f"--{name} is not for this key: {_REFUSED[name]}"
    if before and before not in _REFUSED:
        yield f"--{before} lacks its value"


def _options(word: str) -> Iterator[tuple[str, str, bool]]:
    """Yield each option of a word, its value there, and whether its value is the next word."""
    name, equals, value = word.removeprefix("--").partition("=")
    if word.startswith("--"):
        # The beginning of a name is enough for getopt_long.
        meant = name if name in _VALUED else next((own for own in _REFUSED if own.startswith(name)), name)
        yield meant, value, not equals and meant in (*_VALUED, *_REFUSED)
        return
    for place, letter in enumerate(word[1:], start=2):
        rest = word[place:]
        yield _LETTERS.get(letter, letter), rest, not rest and letter in _VALUED_LETTERS
        if letter in _VALUED_LETTERS + _OPTIONAL_LETTERS:
            return
