"""A plan as a person reads it before anything happens: who, over what, with which command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from .units import gib


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """The plan of one cluster in a few lines, without its findings."""
    lines = [f"{plan['name']}: {len(plan['nodes'])} node{'s' if len(plan['nodes']) != 1 else ''}, {_fabric(plan)}"]
    for node in plan["nodes"]:
        rails = ", ".join(f"{rail['netdev']} {rail['address']}/{rail['prefix']}" for rail in node["rails"])
        lines.append(
            f"  rank {node['rank']}  {node['node']} ({node['role']}, {node['management_address']})  {rails}".rstrip()
        )
        if node["adopted_from"]:
            lines.append(f"          its network was made by {' and '.join(node['adopted_from'])} and stays as it is")
        for path in node["orphans"]:
            lines.append(f"          {path} is all NUL and goes to the backup")
        for unit in node["conflicting_units"]:
            lines.append(f"          {unit} {'is disabled' if plan['takeover'] else 'stands in the way'}")
    serving = plan.get("serving")
    if serving:
        lines += _serving(plan, serving)
    return lines


def _fabric(plan: Mapping[str, Any]) -> str:
    if not plan["rails"]:
        return "no fabric"
    subnets = ", ".join(rail["subnet"] for rail in plan["rails"])
    return f"{plan['transport']} over {subnets} (MTU {plan['mtu']}, {plan['renderer']})"


def _serving(plan: Mapping[str, Any], serving: Mapping[str, Any]) -> list[str]:
    weights, image = serving["weights"], serving["image"]
    names = ", ".join(serving["served_names"])
    lines = [
        f"  model   {serving['model']}{_profile(serving)} as {names} at {serving['base_url']}",
        f"  weights {weights['path']}, {gib(weights['bytes'])}, from {weights['source_node'] or 'nowhere yet'}",
        f"  image   {image['reference']}, from {image['source_node'] or 'its registry'}",
    ]
    for need in serving["needs"]:
        lines.append(f"  {need['node']}: memory {need['memory_sum']}; disk {need['disk_sum']}")
    lines += [f"  {len(serving['needs'])} nodes, {bought}" for bought in serving["second_node"]]
    # What will not run needs no command line.
    stopped = any(item["severity"] == "fatal" for item in plan["findings"])
    for node in plan["nodes"]:
        if node["serving"] and not stopped:
            environment = " ".join(
                f"{name}={shlex.quote(value)}" for name, value in node["serving"]["environment"].items()
            )
            lines.append(f"  rank {node['rank']} runs: {environment} {shlex.join(node['serving']['argv'])}")
    return lines


def _profile(serving: Mapping[str, Any]) -> str:
    values = " ".join(f"{name}={value}" for name, value in serving["profile_values"].items())
    name = f"{serving['profile']}: " if serving["profile"] else ""
    return f" [{name}{values}]" if values else ""


def finding_line(item: Mapping[str, Any]) -> str:
    """A finding in one line; the whole of it is in the result file, and in the message of what it stops."""
    return f"  {item['severity']:<7} {item['code']} on {item['node']}: {item['found']}"
