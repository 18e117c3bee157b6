"""A rank before its start, its start itself, and its end, on a node made of a folder and recorded commands."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark import bundle, gids, rank
from ansible.module_utils.spark.findings import Finding
from ansible.module_utils.spark.plan.types import CONFIG_LABEL, RANK_PATH, SECRET_CONFIG_PATH
from ansible.module_utils.spark.rank import Place
from ansible.module_utils.spark.runner import Completed

LAYERS = ["sha256:aa", "sha256:bb"]
IMAGE = [{"Id": "sha256:1", "RepoDigests": [], "RootFS": {"Layers": LAYERS}, "Architecture": "arm64"}]
GIB = 2**30
NETDEV = "enp1s0f0np0"


class Commands:
    """Recorded answers by the first words of a command."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, ...], tuple[int, str, str]] = {
            ("docker", "image", "inspect"): (0, json.dumps(IMAGE), ""),
            ("docker", "container", "inspect"): (1, "[]", "Error response from daemon: No such container: spark-rank"),
        }
        self.called: list[tuple[str, ...]] = []

    def __call__(self, argv: Sequence[str], **_: Any) -> Completed:
        self.called.append(tuple(argv))
        for start, (rc, out, err) in self.answers.items():
            if tuple(argv[: len(start)]) == start:
                return Completed(tuple(argv), rc, out, err)
        return Completed(tuple(argv), 0, "", "")


@pytest.fixture
def commands() -> Commands:
    return Commands()


@pytest.fixture
def place(tmp_path: Path, commands: Commands) -> Place:
    """A node on which everything is as it should be."""
    place = Place(root=tmp_path, run=commands)
    launch = place.path(bundle.LAUNCH)
    launch.parent.mkdir(parents=True)
    launch.write_bytes(b"#!/bin/sh\n")
    manifest = bundle.render_manifest({bundle.LAUNCH: hashlib.sha256(b"#!/bin/sh\n").hexdigest()})
    place.path(bundle.MANIFEST).write_bytes(manifest)
    place.path("/models/m").mkdir(parents=True)
    place.path("/models/m/model.safetensors").write_bytes(b"x")
    place.path("/proc/net").mkdir(parents=True)
    place.path("/proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {100 * GIB // 1024} kB\n")
    place.path("/proc/net/tcp").write_text("sl local rem st\n0: 00000000:0016 00000000:0000 0A 0\n")
    gid(place, "rocep1s0f0", 3, "192.168.200.12", "enp1s0f0np0")
    return place


def gid(place: Place, device: str, index: int, address: str, netdev: str, kind: str = "RoCE v2") -> None:
    port = place.path(f"/sys/class/infiniband/{device}/ports/1")
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / folder).mkdir(parents=True, exist_ok=True)
    (port / "gids" / str(index)).write_text(gids.mapped(address) + "\n")
    (port / "gid_attrs/types" / str(index)).write_text(kind + "\n")
    (port / "gid_attrs/ndevs" / str(index)).write_text(netdev + "\n")


def plan(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "node": "spark-01",
        "rank": 0,
        "role": "head",
        "cluster": "pair",
        "model": "m",
        "config_sha256": "c0ffee",
        "argv": ["docker", "run", "--env", "A", "image", "vllm", "serve"],
        "environment": {"A": "1"},
        "image": {"reference": "image:1", "digest": None, "identity": {"layers": LAYERS, "architecture": "arm64"}},
        "weights": {"path": "/models/m"},
        "transport": "rdma",
        "resolve": {
            "gids": [
                {"rail": 0, "rdma_device": "rocep1s0f0", "netdev": "enp1s0f0np0", "address": "192.168.200.12"},
            ],
            "gid_index_variable": None,
        },
        "ports": [8000, 29501],
        "memory_bytes": 80 * GIB,
        "api_key_file": None,
    }
    return {**base, **changes}


def codes(found: Sequence[Finding]) -> list[str]:
    return [item.code for item in found]


def test_a_healthy_node_starts_and_says_what_it_found(place: Place) -> None:
    said, record = rank.prestart(plan(), place)
    assert said == []
    assert record["gids"] == {"rocep1s0f0": 3}
    assert record["argv"] == plan()["argv"]
    assert record["image"]["layers"] == LAYERS
    assert record["launcher"] == {bundle.LAUNCH: hashlib.sha256(b"#!/bin/sh\n").hexdigest()}


def listen(place: Place, port: int) -> None:
    row = f"   1: 00000000:{port:04X} 00000000:0000 0A 0\n"
    place.path("/proc/net/tcp").open("a").write(row)


def connected(place: Place, port: int) -> None:
    """An established connection from the same port number: not a listener."""
    place.path("/proc/net/tcp").open("a").write(f"   1: 0CC8A8C0:{port:04X} 0DC8A8C0:1F90 01 0\n")


def available(place: Place, gib: int) -> None:
    place.path("/proc/meminfo").write_text(f"MemAvailable: {gib * GIB // 1024} kB\n")


def absent_image(place: Place) -> None:
    answers = place.run.answers  # type: ignore[attr-defined]
    answers["docker", "image", "inspect"] = (1, "[]", "Error: No such image: image:1")


def other_image(place: Place) -> None:
    other = [{**IMAGE[0], "RootFS": {"Layers": [LAYERS[0]]}}]
    place.run.answers["docker", "image", "inspect"] = (0, json.dumps(other), "")  # type: ignore[attr-defined]


def other_store(place: Place) -> None:
    """The same image in Docker's other store has another Id."""
    same = [{**IMAGE[0], "Id": "sha256:2"}]
    place.run.answers["docker", "image", "inspect"] = (0, json.dumps(same), "")  # type: ignore[attr-defined]


def silent_docker(place: Place) -> None:
    error = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."
    place.run.answers["docker", "image", "inspect"] = (1, "", error)  # type: ignore[attr-defined]


def named(place: Place, label: str | None, running: bool) -> None:
    state = {"Running": running, "Status": "running" if running else "exited", "Pid": 7, "ExitCode": 0}
    labels = {CONFIG_LABEL: label} if label else {}
    box = [{"Id": "1", "State": state, "Config": {"Labels": labels}}]
    place.run.answers["docker", "container", "inspect"] = (0, json.dumps(box), "")  # type: ignore[attr-defined]


REFUSED: list[tuple[str, Callable[[Place], Any], list[str]]] = [
    ("launcher edited", lambda p: p.path(bundle.LAUNCH).write_bytes(b"#!/bin/sh\n# x\n"), ["LAUNCHER_ALTERED"]),
    ("launcher gone", lambda p: p.path(bundle.LAUNCH).unlink(), ["LAUNCHER_ALTERED"]),
    ("launcher touched", lambda p: p.path(bundle.LAUNCH).touch(), []),
    ("no manifest", lambda p: p.path(bundle.MANIFEST).unlink(), ["LAUNCHER_NOT_INSTALLED"]),
    ("no image", absent_image, ["RANK_IMAGE_MISSING"]),
    ("other image", other_image, ["RANK_IMAGE_DIFFERS"]),
    ("other store", other_store, []),
    ("docker silent", silent_docker, ["DOCKER_SILENT"]),
    ("weights empty", lambda p: p.path("/models/m/model.safetensors").write_bytes(b""), ["RANK_WEIGHTS_MISSING"]),
    ("port taken", lambda p: listen(p, 29501), ["RANK_PORT_TAKEN"]),
    ("port near", lambda p: listen(p, 29502), []),
    ("port of a connection", lambda p: connected(p, 8000), []),
    ("memory short", lambda p: available(p, 79), ["RANK_MEMORY_SHORT"]),
    ("memory just enough", lambda p: available(p, 80), []),
    ("gid elsewhere", lambda p: gid(p, "rocep1s0f0", 3, "192.168.200.12", "enp9"), ["GID_MISSING"]),
    ("gid v1", lambda p: gid(p, "rocep1s0f0", 3, "192.168.200.12", NETDEV, "IB/RoCE v1"), ["GID_MISSING"]),
    ("gid twice", lambda p: gid(p, "rocep1s0f0", 4, "192.168.200.12", "enp1s0f0np0"), ["GID_AMBIGUOUS"]),
    ("gid moved", lambda p: gid(p, "rocep1s0f0", 5, "192.168.200.99", "enp1s0f0np0"), []),
    ("foreign container", lambda p: named(p, None, False), ["RANK_NAME_FOREIGN"]),
    ("own dead container", lambda p: named(p, "old", False), []),
]


@pytest.mark.parametrize(("change", "expected"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_each_refusal_and_its_near_miss(
    place: Place, monkeypatch: pytest.MonkeyPatch, change: Callable[[Place], Any], expected: list[str]
) -> None:
    monkeypatch.setattr(rank, "_SETTLE_S", 0)
    change(place)
    assert codes(rank.prestart(plan(), place)[0]) == expected


def test_beside_a_rank_that_gives_way_ports_and_memory_are_left_to_the_start(place: Place) -> None:
    listen(place, 8000)
    place.path("/proc/meminfo").write_text("MemAvailable: 1 kB\n")
    named(place, "old", True)
    assert rank.prestart(plan(), place, replacing=True)[0] == []


def test_one_index_for_all_or_none(place: Place) -> None:
    second = {"rail": 1, "rdma_device": "roceP2p1s0f0", "netdev": "enP2p1s0f0np0", "address": "192.168.201.12"}
    resolve = {"gids": [*plan()["resolve"]["gids"], second], "gid_index_variable": "NCCL_IB_GID_INDEX"}
    gid(place, "roceP2p1s0f0", 3, "192.168.201.12", "enP2p1s0f0np0")
    said, record = rank.prestart(plan(resolve=resolve), place)
    assert said == []
    assert record["argv"][:4] == ["docker", "run", "--env", "NCCL_IB_GID_INDEX"]
    assert record["environment"]["NCCL_IB_GID_INDEX"] == "3"
    gid(place, "roceP2p1s0f0", 1, "192.168.201.12", "enP2p1s0f0np0")
    gid(place, "roceP2p1s0f0", 3, "0.0.0.0", "enP2p1s0f0np0")
    assert codes(rank.prestart(plan(resolve=resolve), place)[0]) == ["RANK_GID_INDEX_SPLIT"]


def moved(place: Place, old: int, new: int) -> None:
    """The kernel gave the rail's entry another number, and an IPv6 address has the old one."""
    gid(place, "rocep1s0f0", old, "0.0.0.0", "enp1s0f0np0")
    six = place.path(f"/sys/class/infiniband/rocep1s0f0/ports/1/gids/{old}")
    six.write_text("2001:0db8:0000:0000:0000:0000:0000:0001\n")
    gid(place, "rocep1s0f0", new, "192.168.200.12", "enp1s0f0np0")


def test_a_gid_that_moved_since_the_plan_is_used_where_it_is_now_and_said(place: Place) -> None:
    wanted = {**plan()["resolve"]["gids"][0], "index": 3}
    planned = plan(resolve={"gids": [wanted], "gid_index_variable": "NCCL_IB_GID_INDEX"})
    assert codes(rank.prestart(planned, place)[0]) == []
    moved(place, 3, 4)
    said, record = rank.prestart(planned, place)
    assert codes(said) == ["GID_DRIFTED"]
    assert record["gids"] == {"rocep1s0f0": 4}
    assert record["environment"]["NCCL_IB_GID_INDEX"] == "4"
    assert [item["code"] for item in record["findings"]] == ["GID_DRIFTED"]


def test_a_device_that_nccl_would_use_with_index_0_does_not_start(place: Place) -> None:
    assert codes(rank.prestart(plan(address_range="192.168.200.0/23"), place)[0]) == []
    assert codes(rank.prestart(plan(address_range="10.0.0.0/23"), place)[0]) == ["GID_OUTSIDE_RANGE"]


def test_what_the_image_bakes_in_against_the_plan_is_named_without_a_value(place: Place) -> None:
    env = ["PATH=/usr/bin", "NCCL_NET=Socket", "NCCL_IB_HCA=mlx5_0", "VLLM_HOST_IP=10.0.0.1", "NCCL_NTHREADS=512"]
    baked = [{**IMAGE[0], "Config": {"Env": env}}]
    place.run.answers["docker", "image", "inspect"] = (0, json.dumps(baked), "")  # type: ignore[attr-defined]
    argv = ["docker", "run", "--env", "NCCL_IB_HCA", "image", "vllm", "serve"]
    planned = plan(argv=argv, environment={"NCCL_IB_HCA": "=rocep1s0f0", "VLLM_HOST_IP": "10.0.0.1"})
    said, record = rank.prestart(planned, place)
    assert codes(said) == ["IMAGE_VARIABLES_OVERRULED"]
    assert said[0].evidence == (
        "NCCL_IB_HCA=mlx5_0 of the image: =rocep1s0f0",
        "NCCL_NET=Socket of the image: removed",
    )
    names = [record["argv"][at + 1] for at, part in enumerate(record["argv"]) if part == "--env"]
    assert sorted(names) == ["NCCL_IB_HCA", "NCCL_NET", "VLLM_HOST_IP"]
    assert "NCCL_NET" not in record["environment"]
    assert not [part for part in record["argv"] if part.endswith("=")]


def test_a_check_by_hand_is_written_down_and_spares_the_record_of_a_running_rank(place: Place) -> None:
    rank.write_private(place.path(RANK_PATH), b'{"invocation": "abc"}')
    _, record = rank.prestart(plan(), place)
    named(place, "old", True)
    rank.keep_checked(record, place)
    assert rank.started_with(place) == {"invocation": "abc"}
    named(place, "old", False)
    rank.keep_checked(record, place)
    kept = rank.started_with(place)
    assert (kept["started"], kept["invocation"], kept["gids"]) == (False, "abc", {"rocep1s0f0": 3})


@pytest.mark.parametrize(
    ("content", "mode", "usable"),
    [("k3y\n", 0o600, True), ("k3y\n", 0o644, False), ("", 0o600, False), ("a b", 0o600, False)],
)
def test_the_key_comes_from_a_file_of_root_alone(place: Place, content: str, mode: int, usable: bool) -> None:
    path = place.path("/etc/spark-cluster/api-key")
    path.parent.mkdir(parents=True)
    path.write_text(content)
    path.chmod(mode)
    said, key = rank.read_api_key(place, "n", "/etc/spark-cluster/api-key")
    assert codes(said) == ([] if usable else ["API_KEY_UNUSABLE"])
    assert key == ("k3y" if usable else "")
    assert "k3y" not in str(said)
    if usable:
        rank.hand_over_key("/etc/spark-cluster/api-key", place)
        handed = place.path(SECRET_CONFIG_PATH)
        assert (handed.read_text(), handed.stat().st_mode & 0o777) == ('api-key: "k3y"\n', 0o600)


HOSTILE = [
    "a b",
    "quote's",
    '"double"',
    "$(touch /tmp/pwned)",
    "`id`",
    "line\nbreak",
    "ünïcödé 模型",
    "; rm -rf x",
    "--flag=$HOME",
    "*",
    "",
]


def test_hostile_values_arrive_intact_and_run_nothing(tmp_path: Path, project: Path) -> None:
    """The start really happens, as a process: a program in Docker's place writes down what it was given."""
    seen = tmp_path / "seen.json"
    program = tmp_path / "docker"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"json.dump([sys.argv[1:], dict(os.environ)], open({str(seen)!r}, 'w'))\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = {f"V{number}": value for number, value in enumerate(HOSTILE)}
    call = json.dumps([str(program), ["docker", *HOSTILE], environment])
    script = "import json, sys; from spark.rank import become; become(*json.loads(sys.argv[1]))"
    inherited = {"PATH": os.environ["PATH"], "PYTHONPATH": str(project / "module_utils"), "SECRET_OF_HOST": "x"}
    subprocess.run([sys.executable, "-c", script, call], env=inherited, check=True, cwd=tmp_path)
    argv, got = json.loads(seen.read_text())
    assert argv == HOSTILE
    assert {name: got[name] for name in environment} == environment
    assert "SECRET_OF_HOST" not in got
    assert not Path("/tmp/pwned").exists()


def test_a_refusal_is_written_down_for_the_play_and_only_the_new_one_counts(place: Place) -> None:
    said = rank.check_bundle(place, "n")
    place.path(bundle.LAUNCH).write_bytes(b"x")
    said = rank.check_bundle(place, "n")
    rank.refuse(said, place)
    assert codes(rank.refusal(0, place)) == ["LAUNCHER_ALTERED"]
    assert rank.refusal(9e12, place) == []
    assert place.path(rank.REFUSAL_PATH).stat().st_mode & 0o777 == 0o600


def unit_says(place: Place, lines: Mapping[str, str], log: str = "") -> None:
    shown = "".join(f"{key}={value}\n" for key, value in lines.items())
    place.run.answers["systemctl", "show"] = (0, shown, "")  # type: ignore[attr-defined]
    place.run.answers["journalctl",] = (0, log, "")  # type: ignore[attr-defined]


def test_a_rank_is_running_starting_dead_or_absent(place: Place) -> None:
    unit_says(place, {"ActiveState": "inactive", "InvocationID": ""})
    assert rank.status(place)["state"] == "absent"
    unit_says(place, {"ActiveState": "active", "InvocationID": "1"})
    assert rank.status(place)["state"] == "starting"
    named(place, "c0ffee", True)
    assert rank.status(place)["state"] == "running"
    # A head that crashed while serving exits with 0: systemd calls it a success, and forgets the unit and its log's
    # name.
    named(place, "c0ffee", False)
    rank.write_private(place.path(RANK_PATH), b'{"invocation": "abc"}')
    unit_says(place, {"ActiveState": "inactive", "Result": "success", "InvocationID": ""}, "ValueError: x\n")
    seen = rank.status(place)
    assert (seen["state"], seen["exit_status"], seen["invocation"]) == ("dead", 0, "abc")
    assert rank.death(seen, "n", 0, place).evidence == ("ValueError: x",)
    unit_says(place, {"ActiveState": "failed", "ExecMainStatus": "78", "InvocationID": "1"})
    place.run.answers["docker", "container", "inspect"] = (1, "", "no such container")  # type: ignore[attr-defined]
    assert (rank.status(place)["state"], rank.status(place)["exit_status"]) == ("dead", 78)


def test_a_plan_that_is_none_is_refused_with_its_reason(place: Place) -> None:
    for content, reason in ((None, "does not exist"), ("{", "cannot be read"), ("{}", "no command line")):
        if content is not None:
            place.path(bundle.PLAN).parent.mkdir(parents=True, exist_ok=True)
            place.path(bundle.PLAN).write_text(content)
        with pytest.raises(rank.PlanError, match=reason):
            rank.read_plan(place)


def test_what_is_left_after_a_stop_is_named(place: Place) -> None:
    unit_says(place, {"ActiveState": "inactive"})
    assert rank.remains([8000], [], place) == []
    assert rank.after_stop("n", []).code == "RANK_STOPPED"
    listen(place, 8000)
    named(place, "c0ffee", True)
    place.path("/proc/77").mkdir()
    left = rank.remains([8000], [77], place)
    assert [text.split()[0] for text in left] == ["container", "processes", "ports"]
    said = rank.after_stop("n", left)
    assert (said.code, said.severity) == ("RANK_NOT_STOPPED", "fatal")
    assert "ports 8000" in said.found
