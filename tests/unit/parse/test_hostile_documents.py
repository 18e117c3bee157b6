"""Documents that are JSON and not what their writer would say, cut ones, and ones without a floor: a finding, an error
of the one kind that is handled, or nothing; never a traceback."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark import frames, gids, guard, netplan, reach, rollback, undo
from ansible.module_utils.spark.bundle import read_manifest
from ansible.module_utils.spark.diagnose import node as phases
from ansible.module_utils.spark.gather import Node, Request, gather
from ansible.module_utils.spark.link import run as link
from ansible.module_utils.spark.link import tcp
from ansible.module_utils.spark.link.legs import Leg
from ansible.module_utils.spark.parse import docker, ip
from ansible.module_utils.spark.parse.whole import records
from ansible.module_utils.spark.runner import CommandFailed, Completed, run

from tests.unit.fabric.machine import Machine, said

LONG = "9" * 5000
DEEP = "[" * 100_000
# What stands where an object, a list, a text or a number should.
ODD: tuple[Any, ...] = (None, 7, -1, 1e999, float("nan"), "x", LONG, True, [], [[]], [7, None, {}], {}, {"a": 1})
ADDRESS = {
    "ifname": "enp1s0f0np0",
    "flags": ["UP", "LOWER_UP"],
    "mtu": 1500,
    "operstate": "UP",
    "address": "52:54:00:00:00:01",
    "addr_info": [{"family": "inet", "local": "192.168.200.12", "prefixlen": 24}],
}
ROUTE = {"dst": "10.0.0.0/8", "dev": "eth0", "gateway": "10.0.0.1", "metric": 100, "table": "7", "type": "unicast"}
IMAGE = {
    "Id": "sha256:1",
    "RepoDigests": ["a@sha256:2"],
    "RootFS": {"Layers": ["sha256:3"]},
    "Architecture": "arm64",
    "Config": {"Env": ["A=1"]},
    "Size": 5,
}
CONTAINER = {
    "Id": "1",
    "State": {"Running": True, "StartedAt": "now"},
    "Config": {"Labels": {}, "Cmd": ["serve", "--gpu-memory-utilization", "0.8"]},
}
INFO = {"ServerErrors": [], "ServerVersion": "28", "Driver": "overlay2", "DockerRootDir": "/var/lib/docker"}
CUT = json.dumps([ADDRESS])
BROKEN = (DEEP, f"[{LONG}]", *(CUT[:length] for length in range(1, len(CUT), 7)), "17", '"x"', "null", "[7]", "{}")


def changed(whole: Any) -> list[Any]:
    """``whole`` with each value in it, at every depth, replaced by each odd one."""
    found: list[Any] = []
    items = (
        list(whole.items()) if isinstance(whole, dict) else list(enumerate(whole)) if isinstance(whole, list) else []
    )
    for key, value in items:
        for odd in (*ODD, *changed(value)):
            copy = whole.copy()
            copy[key] = odd
            found.append(copy)
    return found


@pytest.mark.parametrize(
    ("parse", "whole"), [(ip.parse_addr, ADDRESS), (ip.parse_routes, ROUTE)], ids=["addresses", "routes"]
)
def test_what_ip_would_not_print_is_one_kind_of_error_or_read(parse: Callable[[str], Any], whole: Any) -> None:
    assert len(parse(json.dumps([whole]))) == 1
    refused = 0
    for odd in changed(whole):
        try:
            parse(json.dumps([odd]))
        except ValueError:
            refused += 1
    assert refused


@pytest.mark.parametrize(
    ("parse", "whole"),
    [
        (docker.parse_info, INFO),
        (lambda image: docker.parse_image("a:1", image), IMAGE),
        (docker.parse_container, CONTAINER),
    ],
    ids=["info", "image", "container"],
)
def test_a_field_that_is_not_the_daemons_is_as_good_as_none(parse: Callable[[Any], Any], whole: Any) -> None:
    kinds = {name: type(value) for name, value in parse(whole).items()}
    for odd in changed(whole):
        told = parse(odd)
        assert all(value is None or isinstance(value, kinds[name]) or name == "error" for name, value in told.items())
        json.dumps(told, allow_nan=False)


def test_what_the_daemon_says_is_read() -> None:
    assert docker.parse_container(CONTAINER)["memory_share"] == 0.8
    assert docker.parse_image("a:1", IMAGE)["layers"] == ["sha256:3"]
    assert docker.parse_info(INFO)["version"] == "28"


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_a_list_of_records_or_one_kind_of_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - which one it is depends on the document
        records(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_interfaces_are_read_or_the_command_is_what_failed(machine: Machine) -> None:
    machine.answer("ip", stdout=CUT)
    assert list(netplan.read_devices(machine)) == ["enp1s0f0np0"]
    for text in BROKEN:
        machine.answer("ip", stdout=text)
        with pytest.raises(CommandFailed, match="its output cannot be read"):
            netplan.read_devices(machine)
    refused = 0
    for odd in changed(ADDRESS):
        machine.answer("ip", stdout=json.dumps([odd]))
        try:
            netplan.read_devices(machine)
        except CommandFailed:
            refused += 1
    assert refused


def test_a_neighbour_that_cannot_be_read_is_shown_as_it_was_said(machine: Machine) -> None:
    answer = reach.Answer(0, "enp1s0f0np0", "spark-02", "192.168.200.13", False)
    for text in (*BROKEN, *(json.dumps([{"lladdr": odd, "state": odd}]) for odd in ODD)):
        machine.answer("ip", stdout=text)
        assert isinstance(reach._neighbour(machine, answer), str)


@pytest.mark.parametrize(
    "text", [b"[" * 1400, b"17", b'"abcde"', b"null", b"[1,2,3,4,5]", b'["a","b","c","d",7]', b"{"]
)
def test_a_frame_that_is_no_beacon_is_passed_over(text: bytes) -> None:
    head = frames.BROADCAST + bytes(6) + struct.pack("!H", frames.ETHERTYPE) + frames.MAGIC
    assert frames.decode(head + struct.pack("!H", len(text)) + text) is None
    assert frames.decode(head) is None


@pytest.mark.parametrize("text", ["", "[]", "7", DEEP, '{"at": 1}', '{"reason"'])
def test_a_damaged_report_of_a_rollback_is_none(machine: Machine, text: str) -> None:
    node = guard.Node(machine, machine.root)
    node.rollback.mkdir(parents=True)
    (node.rollback / rollback.LAST).write_text(text)
    assert guard.last_rollback(node) == []


def test_damaged_lines_of_the_journal_are_passed_over(tmp_path: Path) -> None:
    kept = undo.record({"kind": "made", "path": "/x"}, root=tmp_path)
    with (tmp_path / undo.JOURNAL).open("a") as journal:
        journal.write(f"{DEEP}\n[]\n17\n{{\n")
    assert undo.read(root=tmp_path) == [kept]


@pytest.mark.parametrize("tail", ["zzzz:0001", "12345:1", "c0a8", "", "c0a8:c80c:1", "-001:0001"])
def test_a_gid_that_is_none_has_no_address(tail: str) -> None:
    head = "0000:0000:0000:0000:0000:ffff"
    assert gids.unmapped(f"{head}:{tail}") is None
    assert str(gids.unmapped(f"{head}:c0a8:c80c")) == "192.168.200.12"


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "7", '{"files": []}', "{"])
def test_a_manifest_that_is_none_is_one_kind_of_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - which one it is depends on the document
        read_manifest(text.encode())


def test_a_node_is_read_whatever_its_daemon_and_tools_say(machine: Machine) -> None:
    """Every fact is there, and what could not be read is said."""
    machine.answer("ip", stdout='[{"ifname": "x", "flags": 7}]')
    (machine.root / "models/tiny").mkdir(parents=True)
    (machine.root / "models/tiny/config.json").write_text(DEEP)
    answers = {"/info": {**INFO, "ServerErrors": 7}, "/images/a/b:1/json": {**IMAGE, "Config": [7], "RepoDigests": 7}}

    def daemon(resource: str) -> tuple[int, Any]:
        return 200, answers.get(resource, CONTAINER)

    request = Request(models_dir="/models", weights_folder="tiny", image="a/b:1")
    told = gather(Node(run=machine, root=machine.root, docker_get=daemon), request)
    assert told["errors"]["ip"].startswith("unreadable output: not what ip prints")
    assert told["image"] is not None
    assert (told["image"]["error"] or "").startswith("the Docker daemon's answer cannot be read")
    assert told["weights"] is not None
    assert "nested too deeply" in (told["weights"]["error"] or "")


RAILS = [
    {
        "rail": 0,
        "netdev": "enp1s0f0np0",
        "rdma_device": None,
        "pci": None,
        "address": "127.0.0.1",
        "peer_addresses": {"spark-02": "127.0.0.1"},
    }
]


@pytest.mark.parametrize("text", BROKEN[:4])
def test_an_end_is_read_whatever_ip_and_the_kernel_say(machine: Machine, text: str) -> None:
    machine.answer("ip", stdout=text)
    for path in ("proc/uptime", "sys/class/net/enp1s0f0np0/carrier_changes"):
        (machine.root / path).parent.mkdir(parents=True, exist_ok=True)
        (machine.root / path).write_text(LONG)
    asked = phases.Asked(node="spark-01", nodes=["spark-01", "spark-02"], rails=RAILS, ports=[12000, 12001])
    place = link.Place(machine, machine.root)
    found = phases.look(place, asked)
    assert "broken" not in found
    assert found["read"]["unread"]["ip -j address"]
    assert found["read"]["uptime_s"] == 0
    assert found["read"]["functions"][0]["exists"] is False
    assert phases.end(place, asked)["after"] == {"counters": {}, "carrier_changes": {}}


@pytest.mark.parametrize("text", ["", "{", "[]", "7", DEEP, '{"gbps": "x"}', '{"gbps": null}', '{"gbps": 1}', LONG])
def test_a_sender_without_a_report_is_a_failure_with_a_name(machine: Machine, text: str) -> None:
    machine.answer("/usr/bin/python3", stdout=text)
    place = link.Place(machine, machine.root)
    leg = Leg("tcp", "spark-01", "spark-02", 0, 1)
    (lane,) = link.lanes_of(leg, "spark-01", RAILS, (12000, 12001))
    stream = link.stream_of(place, lane, said(text), 1.0, 2.0)
    assert stream.failure is not None
    assert (stream.failure.kind, stream.gbps) == ("no_result", None)
    good = link.stream_of(place, lane, said('{"gbps": 1, "began": 2, "ended": 3}'), 1.0, 2.0)
    assert (good.failure, good.gbps, good.began) == (None, 1.0, 2.0)


@pytest.mark.parametrize("text", ["[]", "", DEEP, '{"listening": [1]}', "7", "{"])
def test_a_keeper_without_a_status_is_a_finding(machine: Machine, text: str) -> None:
    place = link.Place(machine, machine.root)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def start(argv: Sequence[str]) -> Completed:
        (place.folder / "status.json").write_text(text)
        return said()

    machine.answer("systemd-run", to=start)
    leg = Leg("tcp", "spark-02", "spark-01", 0, 1)
    _, found = link.listen(place, "spark-01", RAILS, [leg], (12000, 12001), clock=lambda: now[0], sleep=sleep)
    assert [item.code for item in found] == ["LINK_LISTENER_FAILED"]


@pytest.mark.parametrize("text", [b"SSH-2.0-OpenSSH_9.6\r\n", b"[" * 70_000, b'{"bytes": "many"}', b"7\n"])
def test_another_program_on_the_port_is_named(text: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                while connection.recv(65536):
                    pass
                connection.sendall(text)

        answering = threading.Thread(target=answer)
        answering.start()
        port = str(server.getsockname()[1])
        done = run([sys.executable, "-I", tcp.__file__, "send", "127.0.0.1", "127.0.0.1", port, "0.1"])
        answering.join()
    failure = link.failure_of(done, over_tcp=True)
    assert failure is not None
    assert failure.kind == "wrong_peer", done.stderr
