"""Every recipe of the catalogue against the machines of an inventory, or against others: make models ON=2x64"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.inventory.manager import InventoryManager  # noqa: E402
from ansible.module_utils.spark.findings import fatal, render  # noqa: E402
from ansible.module_utils.spark.plan.inventory import Cluster  # noqa: E402
from ansible.module_utils.spark.plan.recipe import Recipe  # noqa: E402
from ansible.module_utils.spark.plan.table import lines, rooms_for, rows  # noqa: E402
from ansible.module_utils.spark.plan.units import GIB, gb, gib  # noqa: E402
from ansible.module_utils.spark_controller import (  # noqa: E402
    PROJECT,
    catalogue,
    cluster_of,
    folders,
    load_recipe,
    members_of,
    spark_hosts,
)
from ansible.parsing.dataloader import DataLoader  # noqa: E402
from ansible.vars.hostvars import HostVars  # noqa: E402
from ansible.vars.manager import VariableManager  # noqa: E402

# What a DGX Spark reports as its memory; an inventory says nothing about it.
RECORDED_GIB = 121


def clusters(inventory: Path) -> list[Cluster]:
    loader = DataLoader()
    manager = InventoryManager(loader=loader, sources=[str(inventory)])
    variables = VariableManager(loader=loader, inventory=manager)
    known: dict[str, Any] = {
        "groups": manager.get_groups_dict(),
        "hostvars": HostVars(inventory=manager, variable_manager=variables, loader=loader),
    }
    found: dict[str, Cluster] = {}
    for host in spark_hosts(known):
        cluster = cluster_of(members_of(host, known), None)
        found.setdefault(cluster.name, cluster)
    return list(found.values())


def sizes(text: str) -> list[int]:
    """2x121 or 121,64: the memory of each node in GiB."""
    found = re.fullmatch(r"([1-9]\d?)x(.+)", text)
    each = [found[2]] * int(found[1]) if found else text.split(",")
    if not all(re.fullmatch(r"\d{1,6}(\.\d{1,6})?", size) and float(size) > 0 for size in each):
        raise argparse.ArgumentTypeError(f"{text!r} is neither NODESxGIB such as 2x121 nor a list such as 121,64")
    return [int(float(size) * GIB) for size in each]


def recipes(cluster: Cluster) -> tuple[list[Recipe], list[str]]:
    read, refused = [], []
    for path in catalogue(cluster).values():
        recipe, errors = load_recipe(path, folders(cluster))
        if recipe:
            read.append(recipe)
        refused += [f"{error.place(path)}: {error.problem}; {error.cure}" for error in errors]
    return sorted(read, key=lambda recipe: recipe.name), refused


def main(argv: list[str]) -> int:
    own = PROJECT / "inventory" / "cluster"
    parser = argparse.ArgumentParser(prog="make models", description=__doc__)
    parser.add_argument("-i", "--inventory", type=Path, help="your machines, inventory/cluster by default")
    parser.add_argument("--on", type=sizes, metavar="2x121", help="other machines: nodes and the GiB of each")
    asked = parser.parse_args(argv)
    failed = 0
    inventory = asked.inventory or (own if own.exists() else own.with_name("sample"))
    if inventory.name == "sample" and not asked.inventory and not asked.on:
        print("There is no inventory/cluster yet: this is for the two Sparks of inventory/sample, not yours.\n")
    known = clusters(inventory)
    if not known:
        parser.error(f"{inventory} has no host in the group spark; name another with -i")
    wrong = [item for cluster in known for item in fatal(cluster.findings)]
    if wrong and not asked.on:
        # Which machines serve together would be a guess.
        print("\n".join(map(render, wrong)), file=sys.stderr)
        return 2
    for cluster in known:
        memory = asked.on or [RECORDED_GIB * GIB] * len(cluster.members)
        table, refused = recipes(cluster)
        together = sum(memory)
        where = " + ".join(gib(each) for each in memory)
        source = "as asked" if asked.on else f"{cluster.name}, with the memory that a DGX Spark has"
        print(f"{where} = {gib(together)} = {gb(together)} ({source})\n")
        print("\n".join(lines(rows(table, rooms_for(memory), cluster.policy.disk_headroom_gib * GIB))))
        print("\n".join(refused), file=sys.stderr, end="\n" if refused else "")
        failed |= bool(refused)
        if asked.on:
            break
    return failed


if __name__ == "__main__":
    # Whoever pipes this into head has seen enough.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
