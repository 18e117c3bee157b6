"""What serving a model takes of each node, whether it is there, and the exact command line of each rank. Pure."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..baked import contradicting
from ..findings import Finding, finding
from ..gids import ROCE_V2, mapped, outside
from .collective import plan_collective
from .inventory import Cluster
from .jit import IN_CONTAINER, jit_folder, jit_variables
from .known import figures, guard_findings, overlay_findings, overlay_hashes
from .needs import plan_needs
from .recipe import Recipe
from .types import (
    CONFIG_LABEL,
    CONTAINER_NAME,
    OVERLAY_DIR,
    SECRET_CONFIG_PATH,
    Image,
    Node,
    NodeNeeds,
    NodeServing,
    Plan,
    PlanFile,
    PlanRank,
    Rail,
    Resolve,
    Serving,
    Weights,
)
from .units import gib

Facts = Mapping[str, Any]

MODELS_IN_CONTAINER = "/models"
# A copy is rarely a byte too small: a folder of dangling links or a cut-off download is far below its size.
LEAST_SHARE_OF_WEIGHTS = 0.9
# What an image may bake in and what would then overrule the plan; named without a value, Docker removes it.
NEVER_FROM_THE_IMAGE = ("NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX", "NCCL_NET", "UCX_NET_DEVICES")
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.I)


def plan_serving(
    cluster: Cluster, plan: Plan, recipe: Recipe, facts_by_node: Mapping[str, Facts]
) -> tuple[Serving, dict[str, NodeServing], list[Finding]]:
    """Plan ``recipe`` on the planned nodes; always complete, also where findings forbid it, so that it can be shown."""
    width = len(plan["nodes"])
    weights = _weights(cluster, recipe, facts_by_node)
    image = _image(cluster, recipe, facts_by_node)
    needs, second_node, findings = plan_needs(cluster, plan, recipe, weights, image, facts_by_node)
    findings = _recorded(cluster, recipe, width) + guard_findings(recipe, width, node=cluster.name) + findings
    findings += _image_findings(cluster, recipe)
    findings += _range_findings(plan) if recipe.gpu else []
    findings += overlay_findings(recipe, plan["bundle"], node=cluster.name)
    findings += _weights_findings(cluster, recipe, weights)
    policy = cluster.policy
    serving: Serving = {
        "model": recipe.name,
        "profile": recipe.profile,
        "profile_values": dict(recipe.values),
        "expected": figures(recipe, width),
        "collective": plan_collective(recipe, facts_by_node),
        "served_names": list(recipe.served_names),
        "engine_source": policy.engine_source,
        "gpu": recipe.gpu,
        "image": image,
        "weights": weights,
        "tensor_parallel": width,
        "max_model_len": recipe.max_model_len,
        "max_num_seqs": recipe.max_num_seqs,
        "port": policy.api_port,
        "master_port": policy.master_port,
        "api_host": policy.api_host,
        "base_url": policy.api_base_url or f"http://{_in_url(cluster.head.management_address)}:{policy.api_port}",
        "needs": needs,
        "second_node": second_node,
        "probe_deadline_s": policy.probe_deadline_s,
        "api_key_file": policy.api_key_file or None,
        "config_sha256": "",
    }
    commands = {
        node["node"]: (engine_argv(plan, node, serving, recipe), environment(plan, node, recipe))
        for node in plan["nodes"]
    }
    serving["config_sha256"] = _config_sha256(commands, image, overlay_hashes(recipe, plan["bundle"]))
    baked = _baked_in(recipe, facts_by_node)
    per_node = {}
    for node, need in zip(plan["nodes"], needs, strict=True):
        engine, variables = commands[node["node"]]
        argv = docker_argv(plan, serving, recipe, variables, engine, node, baked)
        seen = facts_by_node.get(node["node"], {})
        plan_file = _plan_file(plan, node, serving, recipe, argv, variables, need, seen)
        per_node[node["node"]] = NodeServing(argv=argv, environment=variables, plan_file=plan_file)
    return serving, per_node, findings


def _weights(cluster: Cluster, recipe: Recipe, facts_by_node: Mapping[str, Facts]) -> Weights:
    """The fullest copy counts, the head's before a worker's."""
    best, most = None, 0
    for member in cluster.members:
        seen = facts_by_node.get(member.node, {}).get("weights") or {}
        if seen.get("present") and int(seen.get("bytes", 0)) > most:
            best, most = member.node, int(seen["bytes"])
    weights: Weights = {
        "path": f"{cluster.models_dir}/{recipe.weights_folder}",
        "source_node": best,
        "bytes": most if best else recipe.weights_bytes,
        "repository": recipe.repository,
        "revision": recipe.revision,
    }
    lacking = best is None or most < recipe.weights_bytes * LEAST_SHARE_OF_WEIGHTS
    if lacking and cluster.policy.weights_download and recipe.repository and recipe.image_reference:
        weights["source_node"] = best or cluster.head.node
        weights["bytes"], weights["download"] = recipe.weights_bytes, True
    return weights


def _image(cluster: Cluster, recipe: Recipe, facts_by_node: Mapping[str, Facts]) -> Image:
    image: Image = {
        "reference": recipe.image_reference or "",
        "digest": recipe.digest,
        "source_node": None,
        "identity": {},
    }
    having = [
        (member.node, seen)
        for member in cluster.members
        if (seen := facts_by_node.get(member.node, {}).get("image") or {}).get("present")
        and seen.get("reference") == recipe.image_reference
    ]
    # A node that shows the pinned digest goes before one that has an image of that tag.
    shown = [item for item in having if any(str(d).endswith(f"@{recipe.digest}") for d in item[1]["repo_digests"])]
    for node, seen in (shown or having)[:1]:
        image["source_node"] = node
        image["identity"] = {
            key: seen.get(key) for key in ("id", "repo_digests", "layers", "architecture", "size_bytes")
        }
    return image


def _baked_in(recipe: Recipe, facts_by_node: Mapping[str, Facts]) -> list[str]:
    """Variables of the image that would speak against the plan. Named without a value, Docker removes them."""
    return sorted(
        {
            name
            for facts in facts_by_node.values()
            if (image := facts.get("image") or {}).get("reference") == recipe.image_reference
            for name in contradicting(image.get("env") or ())
        }
    )


# What is known beforehand


def _recorded(cluster: Cluster, recipe: Recipe, width: int) -> list[Finding]:
    findings = []
    heads = recipe.attention_heads
    if heads and heads % width:
        findings.append(
            finding(
                "WIDTH_UNEVEN",
                node=cluster.name,
                found=f"{heads} attention heads over {width} nodes",
                expected="the same number of heads on every node",
                heads=heads,
                widths=", ".join(str(n) for n in range(1, min(heads, 16) + 1) if heads % n == 0),
            )
        )
    if recipe.ranks and recipe.ranks > width:
        findings.append(
            finding(
                "RANKS_FEWER_THAN_RECIPE",
                node=cluster.name,
                found=f"{recipe.ranks} ranks in {recipe.name}, {width} node{'s' if width != 1 else ''} in the cluster",
                expected=f"{recipe.ranks} nodes",
                ranks=recipe.ranks,
                nodes=width,
            )
        )
    known = recipe.width(width)
    if known is not None and known.verdict == "fails":
        findings.append(
            finding(
                "MODEL_FAILS_AT_WIDTH",
                node=cluster.name,
                found=f"{recipe.title} on {width}: {known.symptom or 'it fails'}",
                expected="a recorded success",
                evidence=[line for line in (known.cause, f"source: {known.source}") if line],
                cure=_other_width(recipe, width),
            )
        )
    elif known is None or known.verdict == "unproven":
        findings.append(
            finding(
                "WIDTH_UNPROVEN",
                node=cluster.name,
                found=f"no record of {recipe.title} on {width} node{'s' if width != 1 else ''}",
                expected="a recorded success",
            )
        )
    return findings


def _other_width(recipe: Recipe, width: int) -> str:
    served = [str(item.nodes) for item in recipe.widths if item.verdict == "serves" and item.nodes != width]
    return f"Serve it on {' or '.join(served)} nodes, or another model." if served else "Serve another model."


def _image_findings(cluster: Cluster, recipe: Recipe) -> list[Finding]:
    if not recipe.image_reference:
        return [
            finding(
                "RECIPE_UNSERVABLE",
                node=cluster.name,
                found=f"{recipe.name} names no image{f': {recipe.image_missing}' if recipe.image_missing else ''}",
                expected="image.reference in the recipe",
                file=recipe.file,
            )
        ]
    if cluster.policy.engine_source != "registry":
        return [
            finding(
                "ENGINE_SOURCE",
                node=cluster.name,
                found=f"{recipe.image_reference} comes from {cluster.policy.engine_source}",
                expected="an image of a registry, by its digest",
            )
        ]
    if recipe.digest is None:
        return [
            finding(
                "IMAGE_UNPINNED",
                node=cluster.name,
                found=recipe.image_reference,
                expected="a reference that ends in @sha256:...",
                reference=recipe.image_reference,
            )
        ]
    return []


def _weights_findings(cluster: Cluster, recipe: Recipe, weights: Weights) -> list[Finding]:
    if weights["source_node"] is None:
        if recipe.repository:
            revision = f" --revision {recipe.revision}" if recipe.revision else ""
            command = f"hf download {recipe.repository}{revision} --local-dir {weights['path']}"
        else:
            command = f"copy the model's folder to {weights['path']}"
        return [
            finding(
                "WEIGHTS_NOWHERE",
                node=cluster.head.node,
                found=f"no node has {weights['path']}",
                expected="a full copy on one node",
                command=command,
            )
        ]
    if weights["bytes"] < recipe.weights_bytes * LEAST_SHARE_OF_WEIGHTS:
        return [
            finding(
                "WEIGHTS_SIZE_ODD",
                node=weights["source_node"],
                found=f"{gib(weights['bytes'])} in {weights['path']}",
                expected=f"about {recipe.weights_said}",
                path=weights["path"],
            )
        ]
    return []


# Command lines


def _own_address(node: Node) -> str | None:
    return node["rails"][0]["address"] if node["rails"] else None


def engine_argv(plan: Plan, node: Node, serving: Serving, recipe: Recipe) -> list[str]:
    """The engine's arguments, after its program. A worker is headless: it serves no API."""
    argv = ["serve", f"{MODELS_IN_CONTAINER}/{recipe.weights_folder}"]
    argv += ["--served-model-name", *serving["served_names"]]
    argv += ["--host", serving["api_host"], "--port", str(serving["port"])]
    argv += ["--tensor-parallel-size", str(serving["tensor_parallel"])]
    if len(plan["nodes"]) > 1:
        head = plan["nodes"][0]
        argv += ["--distributed-executor-backend", "mp"]
        argv += ["--nnodes", str(len(plan["nodes"])), "--node-rank", str(node["rank"])]
        argv += ["--master-addr", _own_address(head) or head["management_address"]]
        argv += ["--master-port", str(serving["master_port"])]
        if node["rank"] > 0:
            argv.append("--headless")
    for flag, value in (
        ("--max-model-len", recipe.max_model_len),
        ("--max-num-seqs", recipe.max_num_seqs),
        ("--gpu-memory-utilization", recipe.gpu_memory_utilization),
    ):
        if value is not None:
            argv += [flag, str(value)]
    argv += recipe.flags
    if serving["api_key_file"] and node["role"] == "head":
        argv += ["--config", SECRET_CONFIG_PATH]
    return argv


def environment(plan: Plan, node: Node, recipe: Recipe) -> dict[str, str]:
    """The variables of one rank, none of them empty. The recipe's own may name {rank} and {node}."""
    values = {
        name: value.replace("{rank}", str(node["rank"])).replace("{node}", node["node"])
        for name, value in recipe.environment.items()
    }
    if recipe.gpu:
        values = {**jit_variables(), **values}
    if recipe.script:
        head = plan["nodes"][0]
        values.update(
            SPARK_RANK=str(node["rank"]),
            SPARK_NODES=str(len(plan["nodes"])),
            SPARK_HEAD=_own_address(head) or head["management_address"],
            SPARK_MODEL=f"{MODELS_IN_CONTAINER}/{recipe.weights_folder}",
            SPARK_ENGINE=recipe.entrypoint,
        )
    values["VLLM_ENGINE_READY_TIMEOUT_S"] = str(recipe.ready_timeout_s)
    address = _own_address(node)
    if address is not None:
        netdev = node["rails"][0]["netdev"]
        values.update(VLLM_HOST_IP=address, GLOO_SOCKET_IFNAME=netdev, TP_SOCKET_IFNAME=netdev)
        if recipe.gpu:
            # NCCL matches names by prefix unless they begin with =.
            values["NCCL_SOCKET_IFNAME"] = f"={netdev}"
            values.update(_nccl(plan, node))
    return dict(sorted((name, value) for name, value in values.items() if value != ""))


def _nccl(plan: Plan, node: Node) -> dict[str, str]:
    if plan["transport"] != "rdma":
        return {"NCCL_IB_DISABLE": "1"}
    devices = [rail["rdma_device"] for rail in node["rails"] if rail["rdma_device"]]
    values = {
        "NCCL_IB_HCA": f"={','.join(devices)}" if devices else "",
        # The only proof of which devices and which GIDs are used is NCCL's own log.
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
    }
    # With gid_mode: index the number overrules the rule; a device that it cannot serve is found before the start.
    values.update(
        NCCL_IB_ADDR_FAMILY="AF_INET",
        NCCL_IB_ROCE_VERSION_NUM="2",
        NCCL_IB_ADDR_RANGE=plan["address_range"] or "",
    )
    return values


def docker_argv(
    plan: Plan,
    serving: Serving,
    recipe: Recipe,
    variables: Mapping[str, str],
    engine: Sequence[str],
    node: Node,
    baked: Sequence[str] = (),
) -> list[str]:
    """The whole command line. Variables are named, never valued: docker's client takes them from its environment."""
    argv = ["docker", "run", "--name", CONTAINER_NAME, "--pull", "never", "--network", "host"]
    if recipe.ipc_host:
        argv += ["--ipc", "host"]
    if recipe.shm_bytes is not None:
        argv += ["--shm-size", str(recipe.shm_bytes)]
    argv += ["--ulimit", "memlock=-1", "--ulimit", "stack=67108864", "--cap-add", "IPC_LOCK"]
    if recipe.gpu:
        argv += ["--gpus", "all"]
    if recipe.gpu and plan["transport"] == "rdma" and node["rails"]:
        argv += ["--device", "/dev/infiniband"]
    argv += ["--label", f"{CONFIG_LABEL}={serving['config_sha256']}"]
    names = set(variables) | (set(NEVER_FROM_THE_IMAGE) if recipe.gpu else set()) | set(baked)
    for name in sorted(names):
        argv += ["--env", name]
    argv += ["--volume", f"{serving['weights']['path']}:{MODELS_IN_CONTAINER}/{recipe.weights_folder}:ro"]
    for overlay in recipe.overlays:
        argv += ["--volume", f"{OVERLAY_DIR}/{overlay.name}:{overlay.target}:ro"]
    if recipe.gpu:
        argv += ["--volume", f"{jit_folder(recipe)}:{IN_CONTAINER}"]
    if serving["api_key_file"] and node["role"] == "head":
        argv += ["--volume", f"{SECRET_CONFIG_PATH}:{SECRET_CONFIG_PATH}:ro"]
    # A script gets the engine's arguments as its own, and nothing on our side reads them with a shell.
    program, first = ("bash", [recipe.script]) if recipe.script else (recipe.entrypoint, [])
    return [*argv, "--entrypoint", program, serving["image"]["reference"], *first, *engine]


def _config_sha256(
    commands: Mapping[str, tuple[list[str], dict[str, str]]], image: Image, overlays: Mapping[str, str]
) -> str:
    """One hash for what all ranks run: a rank whose label has another one is out of date.

    Our own code is not part of it: a new version of the project is no reason to end what serves.
    """
    content = {
        "commands": {node: [argv, variables] for node, (argv, variables) in commands.items()},
        "image": [image["reference"], image["digest"]],
        **({"overlays": overlays} if overlays else {}),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _resolve(plan: Plan, node: Node, gpu: bool, facts: Facts) -> Resolve:
    if plan["transport"] != "rdma" or not gpu:
        return {"gids": [], "gid_index_variable": None}
    return {
        "gids": [
            {
                "rail": rail["rail"],
                "rdma_device": rail["rdma_device"],
                "netdev": rail["netdev"],
                "address": rail["address"],
                "index": _index_now(facts, rail),
            }
            for rail in node["rails"]
            if rail["rdma_device"]
        ],
        "gid_index_variable": "NCCL_IB_GID_INDEX" if plan["policy"]["gid_mode"] == "index" else None,
    }


def _index_now(facts: Facts, rail: Rail) -> int | None:
    """Where the rail's entry is while the plan is made; a start that finds it elsewhere says so."""
    wanted = (mapped(rail["address"]), ROCE_V2, rail["netdev"])
    found = [
        int(gid["index"])
        for device in facts.get("rdma_devices", ())
        if device["name"] == rail["rdma_device"]
        for gid in device["gids"]
        if (gid["gid"].lower(), gid["type"], gid["netdev"]) == wanted
    ]
    return found[0] if len(found) == 1 else None


def _range_findings(plan: Plan) -> list[Finding]:
    """Devices that NCCL would be told of and whose address its range leaves out: it would take index 0 for them."""
    if plan["transport"] != "rdma" or not plan["address_range"]:
        return []
    network = ipaddress.IPv4Network(plan["address_range"])
    return [
        outside(
            node["node"],
            rail["rdma_device"],
            rail["netdev"],
            plan["address_range"],
            f"{rail['rdma_device']} has {rail['address']}, and NCCL_IB_ADDR_RANGE is {plan['address_range']}",
        )
        for node in plan["nodes"]
        for rail in node["rails"]
        if rail["rdma_device"] and ipaddress.IPv4Address(rail["address"]) not in network
    ]


def _plan_file(
    plan: Plan,
    node: Node,
    serving: Serving,
    recipe: Recipe,
    argv: list[str],
    variables: dict[str, str],
    need: NodeNeeds,
    facts: Facts,
) -> PlanFile:
    ranks: list[PlanRank] = [
        {
            "node": other["node"],
            "rank": other["rank"],
            "role": other["role"],
            "address": _own_address(other) or other["management_address"],
        }
        for other in plan["nodes"]
    ]
    head = node["role"] == "head"
    ports = [serving["port"]] if head else []
    if head and len(ranks) > 1:
        ports.append(serving["master_port"])
    ports += [item.port for item in recipe.ports if head or not item.head_only]
    return {
        "schema": plan["schema"],
        "cluster": plan["name"],
        "model": serving["model"],
        "node": node["node"],
        "rank": node["rank"],
        "role": node["role"],
        "ranks": ranks,
        "transport": plan["transport"],
        "address_range": plan["address_range"],
        "rails": node["rails"],
        "gid_mode": str(plan["policy"]["gid_mode"]),
        "resolve": _resolve(plan, node, serving["gpu"], facts),
        "image": serving["image"],
        "weights": serving["weights"],
        "served_names": serving["served_names"],
        "argv": argv,
        "environment": variables,
        "memory_bytes": need["memory_bytes"],
        "ports": ports,
        "port": serving["port"],
        "base_url": serving["base_url"],
        "api_key_file": serving["api_key_file"],
        "probe_deadline_s": serving["probe_deadline_s"],
        "config_sha256": serving["config_sha256"],
    }


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def configuration(plan: Plan) -> dict[str, Any]:
    """What is served and how, verbatim, for the result file; values of secrets are left out."""
    serving = plan["serving"]
    if serving is None:
        return {}
    ranks = [
        {
            "node": node["node"],
            "rank": node["rank"],
            "argv": node["serving"]["argv"],
            "environment": {
                name: "(not recorded)" if SECRET_NAME.search(name) else value
                for name, value in node["serving"]["environment"].items()
            },
        }
        for node in plan["nodes"]
        if node["serving"]
    ]
    return {
        "model": serving["model"],
        "profile": serving["profile"],
        "profile_values": serving["profile_values"],
        "expected": serving["expected"],
        "served_names": serving["served_names"],
        "base_url": serving["base_url"],
        "engine_source": serving["engine_source"],
        "image": serving["image"],
        "weights": serving["weights"],
        "tensor_parallel": serving["tensor_parallel"],
        "max_model_len": serving["max_model_len"],
        "max_num_seqs": serving["max_num_seqs"],
        "fabric": {
            "transport": plan["transport"],
            "rails": plan["rails"],
            "address_range": plan["address_range"],
            "mtu": plan["mtu"],
        },
        "launcher": {item["path"]: item["sha256"] for item in plan["bundle"]["files"]},
        "config_sha256": serving["config_sha256"],
        "ranks": ranks,
    }
