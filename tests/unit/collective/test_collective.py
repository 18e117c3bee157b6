"""What the numbers of an all-reduce mean, and how it gets the serving environment."""

from __future__ import annotations

import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark import collective
from ansible.module_utils.spark.collective import CAP_BYTES, KIB, MIB, Rate
from ansible.module_utils.spark.parse.nccl import parse_log
from ansible.module_utils.spark.results import summary

CASES = yaml.safe_load(Path(__file__).with_name("judge.yml").read_text(encoding="utf-8"))
IMAGE = "registry.example/vllm:1@sha256:" + "a" * 64
LAB_014 = {
    "what": "decode, one request",
    "value": 35,
    "unit": "tok/s",
    "concurrency": 1,
    "image": "another",
    "source": "Lab 014, The Advisor Bench",
    "same_image": False,
}
LATENCY = {**LAB_014, "what": "all-reduce of the activation", "value": 49.6, "unit": "us"}
PLAN: dict[str, Any] = {
    "name": "pair_a",
    "head": "spark-01",
    "transport": "rdma",
    "nodes": [{"node": "spark-01"}, {"node": "spark-02"}],
    "serving": {
        "model": "deepseek-v4-flash",
        "gpu": True,
        "expected": [LATENCY, LAB_014],
        "collective": {
            "hidden_size": 4096,
            "hidden_source": "the recipe deepseek-v4-flash",
            "dtype_bytes": 2,
            "activations": [{"about": "one token", "tokens": 1, "bytes": 8192}],
            "calls_per_token": 46,
            "calls_source": "computed from Lab 014, The Advisor Bench",
        },
    },
}


def size(count: int, median_us: float, **more: Any) -> dict[str, Any]:
    return {"bytes": count, "calls": 200, "median_us": median_us, "p99_us": 2 * median_us, "bus_gbps": 1.3, **more}


def report(
    node: str = "spark-01",
    *,
    latency_us: float = 49.6,
    log: list[str] | None = None,
    rails: list[int | None] | None = None,
    backend: str = "nccl",
    correct: bool = True,
    graph: dict[str, float] | None = None,
) -> dict[str, Any]:
    lines = ["Using network IB"] if log is None else log
    parsed = parse_log(f"vm:1:2 [0] NCCL INFO {line}" for line in lines)
    names = [("enp1s0f0np0", "rocep1s0f0"), ("enP2p1s0f0np0", "roceP2p1s0f0")]
    sent = [5 * 10**9, 5 * 10**9] if rails is None else rails
    return {
        "node": node,
        "transport": parsed.transport or "unknown",
        "log": {**asdict(parsed), "transport": parsed.transport, "over_sockets": parsed.over_sockets},
        "rails": [
            {"rail": i, "netdev": names[i][0], "rdma_device": names[i][1], "counted": "RDMA bytes"}
            | {"sent": count, "received": count, "moved": {}}
            for i, count in enumerate(sent)
        ],
        "gids": {"rocep1s0f0": 3},
        "script_sha256": "f" * 64,
        "result": {
            "rank": 0 if node == "spark-01" else 1,
            "nodes": 2,
            "backend": backend,
            "torch": "2.11.0",
            "nccl": "2.28.9",
            "device": "NVIDIA GB10",
            "dtype": "bfloat16",
            "memory": {"tensor_cap_bytes": CAP_BYTES},
            "graph": graph or {},
            "graph_why": "",
            "sizes": [
                size(8 * KIB, latency_us, correct=correct),
                size(64 * KIB, 90.0, correct=True),
                size(64 * MIB, 6100.0, correct=True),
            ],
        },
    }


def judged(plan: dict[str, Any] = PLAN, completion: dict[str, Any] | None = None, **of_head: Any) -> tuple[Any, Any]:
    return collective.judge(plan, [report(**of_head), report("spark-02")], completion, slow_factor=2.0)


def changed(**serving: Any) -> dict[str, Any]:
    plan = copy.deepcopy(PLAN)
    plan["serving"].update(serving)
    return plan


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_what_one_rank_shows(case: dict[str, Any]) -> None:
    one = report(
        log=case["log"],
        rails=case["rails"],
        backend=case.get("backend", "nccl"),
        correct=case.get("correct", True),
    )
    found = collective.judge_rank(one, case.get("transport", "rdma"))
    assert [item.code for item in found] == case["codes"]
    assert all(item.remedy for item in found)


def test_sockets_are_fatal_and_say_what_nccl_missed() -> None:
    log = ["NET/IB : No device found.", "NET/Socket : Using [0]enP7s7:10.0.0.5<0>", "Using network Socket"]
    (found,) = collective.judge_rank(report(log=log), "rdma")
    assert found.severity == "fatal"
    assert "NET/Socket over enP7s7" in found.found
    assert any("No device found" in line for line in found.evidence)
    assert "rocep1s0f0" in found.expected


# The share of a token


def test_the_article_s_eight_percent() -> None:
    """49.6 us, 46 calls a token, 35 tok/s."""
    assert round(collective.share(46, 49.6, 35), 2) == 0.08
    measurement, found = judged()
    budget = measurement["budget"]
    assert round(budget["share"], 2) == 0.08
    assert round(budget["calls_ms"], 2) == 2.28
    assert round(budget["token_ms"], 1) == 28.6
    assert budget["source"] == "Lab 014, The Advisor Bench"
    assert [item.code for item in found] == ["COLLECTIVE_OK"]
    assert "46 calls x 49.6 us = 2.28 ms of 28.6 ms a token at 35 tok/s: 8.0%" in found[0].evidence[0]


def test_what_this_cluster_did_itself_comes_before_figures() -> None:
    measurement, _ = judged(completion={"decode_tokens_per_s": 70.0})
    assert round(measurement["budget"]["share"], 2) == 0.16
    assert measurement["budget"]["source"] == "the last completion of this cluster"
    assert [other["tokens_per_s"] for other in measurement["budget"]["others"]] == [35]


def test_the_figure_that_counted_the_calls_comes_before_another() -> None:
    faster = {**LAB_014, "value": 95.9, "source": "somebody else"}
    serving = {**PLAN["serving"], "expected": [faster, LAB_014]}
    assert collective.rates(serving, None) == [Rate(35, str(LAB_014["source"])), Rate(95.9, "somebody else")]
    serving["expected"] = [LAB_014, {**faster, "same_image": True}]
    assert collective.rates(serving, None)[0].tokens_per_s == 95.9


def test_figures_of_many_requests_are_no_rate_of_one() -> None:
    many = {**LAB_014, "value": 215, "concurrency": 16}
    assert collective.rates({**PLAN["serving"], "expected": [many]}, {"decode_tokens_per_s": None}) == []


@pytest.mark.parametrize(
    ("serving", "missing"),
    [
        ({"expected": [LATENCY]}, "a rate of tokens"),
        ({"collective": {**PLAN["serving"]["collective"], "calls_per_token": None}}, "calls per token"),
        ({"collective": {**PLAN["serving"]["collective"], "activations": []}}, "size of the activation"),
    ],
    ids=["no rate", "no count", "no size"],
)
def test_what_is_unknown_stays_unknown(serving: dict[str, Any], missing: str) -> None:
    measurement, found = judged(changed(**serving))
    assert measurement["budget"]["share"] == "unknown"
    unknown = next(item for item in found if item.code == "COLLECTIVE_SHARE_UNKNOWN")
    assert missing in unknown.found
    assert unknown.severity == "note"


# Latency


@pytest.mark.parametrize(
    ("latency_us", "same_image", "severity"),
    [(99.0, True, None), (99.4, True, "warn"), (99.4, False, "note")],
)
def test_latency_against_what_somebody_measured(latency_us: float, same_image: bool, severity: str | None) -> None:
    plan = changed(expected=[{**LATENCY, "same_image": same_image}, LAB_014])
    measurement, found = judged(plan, latency_us=latency_us)
    slow = [item.severity for item in found if item.code == "COLLECTIVE_SLOW"]
    assert slow == ([severity] if severity else [])
    assert measurement["latency"]["judged"] == ("slow" if severity else "ok")


def test_latency_without_a_figure_is_not_judged() -> None:
    measurement, found = judged(changed(expected=[LAB_014]), latency_us=5000.0)
    assert measurement["latency"] == {
        "us": 5000.0,
        "expected_us": "unknown",
        "judged": "unknown",
        "measured": "call by call",
    }
    assert "COLLECTIVE_SLOW" not in [item.code for item in found]


def test_a_token_waits_for_the_slowest_rank() -> None:
    measurement, _ = collective.judge(
        PLAN, [report(latency_us=40.0), report("spark-02", latency_us=60.0)], None, slow_factor=2.0
    )
    assert measurement["sizes"][0]["median_us"] == 60.0
    assert measurement["latency"]["us"] == 60.0


def test_a_graph_tells_the_latency_without_the_launch() -> None:
    slow = [report(graph={"8192": 31.0}), report("spark-02", graph={"8192": 33.5})]
    measurement, _ = collective.judge(PLAN, slow, None, slow_factor=2.0)
    assert measurement["sizes"][0] | {"median_us": 49.6, "graph_us": 33.5} == measurement["sizes"][0]
    assert measurement["latency"]["us"] == 33.5
    assert measurement["latency"]["measured"] == "in a CUDA graph"
    measurement, _ = collective.judge(PLAN, [slow[0], report("spark-02")], None, slow_factor=2.0)
    assert measurement["latency"]["us"] == 49.6


def test_one_node_alone_and_three_together() -> None:
    alone = report()
    alone["result"]["nodes"] = 1
    for row in alone["result"]["sizes"]:
        row["bus_gbps"] = None
    assert collective.judge_rank(alone, "rdma") == []
    measurement, found = collective.judge(PLAN, [alone], None, slow_factor=2.0)
    assert found[0].code == "COLLECTIVE_OK"
    assert "Gb/s" not in "".join(collective.summary_lines(measurement))
    three = [report(name) for name in ("spark-01", "spark-02", "spark-03")]
    assert len(collective.judge(PLAN, three, None, slow_factor=2.0)[0]["ranks"]) == 3


def test_nothing_is_ok_where_one_rank_is_not() -> None:
    _, found = collective.judge(
        PLAN, [report(), report("spark-02", log=["Using network Socket"])], None, slow_factor=2.0
    )
    assert "COLLECTIVE_OK" not in [item.code for item in found]


# What is measured, and how it is run


def test_sizes_run_from_8_kib_through_the_activations_to_the_largest() -> None:
    found = collective.sizes([1024, 49152, 67108864, 2**30], 64 * MIB)
    assert found[:3] == [1024, 8 * KIB, 16 * KIB]
    assert 49152 in found
    assert found[-1] == 64 * MIB
    assert len(found) == 16


def test_every_size_fits_the_program_s_memory() -> None:
    assert collective.sizes([], 64 * MIB)[-1] + 4 * MIB <= CAP_BYTES


ARGV = [
    *("docker", "run", "--env", "NCCL_IB_GID_INDEX", "--name", "spark-rank", "--pull", "never", "--network", "host"),
    *("--ipc", "host", "--ulimit", "memlock=-1", "--cap-add", "IPC_LOCK", "--gpus", "all"),
    *("--device", "/dev/infiniband", "--label", "spark-cluster.config-sha256=1", "--env", "NCCL_IB_HCA"),
    *("--volume", "/home/nvidia/models/m:/models/m:ro"),
    *("--volume", "/usr/local/lib/spark-cluster/overlays/patch.py:/opt/patch.py:ro"),
    *("--volume", "/var/lib/spark-cluster/jit/m-1:/jit"),
    *("--volume", "/run/spark-cluster/serve-secret.yaml:/run/spark-cluster/serve-secret.yaml:ro"),
    *("--entrypoint", "vllm", IMAGE, "serve", "/models/m", "--host", "0.0.0.0"),
]
SPEC: dict[str, Any] = {
    "plan": {"rank": 1},
    "nodes": 2,
    "master": "192.168.200.12",
    "port": 29511,
    "backend": "nccl",
    "sizes": [8192, 65536],
    "calls": 200,
    "seconds": 1.0,
    "join_s": 180.0,
    "silence_s": 60.0,
}


def test_the_rank_s_own_command_line_with_the_program_in_the_engine_s_place() -> None:
    argv = collective.container_argv(ARGV, SPEC, script="/usr/local/lib/spark-cluster/allreduce.py")
    text = " ".join(argv)
    for kept in (
        "--env NCCL_IB_GID_INDEX",
        "--env NCCL_IB_HCA",
        "--network host --ipc host",
        "--gpus all --device /dev/infiniband",
        "--volume /usr/local/lib/spark-cluster/overlays/patch.py:/opt/patch.py:ro",
        "--env NCCL_DEBUG_FILE",
        f"--entrypoint python3 {IMAGE} {collective.SCRIPT} --rank 1 --nodes 2 --master 192.168.200.12",
        "--bytes 8192,65536 --cap 134217728",
        "--rm --name spark-collective",
    ):
        assert kept in text, kept
    for dropped in ("spark-rank", "config-sha256", "/models/m", "/jit", "serve-secret", "serve"):
        assert dropped not in argv
        assert dropped not in text or dropped == "serve", dropped


def test_over_gloo_nothing_is_asked_of_nccl() -> None:
    argv = collective.container_argv(ARGV, {**SPEC, "backend": "gloo"}, script="/s")
    assert "NCCL_DEBUG" not in argv
    assert collective.added_variables({"backend": "gloo"}) == {}


def test_an_author_s_script_is_not_run_for_it() -> None:
    at = ARGV.index("--entrypoint")
    scripted = [*ARGV[: at + 1], "bash", IMAGE, "/opt/spark-cluster/launch.sh", "serve"]
    argv = collective.container_argv(scripted, SPEC, script="/s")
    assert argv[argv.index("--entrypoint") + 1] == "python3"
    assert "/opt/spark-cluster/launch.sh" not in argv


@pytest.mark.parametrize(
    ("rdma", "before", "after", "expected"),
    [
        (
            True,
            {"tx_vport_rdma_unicast_bytes": 2**60, "rx_vport_rdma_unicast_bytes": 1, "tx_bytes": 5},
            {"tx_vport_rdma_unicast_bytes": 2**60 + 7, "rx_vport_rdma_unicast_bytes": 4, "tx_bytes": 9},
            ("RDMA bytes", 7, 3),
        ),
        (
            True,
            {"port_xmit_data": 10, "port_rcv_data": 10},
            {"port_xmit_data": 20, "port_rcv_data": 11},
            ("RDMA data", 40, 4),
        ),
        (True, {"sent_pkts": 1, "rcvd_pkts": 1}, {"sent_pkts": 3, "rcvd_pkts": 9}, ("RDMA packets", 2, 8)),
        (True, {"tx_bytes": 1, "rx_bytes": 1}, {"tx_bytes": 3, "rx_bytes": 9}, ("", None, None)),
        (False, {"tx_bytes": 1, "rx_bytes": 1}, {"tx_bytes": 3, "rx_bytes": 9}, ("interface bytes", 2, 8)),
    ],
    ids=["mlx5", "port", "rxe", "no counter of RDMA", "tcp"],
)
def test_what_a_rail_carried(rdma: bool, before: Any, after: Any, expected: Any) -> None:
    assert collective.carried(before, after, rdma=rdma)[:3] == expected


def test_the_screen_shows_a_short_table() -> None:
    measurement, _ = judged()
    lines = collective.summary_lines(measurement)
    assert lines[0] == "NET/IB, 2 ranks"
    assert any("8 KiB" in line and "49.6 us" in line and "one token" in line for line in lines)
    assert lines[-1].startswith("46 calls x 49.6 us")
    result = {"play": "collective", "cluster": "pair_a", "verdict": "ok", "duration_s": 20.0}
    shown = summary({**result, "measurements": {"spark-01": {"collective": measurement}}}, "r.json")
    assert "all-reduce   NET/IB, 2 ranks" in shown
