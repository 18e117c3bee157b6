"""The shape of a plan: what the controller hands to the roles, and what lies on a node.

Everything here is plain JSON. ``Plan`` is the fact ``cluster`` (equal on all members), ``Node`` is the fact ``me``, and
``PlanFile`` is ``/etc/spark-cluster/plan.json``, from which ``rankctl`` starts a rank without a controller.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

SCHEMA = 1

NETPLAN_PATH = "/etc/netplan/40-spark-fabric.yaml"
SYSCTL_PATH = "/etc/sysctl.d/40-spark-fabric.conf"
CONFIG_DIR = "/etc/spark-cluster"
LIB_DIR = "/usr/local/lib/spark-cluster"
OVERLAY_DIR = f"{LIB_DIR}/overlays"
STATE_DIR = "/var/lib/spark-cluster"
RUN_DIR = "/run/spark-cluster"
PLAN_PATH = f"{CONFIG_DIR}/plan.json"
RANK_PATH = f"{RUN_DIR}/rank.json"
SECRET_CONFIG_PATH = f"{RUN_DIR}/serve-secret.yaml"
CONTAINER_NAME = "spark-rank"
UNIT_NAME = "spark-rank.service"
CONFIG_LABEL = "spark-cluster.config-sha256"

Role = Literal["head", "worker"]
Purpose = Literal["fabric", "serve", "stop", "diagnose"]


class RailSubnet(TypedDict):
    """One rail of the fabric: functions of the same index on all nodes share its subnet."""

    rail: int
    subnet: str


class Rail(TypedDict):
    """One function of one node on one rail.

    ``adopted`` says that the function has the planned address already. A node whose functions could not be found has
    fewer rails than the plan, or none, and a fatal finding.
    """

    rail: int
    netdev: str
    rdma_device: str | None
    pci: str | None
    address: str
    prefix: int
    peer_addresses: dict[str, str]
    adopted: bool


class NetplanFile(TypedDict):
    path: str
    text: str


class SysctlFile(TypedDict):
    """Kernel settings of one node; ``values`` are what ``text`` says, by sysctl's names."""

    path: str
    text: str
    values: dict[str, str]


class LinkCheck(TypedDict):
    """``ports`` has one entry per rail; ``min_gbps`` is judged against the sum of all rails one way,
    ``min_both_ways_gbps`` against that of both ways at once."""

    min_gbps: float
    min_both_ways_gbps: float
    seconds: int
    ports: list[int]


class BundleFile(TypedDict):
    """A file of the same bytes on every node; ``source`` lies on the controller, ``mode`` is text such as ``0755``."""

    path: str
    mode: str
    sha256: str
    source: str


class Bundle(TypedDict):
    rankctl_sha256: str
    files: list[BundleFile]


class Image(TypedDict):
    """``identity`` is what the source node reports for the image, empty where no node has it yet."""

    reference: str
    digest: str | None
    source_node: str | None
    identity: dict[str, Any]


class Weights(TypedDict):
    """``bytes`` is measured on the source node where one has the weights, else the recipe's figure."""

    path: str
    source_node: str | None
    bytes: int
    repository: str | None
    revision: str | None
    # Set where no node has them and the source is to fetch them first.
    download: NotRequired[bool]


class Figure(TypedDict):
    """A figure that somebody measured; it is no yardstick unless ``same_image``."""

    what: str
    value: float
    unit: str
    concurrency: int | None
    image: str
    source: str
    same_image: bool


class Activation(TypedDict):
    """What one call of the all-reduce carries in a step of ``tokens`` tokens."""

    about: str
    tokens: int
    bytes: int


class Collective(TypedDict):
    """``hidden_size`` and ``calls_per_token`` are null where no source says."""

    hidden_size: int | None
    hidden_source: str
    dtype_bytes: int
    activations: list[Activation]
    calls_per_token: float | None
    calls_source: str


class Serving(TypedDict):
    """``profile`` is empty where the recipe has none; ``profile_values`` are all values that it was planned with."""

    model: str
    profile: str
    profile_values: dict[str, str]
    expected: list[Figure]
    collective: Collective
    served_names: list[str]
    engine_source: str
    gpu: bool
    image: Image
    weights: Weights
    tensor_parallel: int
    max_model_len: int | None
    max_num_seqs: int | None
    port: int
    master_port: int
    api_host: str
    base_url: str
    needs: list[NodeNeeds]
    second_node: list[str]
    probe_deadline_s: int
    api_key_file: str | None
    config_sha256: str


class NodeNeeds(TypedDict):
    """What one rank needs of its node, in bytes, with the sums that the findings quote."""

    node: str
    memory_bytes: int
    memory_sum: str
    disk_bytes: int
    disk_sum: str


class GidWanted(TypedDict):
    """What ``rankctl prestart`` must find in sysfs: one RoCE v2 entry for ``address``, owned by ``netdev``.

    ``index`` is where it was while the plan was made, null where there was none; the start uses what it finds itself.
    """

    rail: int
    rdma_device: str
    netdev: str
    address: str
    index: int | None


class Resolve(TypedDict):
    """Left to the node at start.

    ``gid_index_variable`` names the variable to set to the one index that serves every device of ``gids``; null leaves
    the choice to NCCL's rule (family, version and range are in the environment), and the indexes are only recorded.
    """

    gids: list[GidWanted]
    gid_index_variable: str | None


class PlanRank(TypedDict):
    node: str
    rank: int
    role: Role
    address: str


class PlanFile(TypedDict):
    """``argv`` names each variable as ``--env NAME``; docker's client takes the value from its own ``environment``.

    A name in ``argv`` without a value in ``environment`` makes Docker remove what the image baked in under that name.
    """

    schema: int
    cluster: str
    model: str
    node: str
    rank: int
    role: Role
    ranks: list[PlanRank]
    transport: str
    address_range: str | None
    rails: list[Rail]
    gid_mode: str
    resolve: Resolve
    image: Image
    weights: Weights
    served_names: list[str]
    argv: list[str]
    environment: dict[str, str]
    memory_bytes: int
    ports: list[int]
    port: int
    base_url: str
    api_key_file: str | None
    probe_deadline_s: int
    config_sha256: str


class NodeServing(TypedDict):
    argv: list[str]
    environment: dict[str, str]
    plan_file: PlanFile


class Node(TypedDict):
    """``orphans`` are all-NUL netplan files to move away, ``conflicting_units`` units of earlier deployments.

    ``adopted_from`` names what made a network that is right already and is left as it is; empty where it is ours.
    """

    node: str
    rank: int
    role: Role
    management_address: str
    user: str
    rails: list[Rail]
    netplan: NetplanFile | None
    sysctl: SysctlFile | None
    adopted_from: list[str]
    orphans: list[str]
    conflicting_units: list[str]
    serving: NodeServing | None


class Plan(TypedDict):
    """``address_range`` is the smallest network that covers all rails, null where there is no fabric (one node).

    ``serving_nodes`` are those on which a rank of ours runs now, which nothing may disturb.
    """

    schema: int
    name: str
    purpose: Purpose
    transport: str
    head: str
    nodes: list[Node]
    rails: list[RailSubnet]
    address_range: str | None
    mtu: int
    renderer: str
    rollback_s: int
    link_check: LinkCheck
    takeover: bool
    serving_nodes: list[str]
    policy: dict[str, Any]
    findings: list[dict[str, Any]]
    serving: Serving | None
    bundle: Bundle
