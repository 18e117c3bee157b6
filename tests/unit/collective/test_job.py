"""One rank's job on a node made of a folder, recorded commands, and a docker that does what the test says."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark import bundle, collective, gids, jobs
from ansible.module_utils.spark import collective_job as job
from ansible.module_utils.spark.jobs import JobFailedError, Reporter
from ansible.module_utils.spark.plan.types import CONFIG_LABEL
from ansible.module_utils.spark.rank import Place
from ansible.module_utils.spark.runner import Completed

LAYERS = ["sha256:aa"]
IMAGE = [{"Id": "sha256:1", "RepoDigests": [], "RootFS": {"Layers": LAYERS}, "Architecture": "arm64"}]
NOBODY = (1, "[]", "Error response from daemon: No such container: spark-rank")
GIB = 2**30
RAILS = [
    {"rail": 0, "netdev": "enp1s0f0np0", "rdma_device": "rocep1s0f0", "address": "192.168.200.12"},
    {"rail": 1, "netdev": "enP2p1s0f0np0", "rdma_device": "roceP2p1s0f0", "address": "192.168.201.12"},
]
DOCKER = """#!/bin/sh
[ "$1" = run ] && exec {python} {behaviour} "$@"
exit 0
"""
WELL = """
import json, os, sys
def say(what, **values): print(json.dumps({"allreduce": what, **values}), flush=True)
print("NOTE: the image prints something of its own", flush=True)
say("ready", torch="2.11.0", pid=1)
say("joined", rank=0, nodes=2)
row = {"bytes": 8192, "calls": 5, "median_us": 50.0, "p99_us": 60.0, "bus_gbps": 1.3, "correct": True}
say("size", **row)
say("result", schema=1, rank=0, nodes=2, backend="nccl", torch="2.11.0", nccl="2.28.9", device="NVIDIA GB10",
    dtype="bfloat16", sizes=[row], memory={})
"""


class Node:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[tuple[str, ...]] = []
        self.rank: tuple[int, str, str] = NOBODY
        self.left = ""
        self.unit = "inactive"
        self.place = Place(root=root, run=self)
        program = b"print()\n"
        self.file(bundle.ALLREDUCE, program)
        self.file(bundle.MANIFEST, bundle.render_manifest({bundle.ALLREDUCE: hashlib.sha256(program).hexdigest()}))
        self.memory(100 * GIB)
        for index, rail in enumerate(RAILS):
            port = f"/sys/class/infiniband/{rail['rdma_device']}/ports/1"
            self.file(f"{port}/gids/3", gids.mapped(str(rail["address"])).encode())
            self.file(f"{port}/gid_attrs/types/3", b"RoCE v2")
            self.file(f"{port}/gid_attrs/ndevs/3", str(rail["netdev"]).encode())
            self.file(f"{port}/counters/port_xmit_data", str(10**6 * index).encode())
            self.file(f"{port}/counters/port_rcv_data", b"5")

    def __call__(self, argv: Sequence[str], **_: Any) -> Completed:
        call = tuple(argv)
        self.calls.append(call)
        answers: dict[tuple[str, ...], tuple[int, str, str]] = {
            ("docker", "image"): (0, json.dumps(IMAGE), ""),
            ("docker", "container"): self.rank,
            ("docker", "ps"): (0, self.left, ""),
            ("ethtool", "-S"): (1, "", "no stats"),
            ("systemctl", "show"): (0, f"ActiveState={self.unit}\n", ""),
        }
        rc, out, err = answers.get(call[:2], (0, "", ""))
        return Completed(call, rc, out, err)

    def file(self, path: str, content: bytes) -> None:
        target = self.place.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    def memory(self, available: int) -> None:
        self.file("/proc/meminfo", f"MemTotal: 1 kB\nMemAvailable: {available // 1024} kB\n".encode())

    def serves(self) -> None:
        state = {"Running": True, "Status": "running", "StartedAt": "2026-12-01T00:00:00Z"}
        self.rank = (0, json.dumps([{"Id": "1", "State": state, "Config": {"Labels": {CONFIG_LABEL: "1"}}}]), "")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    folder = tmp_path / "bin"
    folder.mkdir()
    behaviour = folder / "behaviour.py"
    (folder / "docker").write_text(DOCKER.format(python=sys.executable, behaviour=behaviour))
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def behave(text: str) -> None:
        behaviour.write_text(text)

    return behave


def spec(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "plan": {
            "cluster": "pair",
            "model": "m",
            "node": "spark-01",
            "rank": 0,
            "role": "head",
            "transport": "rdma",
            "address_range": "192.168.200.0/23",
            "rails": RAILS,
            "resolve": {"gids": RAILS, "gid_index_variable": None},
            "image": {"reference": "image:1", "digest": None, "identity": {"layers": LAYERS, "architecture": "arm64"}},
            "argv": [
                *("docker", "run", "--name", "spark-rank", "--env", "NCCL_IB_HCA"),
                *("--entrypoint", "vllm", "image:1", "serve"),
            ],
            "config_sha256": "c0ffee",
        },
        "environment": ["NCCL_IB_HCA==rocep1s0f0,roceP2p1s0f0"],
        "nodes": 2,
        "master": "192.168.200.12",
        "port": 29511,
        "backend": "nccl",
        "sizes": [8192],
        "calls": 5,
        "seconds": 1.0,
        "join_s": 5.0,
        "silence_s": 5.0,
        "while_serving": False,
    }
    return {**base, **changes}


def run(node: Node, asked: dict[str, Any] | None = None) -> dict[str, Any]:
    status: dict[str, Any] = {"node": "spark-01", "progress": {}, "findings": [], "measurements": {}}
    return job.collective_job(asked or spec(), Reporter(node.root / "status.json", status), node.place)


def refused(node: Node, asked: dict[str, Any] | None = None) -> Any:
    with pytest.raises(JobFailedError) as caught:
        run(node, asked)
    return caught.value.findings[0]


def test_a_rank_reports_what_it_measured_and_what_nccl_said(node: Node, docker: Callable[[str], None]) -> None:
    log = node.place.path(f"{collective.FOLDER}/{collective.NCCL_LOG}")
    counter = node.place.path("/sys/class/infiniband/rocep1s0f0/ports/1/counters/port_xmit_data")
    docker(
        f"open({str(log)!r}, 'w').write('x [0] NCCL INFO Using network IB\\n')\n"
        f"open({str(counter)!r}, 'w').write('250')\n" + WELL
    )
    report = run(node)
    assert report["result"]["sizes"][0]["median_us"] == 50.0
    assert report["transport"] == "NET/IB"
    assert [(rail["counted"], rail["sent"]) for rail in report["rails"]] == [("RDMA data", 1000), ("RDMA data", 0)]
    assert report["gids"] == {"rocep1s0f0": 3, "roceP2p1s0f0": 3}
    assert report["environment"]["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0"
    assert report["environment"]["NCCL_DEBUG_SUBSYS"] == "INIT,NET"
    assert report["script_sha256"] == hashlib.sha256(b"print()\n").hexdigest()
    assert not report["changed"]
    assert not node.place.path(collective.FOLDER).parent.exists()
    # Both codes of the rails need this report as it is.
    assert [item.code for item in collective.judge_rank(report, "rdma")] == ["COLLECTIVE_RAIL_FLAT"]


def test_a_job_s_specification_is_one(node: Node) -> None:
    """Names of variables such as TOKENIZERS_PARALLELISM are no secrets, and the job must take them."""
    assert jobs.secrets_in(spec(environment=["TOKENIZERS_PARALLELISM=false"])) == []
    assert jobs.KINDS["collective"] == ("collective_job", "collective_job")


def test_a_rank_that_serves_is_not_disturbed(node: Node, docker: Callable[[str], None]) -> None:
    docker(WELL)
    node.serves()
    found = refused(node)
    assert found.code == "COLLECTIVE_WHILE_SERVING"
    assert "collective_while_serving=true" in found.remedy
    assert run(node, spec(while_serving=True))["result"]["rank"] == 0
    node.rank = NOBODY
    assert run(node)["result"]["rank"] == 0
    node.unit = "activating"
    assert refused(node).code == "COLLECTIVE_WHILE_SERVING"


def test_what_a_start_would_meet_is_checked_before(node: Node, docker: Callable[[str], None]) -> None:
    docker("raise SystemExit('must not run')")
    node.memory(2 * GIB)
    assert refused(node).code == "RANK_MEMORY_SHORT"
    node.memory(100 * GIB)
    node.file("/proc/net/tcp", b"sl local rem st\n0: 00000000:7347 00000000:0000 0A 0\n")
    assert refused(node).code == "RANK_PORT_TAKEN"
    node.file("/proc/net/tcp", b"")
    node.place.path("/sys/class/infiniband/rocep1s0f0/ports/1/gids/3").write_text("0000:" * 7 + "0000")
    assert refused(node).code == "GID_MISSING"
    node.file(bundle.ALLREDUCE, b"edited\n")
    assert refused(node).code == "LAUNCHER_ALTERED"


@pytest.mark.parametrize(
    ("behaviour", "code", "said"),
    [
        (
            "print('NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory'); raise SystemExit(1)",
            "RDMA_REGISTRATION_FAILED",
            "status 1 in: start of the container",
        ),
        ("import os; print('nothing that names a cause'); os._exit(137)", "RANK_KILLED", "status 137"),
        ("print('gone')", "UNKNOWN_CAUSE", "status 0"),
        ("raise ModuleNotFoundError('torch')", "UNKNOWN_CAUSE", "status 1"),
        (
            'print(\'{"allreduce": "stalled", "step": "all-reduce of 8192 bytes", "seconds": 60.2}\')',
            "COLLECTIVE_STALLED",
            "no sign for 60 s in: all-reduce of 8192 bytes",
        ),
        (
            "print('async exception: NCCL error: remote process exited or there was a network error')\n"
            'print(\'{"allreduce": "stalled", "step": "warming up", "seconds": 20.3}\')',
            "PEER_LOST",
            "no sign for 20 s in: warming up",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "RANK_KILLED", "status -9"),
    ],
    ids=["named", "killed", "without a result", "no torch", "stalled inside", "peer gone", "client killed"],
)
def test_how_it_ended_is_named(node: Node, docker: Callable[[str], None], behaviour: str, code: str, said: str) -> None:
    docker(behaviour)
    found = refused(node)
    assert found.code == code
    assert said in found.found
    assert found.remedy


@pytest.mark.parametrize(
    ("after", "graph", "why"),
    [
        ('say("graph", microseconds={"8192": 31.5}, why="")', {"8192": 31.5}, ""),
        ('say("graph", microseconds={}, why="operation not permitted")', {}, "operation not permitted"),
        ('say("stalled", step="a CUDA graph", seconds=20.1); os._exit(75)', {}, "COLLECTIVE_STALLED"),
        ("os._exit(1)", {}, "UNKNOWN_CAUSE"),
    ],
    ids=["captured", "not captured", "stalled", "died"],
)
def test_the_result_stands_without_the_graph(
    node: Node, docker: Callable[[str], None], after: str, graph: dict[str, float], why: str
) -> None:
    docker(WELL + after)
    result = run(node)["result"]
    assert result["sizes"][0]["median_us"] == 50.0
    assert result["graph"] == graph
    assert why in result["graph_why"]


def test_silence_ends_it_and_the_container_is_removed(
    node: Node, docker: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    docker("import time; time.sleep(60)")
    monkeypatch.setattr(job, "START_S", 0.3)
    node.left = "0123456789ab\n"
    began = time.monotonic()
    found = refused(node)
    assert time.monotonic() - began < 10
    assert found.code == "COLLECTIVE_STALLED"
    assert ("docker", "rm", "--force", "0123456789ab") in node.calls


def test_a_stop_from_outside_removes_the_container(
    node: Node, docker: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    docker("import time; time.sleep(60)")
    node.left = "0123456789ab\n"
    monkeypatch.setattr(job, "HERE", node.place)
    original = job.collective_job
    monkeypatch.setattr(job, "collective_job", lambda asked, reporter: original(asked, reporter, node.place))
    before = signal.getsignal(signal.SIGTERM)
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    try:
        assert jobs.execute("collective", "collective", "spark-01", spec(), node.root) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    status = json.loads((node.root / "collective.json").read_text())
    assert (status["state"], status["findings"][0]["code"]) == ("cancelled", "JOB_CANCELLED")
    assert ("docker", "rm", "--force", "0123456789ab") in node.calls
    assert not node.place.path(collective.FOLDER).parent.exists()


def test_of_ethtool_the_rdma_counters_are_taken(node: Node) -> None:
    told = "NIC statistics:\n     tx_vport_rdma_unicast_bytes: 9007199254740993\n     rx_vport_rdma_unicast_bytes: 1\n"
    place = Place(root=node.root, run=lambda argv, **_: Completed(tuple(argv), 0, told, ""))
    assert job.counters(place, RAILS[0])["tx_vport_rdma_unicast_bytes"] == 9007199254740993
