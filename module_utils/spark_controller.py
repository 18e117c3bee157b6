"""What the controller's plugins share: reading the hosts of the inventory and the files of the catalogue."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.spark.findings import Finding, finding
from ansible.module_utils.spark.plan.inventory import Cluster, read_cluster
from ansible.module_utils.spark.plan.known import chosen
from ansible.module_utils.spark.plan.policy import VARIABLES
from ansible.module_utils.spark.plan.recipe import Recipe, RecipeError, inherited, outer, read_recipe
from ansible.module_utils.spark.plan.recipes import import_recipe, is_ours, name_of

PROJECT = Path(__file__).resolve().parents[1]
CATALOGUE = PROJECT / "models"
HOST_VARIABLES = ("rank", "ansible_host", "ansible_user", "ansible_ssh_user")
# More than any recipe needs; aliases of aliases make millions of a few hundred bytes.
MOST_FIELDS = 20_000


class Unusable:
    """The value of a variable whose template fails; no reader accepts it, and its repr says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __repr__(self) -> str:
        return f"a template that fails ({self.reason})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unusable) and other.reason == self.reason

    def __hash__(self) -> int:
        return hash(self.reason)


def spark_hosts(variables: Mapping[str, Any]) -> list[str]:
    return [str(host) for host in (variables.get("groups") or {}).get("spark") or ()]


def nobody(node: str, hosts: Sequence[str], sources: Sequence[Any], limit: str | None) -> Finding:
    """Why a run has no machine to work on; ``hosts`` are those of the group spark, in the run or not."""
    given = [str(source) for source in sources]
    missing = [source for source in given if "," not in source and not Path(source).exists()]
    if hosts:
        shown = ", ".join(hosts[:8]) + (" ..." if len(hosts) > 8 else "")
        found = f"none of them matches -l {limit}" if limit else "none of them is in this run"
        return finding("LIMIT_EMPTY", node=node, found=found, expected=f"one or more of {shown}", choice=shown)
    if missing:
        own = (PROJECT / "inventory" / "cluster").resolve()
        shown = ", ".join(str(own.relative_to(PROJECT)) if Path(path).resolve() == own else path for path in missing)
        return finding("INVENTORY_MISSING", node=node, found=f"no {shown}", expected="an inventory")
    return finding(
        "GROUP_EMPTY",
        node=node,
        found=f"no host in the group spark of {', '.join(given) or 'the inventory'}",
        expected="at least one host below the group spark",
    )


def members_of(host: str, variables: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The hosts of ``host``'s cluster in the order of the group, with their variables: also those outside the play."""
    hostvars = variables["hostvars"]
    own = _one(hostvars[host], "cluster_name")
    names = [other for other in spark_hosts(variables) if other == host or _one(hostvars[other], "cluster_name") == own]
    return [(name, _chosen(hostvars[name])) for name in names] if own is not None else [(host, _chosen(hostvars[host]))]


def _one(values: Any, name: str) -> Any:
    if name not in values:
        return None
    try:
        return values[name]
    except Exception as error:  # whatever a template raises, the variable is named instead of a traceback
        return Unusable(str(error).splitlines()[0] if str(error) else error.__class__.__name__)


def _chosen(values: Any) -> dict[str, Any]:
    """Our variables with their values; of all others only the name, to find misspelt ones."""
    names = set(values)
    found: dict[str, Any] = dict.fromkeys(names)
    for name in (*VARIABLES, *HOST_VARIABLES):
        if name in names:
            found[name] = _one(values, name)
    return found


def cluster_of(members: Sequence[tuple[str, Mapping[str, Any]]], remote_user: str | None) -> Cluster:
    name = members[0][1].get("cluster_name")
    shown = name if isinstance(name, str) and name else members[0][0]
    return read_cluster(str(shown), members, default_user=remote_user or "root")


def folders(cluster: Cluster) -> list[Path]:
    """Where recipes are, in the order in which they are searched: the user's own folders before ours."""
    return [*(_folder(path) for path in cluster.policy.spark_models_path), CATALOGUE]


def catalogue(cluster: Cluster) -> dict[str, Path]:
    """Every recipe by name."""
    found: dict[str, Path] = {}
    for folder in folders(cluster):
        for path in sorted(folder.glob("*.yml")):
            found.setdefault(path.stem, path)
    return found


def _folder(path: str) -> Path:
    folder = Path(path).expanduser()
    return folder if folder.is_absolute() else PROJECT / folder


def recipe_for(cluster: Cluster) -> tuple[Recipe | None, list[Finding]]:
    """The recipe that the cluster's policy names, or why there is none."""
    if cluster.policy.recipe:
        recipe, found = _recipe_of_file(cluster)
        return recipe, [*_instead_of_model(cluster), *found]
    known = catalogue(cluster)
    wanted = cluster.policy.model
    listed = ", ".join(sorted(known)) or "nothing"
    if not wanted:
        said = finding(
            "MODEL_UNNAMED",
            node=cluster.name,
            found="model is not set",
            expected="a name of the catalogue",
            known=listed,
        )
        return None, [said]
    if wanted not in known:
        said = finding(
            "MODEL_UNKNOWN",
            node=cluster.name,
            found=f"model: {wanted}",
            expected="a name of the catalogue",
            evidence=[f"there is no folder {folder}" for folder in folders(cluster) if not folder.is_dir()],
            known=listed,
        )
        return None, [said]
    recipe, errors = load_recipe(known[wanted], folders(cluster))
    if recipe is not None:
        return chosen(recipe, cluster.policy.profile, cluster.policy.profile_values, node=cluster.name)
    return None, _refusals(cluster, known[wanted], errors)


def _instead_of_model(cluster: Cluster) -> list[Finding]:
    if not cluster.policy.model:
        return []
    return [
        finding(
            "RECIPE_INSTEAD_OF_MODEL",
            node=cluster.name,
            found=f"recipe: {cluster.policy.recipe}, model: {cluster.policy.model}",
            expected="one of them",
            model=cluster.policy.model,
        )
    ]


def _refusals(
    cluster: Cluster, path: Path, errors: Sequence[RecipeError], code: str = "RECIPE_INVALID"
) -> list[Finding]:
    return [
        finding(
            code,
            node=cluster.name,
            found=f"{error.place(path)}: {error.problem}",
            expected=error.expected,
            cure=f"Edit {error.file or path}: {error.cure}",
        )
        for error in errors
    ]


def _recipe_of_file(cluster: Cluster) -> tuple[Recipe | None, list[Finding]]:
    """The recipe in the file that the policy names: ours, or another launcher's."""
    given = Path(cluster.policy.recipe).expanduser()
    path = next((file for file in (Path.cwd() / given, PROJECT / given) if file.is_file()), None)
    if path is None:
        missing = RecipeError("", "there is no such file", "a recipe file", "correct the path of -e recipe=FILE")
        return None, _refusals(cluster, given, [missing])
    data, lines, errors = _read(path)
    if errors:
        return None, _refusals(cluster, path, errors)
    if is_ours(data):
        recipe, errors = load_recipe(path, [path.parent, *folders(cluster)])
        if recipe is None:
            return None, _refusals(cluster, path, errors)
        return chosen(recipe, cluster.policy.profile, cluster.policy.profile_values, node=cluster.name)
    name = name_of(path.stem)
    imported, errors = import_recipe(data, name=name, file=path.name)
    if imported is None:
        return None, _refusals(cluster, path, [error.at(lines) for error in errors], "RECIPE_UNMAPPABLE")
    schema = json.loads((CATALOGUE / "schema.json").read_text(encoding="utf-8"))
    recipe, errors = read_recipe(imported.document, schema, name=name, file=str(path))
    if recipe is None:
        return None, _refusals(cluster, path, errors, "RECIPE_UNMAPPABLE")
    recipe, found = chosen(recipe, cluster.policy.profile, cluster.policy.profile_values, node=cluster.name)
    if imported.unmapped:
        unmapped = finding(
            "RECIPE_KEYS_UNMAPPED",
            node=cluster.name,
            found=f"{len(imported.unmapped)} parts of {path.name} are not used",
            expected="a recipe that is used completely",
            evidence=imported.unmapped,
            file=path,
        )
        found = [*found, unmapped]
    return recipe, found


def overlays_of(cluster: Cluster, recipe: Recipe) -> list[tuple[str, bytes]]:
    """Name and content of the recipe's overlays, of those that are there: beside the recipe, in yours, in ours."""
    search = [Path(recipe.file).parent, *folders(cluster)]
    found = []
    for overlay in recipe.overlays:
        path = next((file for folder in search if (file := folder / overlay.file).is_file()), None)
        if path is not None:
            found.append((overlay.name, path.read_bytes()))
    return found


# The file and line of every field of a recipe, which can come from the recipe that it extends.
Places = dict[str, tuple[Path, int]]


def load_recipe(path: Path, search: Sequence[Path] = (CATALOGUE,)) -> tuple[Recipe | None, list[RecipeError]]:
    """Read and check one file of a catalogue; errors carry file and line.

    What it extends is looked for in the folders of ``search``.
    """
    document, places, errors = _document(path, search, ())
    if errors:
        return None, errors
    schema = json.loads((CATALOGUE / "schema.json").read_text(encoding="utf-8"))
    recipe, errors = read_recipe(document, schema, name=path.stem, file=str(path))
    return recipe, [_placed(error, places) for error in errors]


def _placed(error: RecipeError, places: Places) -> RecipeError:
    """With file and line; a field that is missing belongs to the line of the mapping that lacks it."""
    name = error.field
    while name and name not in places:
        name = outer(name)
    file, line = places[name]
    return replace(error, file=str(file), line=line)


def _document(path: Path, search: Sequence[Path], seen: tuple[Path, ...]) -> tuple[Any, Places, list[RecipeError]]:
    """A recipe's data with that of the recipe which it extends under it."""
    data, lines, errors = _read(path)
    places: Places = {name: (path, line) for name, line in lines.items()}
    if errors or not isinstance(data, dict) or not isinstance(data.get("extends"), str):
        return data, places, [replace(error, file=str(path)) for error in errors]
    seen = (*seen, path)
    wanted = data["extends"]
    # A recipe may have the name of the one that it changes; then the next one in the search path is meant.
    later = search[search.index(path.parent) + 1 :] if wanted == path.stem and path.parent in search else search
    base = next((file for folder in later if (file := folder / f"{wanted}.yml") in folder.glob("*.yml")), None)
    if base is None or base in seen:
        problem = f"it extends itself: {' -> '.join(file.stem for file in (*seen, base))}" if base else ""
        known = sorted({file.stem for folder in search for file in folder.glob("*.yml")} - {path.stem})
        error = RecipeError(
            "extends",
            problem or f"there is no {'other ' if wanted == path.stem else ''}recipe {wanted}",
            f"one of {', '.join(known)}",
            "name another recipe, or remove extends",
        )
        return data, places, [_placed(error, places)]
    under, places_under, errors = _document(base, search, seen)
    if errors or not isinstance(under, dict):
        return under, places_under, errors
    return inherited(under, data), {**places_under, **places}, []


def _read(path: Path) -> tuple[Any, dict[str, int], list[RecipeError]]:
    """The data of one file, the line of every field, and what keeps it from being read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = f"it cannot be read: {getattr(error, 'strerror', None) or error}"
        return None, {}, [RecipeError("", problem, "a readable file of UTF-8 text", "make it one, or remove it", 1)]
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if _written_out(tree, {}) > MOST_FIELDS:
            problem = f"with its aliases written out it has more than {MOST_FIELDS} values"
            return None, {}, [RecipeError("", problem, "a recipe", "write it without nested aliases", 1)]
        data = yaml.safe_load(text)
    except RecursionError:
        problem = "it is nested without end, or contains itself by an alias"
        return None, {}, [RecipeError("", problem, "a YAML mapping", "write it without that alias", 1)]
    except ValueError as error:
        problem = f"one of its values cannot be read: {error}"
        return None, {}, [RecipeError("", problem, "text in quotes", "quote the value", 1)]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = str(getattr(error, "problem", None) or error).splitlines()[0]
        line = mark.line + 1 if mark else None
        return None, {}, [RecipeError("", f"it is no YAML: {problem}", "a YAML mapping", "correct the line", line)]
    # An empty file has no tree; what is missing in it is missing in its first line.
    return data, {"": 1, **_lines(tree)}, _repeated(tree)


def _written_out(node: Any, known: dict[int, int]) -> int:
    """How many values a tree has where each alias counts as often as it is used. RecursionError: it contains itself."""
    if id(node) not in known:
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        flat = [item for part in parts for item in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_written_out(item, known) for item in flat)
    return known[id(node)]


def _repeated(node: Any, prefix: str = "") -> list[RecipeError]:
    """Fields that are there twice: YAML would take the last one and say nothing."""
    found: list[RecipeError] = []
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            field = f"{prefix}.{name}" if prefix else name
            if name in seen:
                cure = f"remove this one or that of line {seen[name]}"
                found.append(RecipeError(field, "it is there twice", "every field once", cure, line))
            seen[name] = line
            found += _repeated(value, field)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            found += _repeated(value, f"{prefix}[{index}]")
    return found


def _lines(node: Any, prefix: str = "") -> dict[str, int]:
    """The line of every field, by its dotted name."""
    found: dict[str, int] = {prefix: node.start_mark.line + 1} if node is not None else {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = f"{prefix}.{key.value}" if prefix else str(key.value)
            found.update(_lines(value, name))
            found[name] = key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            found.update(_lines(value, f"{prefix}[{index}]"))
    return found
