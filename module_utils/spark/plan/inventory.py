"""From what the inventory says about the hosts of one cluster to its policy and its ranks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..findings import Finding, finding
from .policy import HOST_VARIABLES, RANK_ALLOWED, VARIABLES, Policy, VariableError, misspelt, read_rank

Variables = Mapping[str, Any]


@dataclass(frozen=True)
class Member:
    """A host of the cluster.

    ``user`` is who the controller logs in as; the weights lie in that user's home by default. ``netdevs`` are the
    functions that the inventory names, none if they are to be discovered.
    """

    node: str
    rank: int
    management_address: str
    user: str
    netdevs: tuple[str, ...]


@dataclass(frozen=True)
class Cluster:
    """``members`` are in the order of their ranks, the head first."""

    name: str
    policy: Policy
    members: tuple[Member, ...]
    findings: tuple[Finding, ...]

    @property
    def head(self) -> Member:
        return self.members[0]

    @property
    def models_dir(self) -> str:
        return self.policy.models_dir or f"{home_of(self.head.user)}/models"


def home_of(user: str) -> str:
    return "/root" if user == "root" else f"/home/{user}"


def read_cluster(name: str, hosts: Sequence[tuple[str, Variables]], *, default_user: str = "root") -> Cluster:
    """Read the hosts of the cluster ``name``, given in the order of their group with the variables of each.

    Always returns a cluster with all hosts in it, so that a plan can be made and shown; what is wrong is in its
    findings.
    """
    findings: list[Finding] = []
    policy, errors = Policy.read(hosts[0][1])
    findings += [_invalid(name, error) for error in errors]
    findings += _differing(name, hosts)
    findings += [_invalid(name, error) for error in policy.room_for(len(hosts))]
    for given, meant in misspelt(sorted({variable for _, variables in hosts for variable in variables})):
        findings.append(
            finding(
                "VARIABLE_UNKNOWN",
                node=name,
                found=f"a variable {given}",
                expected=f"{meant}",
                given=given,
                meant=meant,
            )
        )
    ranks, rank_findings = _ranks(name, hosts)
    findings += rank_findings
    netdevs: dict[str, tuple[str, ...]] = {}
    for host, variables in hosts:
        own, own_errors = Policy.read({**variables, "cluster_name": name})
        netdevs[host] = own.fabric_netdevs
        if host != hosts[0][0]:
            findings += [
                _invalid(host, error)
                for error in own_errors
                if set(error.variable.split(" and ")) & set(HOST_VARIABLES)
            ]
    members = [
        Member(
            host,
            ranks[host],
            str(variables.get("ansible_host") or host),
            str(variables.get("ansible_user") or variables.get("ansible_ssh_user") or default_user),
            netdevs[host],
        )
        for host, variables in hosts
    ]
    members.sort(key=lambda member: member.rank)
    users = sorted({member.user for member in members})
    if len(users) > 1 and not policy.models_dir:
        findings.append(
            finding(
                "VARIABLES_DIFFER",
                node=name,
                found=f"models_dir is not set and the users differ: {', '.join(users)}",
                expected="one models_dir for all members",
                variable="models_dir",
            )
        )
    return Cluster(name, policy, tuple(members), tuple(findings))


def _invalid(node: str, error: VariableError) -> Finding:
    return finding(
        "VARIABLE_INVALID",
        node=node,
        found=f"{error.variable} is {error.given}",
        expected=error.allowed,
        variable=error.variable,
        example=error.example,
    )


def _differing(name: str, hosts: Sequence[tuple[str, Variables]]) -> list[Finding]:
    findings = []
    for variable in VARIABLES:
        if variable in HOST_VARIABLES:
            continue
        given = {host: variables.get(variable) for host, variables in hosts}
        first = given[hosts[0][0]]
        if all(value == first for value in given.values()):
            continue
        said = ", ".join(f"{host} has {'none' if value is None else repr(value)}" for host, value in given.items())
        findings.append(
            finding(
                "VARIABLES_DIFFER",
                node=name,
                found=f"{variable}: {said}",
                expected="one value for all members",
                variable=variable,
            )
        )
    return findings


def _ranks(name: str, hosts: Sequence[tuple[str, Variables]]) -> tuple[dict[str, int], list[Finding]]:
    """Ranks as given; hosts without one take the free numbers in the order of the group."""
    in_order = {host: index for index, (host, _) in enumerate(hosts)}
    given: dict[str, int] = {}
    for host, variables in hosts:
        if variables.get("rank") is None:
            continue
        try:
            given[host] = read_rank(variables["rank"])
        except ValueError:
            error = VariableError("rank", f"{variables['rank']!r} on {host}", RANK_ALLOWED, "rank: 0")
            return in_order, [_invalid(name, error)]
    free = iter(rank for rank in range(len(hosts)) if rank not in given.values())
    ranks = {host: given[host] if host in given else next(free, len(hosts)) for host, _ in hosts}
    if sorted(ranks.values()) == list(range(len(hosts))):
        return ranks, []
    said = ", ".join(f"{host} is {given[host]}" if host in given else f"{host} has none" for host, _ in hosts)
    wrong = finding(
        "RANKS_INVALID",
        node=name,
        found=said,
        expected=f"each of {', '.join(map(str, range(len(hosts))))} once",
    )
    return in_order, [wrong]
