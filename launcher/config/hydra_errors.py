"""The chosen files composed, or why they cannot be: Hydra's refusals in the user's terms, and faulty `defaults`."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from hydra.errors import MissingConfigException

from launcher.common import yaml_io
from launcher.common.paths import COLLECTION
from launcher.common.problems import Problem, ProblemsFound, fail, first_line
from launcher.common.suggestions import nearest, question
from launcher.config import hydra_compose
from launcher.config.collection import ALL_RECIPES, GROUPS, SCHEME, clusters
from launcher.config.files import Choices, FileCache, Files, shown_path
from launcher.config.hydra_compose import MOST_FILES, NEIGHBOURS, RecipeFiles, TooManyFiles, UserRecipe
from launcher.config.overrides import REMEDY_SYNTAX

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
_IN_FILE = r"In '?(?P<config>[^':]+)'?: (?P<message>.*)"
_NOT_OVERRIDDEN = r"(?:Could not override|Override) '([^'@: ]+)"
_NOT_REFERRED = r"Error resolving interpolation '([^']+)'"
"""Beginnings of Hydra's refusals of an entry of `defaults`, with the group or the reference in it."""
_KEYWORDS = ("optional ", "override ")
_SELF = "_self_"
_HERE = "_here_"
_PACKAGE = rf"(_global_|_group_|_name_|{_HERE}|(?!_\w+_(\.|$))[\w-]+)(\.[\w-]+)*"
"""Where the keys of a default belong. Source: Hydra, Packages."""


def compose_files(choices: Choices, cache: FileCache) -> Files:
    """Compose the chosen files.

    Raises:
        ProblemsFound: A choice or a default that does not exist, or a file that is not YAML.
    """
    try:
        files = hydra_compose.compose_files(choices, cache)
    except (TooManyFiles, *hydra_compose.REFUSALS) as error:
        raise _refused(error, choices) from error
    if files.cluster not in clusters():  # a folder of the user's may have others
        raise _unknown_choice("cluster", files.cluster, choices.search)
    if "recipes" not in files.tree:
        message = "has no keys: its file's # @package line puts them in another place"
        file = next(str(layer.file) for layer in reversed(files.layers) if layer.config.startswith("recipes/"))
        raise fail("E005", "recipes", message, remedy="leave out that line", where=file)
    if problems := tuple(problem for layer in files.layers for problem in _unplaced(layer.config, layer.file)):
        raise ProblemsFound(problems)
    return files


def _refused(error: Exception, choices: Choices) -> ProblemsFound:
    """Return why Hydra refused: a choice that does not exist, or faulty `defaults` behind one that does."""
    missing = error.missing_cfg_file or "" if isinstance(error, MissingConfigException) else ""
    chosen = [_group_and_option(word) for word in choices.words]
    unknown: list[Problem] = []
    for group, option in chosen:
        is_absent = group in GROUPS and _find(f"{group}/{option}", choices.search) is None
        if missing == f"{group}/{option}" or is_absent:
            unknown += _unknown_choice(group, option, choices.search).problems
    if unknown:
        return ProblemsFound(tuple(unknown))
    if problems := tuple(p for group, option in chosen for p in _faults(group, option, choices.search)):
        return ProblemsFound(problems)
    if isinstance(error, TooManyFiles):
        return fail("E005", "defaults", f"name more than {MOST_FILES} files", value=str(error))
    message = first_line(error)
    if absent := _NOT_CHOSEN.match(message):
        return fail("E003", absent[1], "no file of this group is chosen yet", remedy=f"+{absent[1]}=… adds one")
    place = re.match(_IN_FILE, message)
    message = place["message"] if place else message
    for group, option in chosen:
        for entry, _ in _inherited(f"{group}/{option}", choices.search):
            if problem := _refused_entry(entry, message):
                return ProblemsFound((problem,))
    if place and (file := _find(place["config"], choices.search)):
        return fail("E005", "defaults", message, where=str(file))
    return fail("E003", " ".join(choices.words), message, remedy=REMEDY_SYNTAX)


def _refused_entry(entry: "_Entry", message: str) -> Problem | None:
    """Return the Problem of an entry of `defaults` if Hydra's message is about that one."""
    group, _, option = (entry.config or "").rpartition("/")
    absent, reference = re.match(_NOT_OVERRIDDEN, message), re.match(_NOT_REFERRED, message)
    if absent and entry.is_override and absent[1] == group:
        message = "overrides a choice that no list of defaults makes"
        remedy = f"leave out override: {entry.written.removeprefix('override ')}"
        if group in GROUPS:
            remedy = f"leave it out, and launch with {group}={option}"
        return Problem("E005", "defaults", message, value=entry.written, remedy=remedy, where=entry.place)
    if reference and reference[1] in entry.written:
        message = f"refers to {reference[1]}, which is not the choice of a group of files"
        return Problem("E005", "defaults", message, value=entry.written, remedy="name the file", where=entry.place)
    return None


def _group_and_option(word: str) -> tuple[str, str]:
    """Return the group of files that an override chooses from, without its package, and the file's name."""
    key, _, option = word.lstrip("+").partition("=")
    return key.partition("@")[0], option.strip("'\"")


def _unknown_choice(group: str, name: str, search: Sequence[str]) -> ProblemsFound:
    """Return the Problem of a name that no file of a group has; all names of it are listed unless there are many."""
    inside = [config for config in known_configs(search) if config.startswith(f"{group}/")]
    known = clusters() if group == "cluster" else [config.removeprefix(f"{group}/") for config in inside]
    is_recipe = group == "recipes"
    listing = _from_list(name, known) if is_recipe else None
    remedy = listing or _near(group, name, known) or (ALL_RECIPES if is_recipe else None)
    what = group.removesuffix("s") if group in GROUPS else "file of this group"
    message, allowed = f"there is no {what} of that name", None if is_recipe else ", ".join(known)
    if group == "cluster" and _find(f"{group}/{name}", search):
        message = "is a file of your own: launches choose from the clusters of the launcher"
        remedy = "one of these; your keys below `cluster:` in a file that your recipe's defaults name with @_global_"
    return fail("E005", group, message, value=name, allowed=allowed, remedy=remedy)


def _near(group: str, name: str, known: Sequence[str]) -> str | None:
    if group == "cluster" and (cluster := _CLUSTER_NAMED.get(name.lower())) in known:
        return question([f"cluster={cluster}"])
    near = nearest(name, known, cutoff=0.5) or ([] if name else known)
    if group == "cluster" and not near:  # a slip in another name of one
        words = nearest(name, list(_CLUSTER_NAMED), count=1)
        near = [_CLUSTER_NAMED[word] for word in words if _CLUSTER_NAMED[word] in known]
    return question([f"{group}={n}" for n in near[:_MOST_NEAR]])


def _from_list(name: str, known: Sequence[str]) -> str | None:
    """Return the listing to choose from where a name of a recipe is absent, or a part of many names."""
    count = sum(name.lower() in other.lower() for other in known)
    if not name:
        return ALL_RECIPES
    if count <= _MOST_NEAR or not re.fullmatch(r"[\w./-]+", name):
        return None
    return f"recipes list {name} shows the {count} recipes with this in their names"


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of a defaults list.

    Args:
        config: The config it names, a path under the collection or the search path; None where it names none.
        base: Folder from which that config's own entries are looked up.
        written: As it is written.
        place: `file:line:column`.
        package: What follows the `@`; empty if nothing does.
        is_optional: Whether it may be absent.
        is_override: Whether it replaces what another list of defaults chooses.
    """

    config: str | None
    base: str
    written: str
    place: str
    package: str = ""
    is_optional: bool = False
    is_override: bool = False


def _faults(group: str, option: str, search: Sequence[str]) -> tuple[Problem, ...]:
    """Return every fault in the defaults of a choice and of all that it is made of.

    Args:
        group: What is chosen: `recipes` or `cluster`.
        option: The choice.
        search: Where Hydra looks beside the collection.

    Returns:
        A Problem for each invalid entry, and for each that names no file or leads back to a file it came from.
    """
    start = _find(f"{group}/{option}", search)
    return tuple(_walk(start, group, search, (), set())) if start else ()


def _unplaced(config: str, file: Path) -> Iterator[Problem]:
    """Yield a Problem for each default of a user's recipe that does not name where in the recipe its keys belong.

    Hydra would put them under the name of their own folder, or of the package, where nothing reads them.
    """
    is_own = config.startswith("recipes/") and not file.is_relative_to(COLLECTION)
    for entry in _entries(file, "recipes") if is_own else ():
        if entry.config and not re.fullmatch(_PACKAGE, entry.package):
            message = "a default of a recipe must name where its keys belong"
            if entry.package:
                message = f"@{entry.package} is not a place in a recipe"
            name, _, option = entry.written.partition(": ")
            remedy = f"{name.partition('@')[0]}@{_HERE}" + (f": {option}" if option else "")
            yield Problem("E005", "defaults", message, value=entry.written, remedy=remedy, where=entry.place)


def after_self(config: str, search: Sequence[str]) -> frozenset[Path]:
    """Return every file that overrides a config because its `defaults`, directly or not, list it after `_self_`.

    Args:
        config: A config of the composition, a path without `.yaml`.
        search: Where Hydra looks beside the collection.
    """
    found = _inherited(config, search, is_after_self=True)
    return frozenset(target for _, target in found if target)


def _inherited(
    config: str, search: Sequence[str], *, is_after_self: bool = False
) -> Iterator[tuple[_Entry, Path | None]]:
    """Yield every entry of the defaults of a config and of all that it inherits, with the file that it names.

    Args:
        config: A path without `.yaml`.
        search: Where Hydra looks beside the collection.
        is_after_self: Whether of the config's own entries those before `_self_` are left out.
    """
    file = _find(config, search)
    base = "recipes" if config.startswith("recipes/") else config.rpartition("/")[0]
    pending = list(_entries(file, base, is_after_self=is_after_self)) if file else []
    found: set[Path] = set()
    while pending:
        entry = pending.pop()
        target = _find(entry.config, search) if entry.config else None
        yield entry, target
        if target and target not in found:
            found.add(target)
            pending += _entries(target, entry.base)


def _walk(
    file: Path, base: str, search: Sequence[str], way: tuple[tuple[Path, _Entry], ...], done: set[Path]
) -> Iterator[Problem]:
    """Yield the faults of a file and of the files that it names, each visited once.

    Args:
        file: The file.
        base: Folder from which its entries are looked up.
        search: Where Hydra looks beside the collection.
        way: The files that led here, each with the entry that named the next.
        done: Files already visited; grows.
    """
    done.add(file)
    try:
        FileCache().read(file)
    except ProblemsFound as error:
        yield from error.problems
        return
    for entry in _entries(file, base):
        target = _find(entry.config, search) if entry.config else None
        if entry.config is None:
            yield Problem("E005", "defaults", entry.written, allowed="/path@_here_ or _self_", where=entry.place)
        elif target is None:
            if not entry.is_optional and "${" not in entry.written:
                yield _absent(entry, file, search)
        elif target in (passed := [*(step for step, _ in way), file]):
            yield _cycle([step for _, step in way][passed.index(target) :], entry)
        elif target not in done:
            yield from _walk(target, entry.base, search, (*way, (file, entry)), done)


def _entries(file: Path, base: str, *, is_after_self: bool = False) -> Iterator[_Entry]:
    """Yield what the defaults of a file name, or name after `_self_`, and every item that names nothing."""
    for node in _lists(file):
        if not isinstance(node, yaml.SequenceNode):
            yield _Entry(None, "", "defaults must be a list", _place(file, node))
            continue
        places = [i for i, item in enumerate(node.value) if item.value == _SELF]
        start = (places[0] if places else len(node.value)) if is_after_self else 0
        for item in node.value[start:]:
            yield from _named(file, base, item)
        for item in [item for item in node.value if item.value == _SELF][1:]:
            yield _Entry(None, "", "_self_ may appear only once in a list of defaults", _place(file, item))


def _lists(file: Path) -> list[yaml.Node]:
    """Return the `defaults` of a file; there may be none, or several by mistake."""
    root = yaml_io.load_nodes(file.read_text(encoding="utf-8-sig"))
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    return [value for key, value in pairs if key.value == "defaults"]


def _named(file: Path, base: str, item: yaml.Node) -> Iterator[_Entry]:
    """Yield what one item of the list names: `/base/part@_here_`, or a group and one or several options."""
    place = _place(file, item)
    if isinstance(item, yaml.ScalarNode):
        if item.value.startswith(_KEYWORDS):
            word = item.value.partition(" ")[0]
            yield _Entry(None, "", f"{word} stands before a group: {{{word} /group@{_HERE}: name}}", place)
        elif item.value != _SELF:
            name, _, package = item.value.partition("@")
            path = _path(name, base)
            yield _Entry(path, path.rpartition("/")[0], item.value, place, package)
    elif isinstance(item, yaml.MappingNode) and len(item.value) == 1 and item.value[0][0].value.strip():
        key, value = item.value[0]
        *keywords, group = key.value.split()
        name, _, package = group.partition("@")
        path = _path(name, base)
        is_optional, is_override = "optional" in keywords, "override" in keywords
        for option in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if option.value not in ("null", "~", ""):
                config, written = f"{path}/{option.value}", f"{key.value}: {option.value}"
                yield _Entry(config, path, written, _place(file, option), package, is_optional, is_override)
    else:
        yield _Entry(None, "", "is not a valid entry of a defaults list", place)


def _path(name: str, base: str) -> str:
    """Return the path that an entry means."""
    return name[1:] if name.startswith("/") else f"{base}/{name}"


def _place(file: Path, node: yaml.Node) -> str:
    return f"{shown_path(file)}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _cycle(way: Sequence[_Entry], last: _Entry) -> Problem:
    steps = "; ".join(f"{step.place} names {step.written}" for step in (*way, last))
    message = f"a recipe's defaults lead back to itself: {steps}"
    return Problem("E005", "defaults", message, remedy="leave out one of these entries", where=last.place)


def _absent(entry: _Entry, file: Path, search: Sequence[str]) -> Problem:
    """Return the Problem of an entry of a file that names none."""
    names = [name for name in known_configs(search) if _find(name, search) != file]
    return Problem(
        "E005",
        "defaults",
        "a recipe's defaults name a file that does not exist",
        value=entry.written,
        allowed="/path from recipes_collection/ or the search path, or the name of a file beside yours",
        remedy=_instead(entry, names),
        where=entry.place,
    )


def _instead(entry: _Entry, names: Sequence[str]) -> str | None:
    """Return the correction of an entry that names no file."""
    if entry.written.partition("@")[0] in names:
        return f"/{entry.written}, with a slash before it"
    config, package = entry.config or "", f"@{entry.package or _HERE}"
    last = config.rpartition("/")[2]
    near = [name for name in nearest(config, names, cutoff=0.7) if nearest(last, [name.rpartition("/")[2]])]
    return question([f"/{found}{package}" for found in near])


def _find(config_path: str, search: Sequence[str]) -> Path | None:
    """Return the file of a config, as `/base/…` in `defaults` names it without the slash; None when there is none."""
    return next((source.file(config_path) for source in _sources(search) if source.is_config(config_path)), None)


def known_configs(search: Sequence[str]) -> list[str]:
    """Return every config that `defaults` could name, sorted, a path without `.yaml`."""
    names: set[str] = set()
    for source in _sources(search):
        place = Path(source.path)
        if isinstance(source, UserRecipe):
            names |= {f"{NEIGHBOURS}/{file.stem}" for file in place.parent.glob("*.yaml") if file.is_file()}
        else:
            files = filter(Path.is_file, place.rglob("*.yaml"))
            names |= {str(file.relative_to(place).with_suffix("")) for file in files}
    return sorted(names)


def is_group(config_path: str, search: Sequence[str]) -> bool:
    """Return whether a path names a folder of configs to choose from."""
    return any(source.is_group(config_path) for source in _sources(search))


def _sources(search: Sequence[str]) -> list[RecipeFiles]:
    sources = [RecipeFiles("main", f"file://{COLLECTION}")]
    for place in search:
        is_recipe = place.startswith(f"{SCHEME}://")
        sources.append((UserRecipe if is_recipe else RecipeFiles)("user", place))
    return sources
