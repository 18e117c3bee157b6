"""The bundle: complete, and without anything that names a person, a place or a secret."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import pytest
from ansible.module_utils.spark.diagnose.causes import diagnose
from ansible.module_utils.spark.diagnose.redact import Redactor
from ansible.module_utils.spark.diagnose.report import archive, evidence_of, files, markdown, redactor, summary
from ansible.module_utils.spark.diagnose.screen import screen_lines

from .pair import NODES, evidence

FABRIC = ("192.168.200.0/24", "192.168.201.0/24")
# What was planted, and a part of it that must not be left.
PLANTED = {
    "a Hugging Face token": ("export HF_TOKEN=hf_abcdefghijklmnopqrstuvwx", "hf_abcdef"),
    "an API key as an option": ("vllm serve m --api-key sk-0123456789abcdefghij", "sk-0123"),
    "a password": ("become_password='correct horse battery'", "correct horse"),
    "a private key": (
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----",
        "b3Blbn",
    ),
    "a public key": (f"ssh-ed25519 {'A' * 68} me@desk", "AAAAAAAA"),
    "a bearer token": ("Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30", "eyJhbGci"),
    "a login in a URL": ("https://me:hunter2@example.org/x", "hunter2"),
    "a public address": ("inet 203.0.113.77/24 scope global", "203.0.113.77"),
    "a management address": ("ssh from 10.1.2.3 port 22", "10.1.2.3"),
    "an IPv6 address": ("inet6 2001:db8:85a3::8a2e:370:7334/64", "370:7334"),
    "a link-local address": ("fe80::5054:ff:febb:1%enp1s0f0np0", "febb"),
    "a whole IPv6 GID": ("0: fe80:0000:0000:0000:5054:00ff:febb:0001 RoCE v2", "febb:0001"),
    "a GID of a foreign address": ("2: 0000:0000:0000:0000:0000:ffff:0a01:0203 RoCE v2", "0a01:0203"),
    "a GID as perftest prints it": (" GID: 254:128:00:00:00:00:00:00:80:84:00:255:254:187:00:01", "254:187:00:01"),
    "a MAC": ("link/ether 4c:bb:47:2c:11:09 brd", "2c:11:09"),
    "the cable's serial number": ("\tVendor SN                : MT2345X00123", "MT2345X00123"),
    "the card's serial number": ("\t[SN] Serial number: MT2312T01234", "MT2312T01234"),
    "a device serial number": ("Capabilities: [1c0] Device Serial Number 4c-bb-47-03-00-2c-11-09", "03-00-2c"),
    "a node GUID": ("node_guid: 4cbb:4703:002c:1109", "002c:1109"),
    "a UUID": ("GPU-9a3b0f6e-1111-2222-3333-444455556666", "444455556666"),
    "a mail address": ("by jane.doe@example.com", "jane.doe"),
    "a token in JSON": ('{"HF_TOKEN": "s3cr3t"}', "s3cr3t"),
    "an API key in YAML": ("api_key: abcdef012345", "abcdef"),
    "a password in YAML": ("  password: hunter2", "hunter2"),
    "an API key in a header": ("X-Api-Key: v4lue", "v4lue"),
    "a short token after its name": ("--env HF_TOKEN hf_short1", "hf_short"),
    "an address at the end of a sentence": ("No route to 203.0.113.7.", "203.0.113.7"),
    "a private key that was cut": ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAA", "b3Blbn"),
    "a GitHub token": ("github_pat_11ABCDEFG0123456789", "11ABCDEFG"),
    "a GitLab token": ("glpat-abcdefghij0123456789", "abcdefghij"),
    "a long JSON web token": (f"eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0.{'s' * 342}", "sss"),
    "a JSON web token": ("cookie eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "eyJzdWIi"),
    "a key of a security key": (f"sk-ssh-ed25519@openssh.com {'A' * 68}", "AAAAAAAA"),
    "a MAC with dashes": ("4c-bb-47-01-02-03 is up", "01-02-03"),
    "an interface named by its MAC": ("enx4cbb47010203: up", "47010203"),
    "a serial number of udev": ("ID_SERIAL_SHORT=XYZ12345", "XYZ12345"),
    "an IPv6 address after a colon": ("addr:2001:db8::7", "db8::7"),
    "a home": ("/home/jane/models", "jane"),
    "a bare MAC": ("mac 3c6d66aabbcc", "66aabbcc"),
    "a bare MAC without letters": ("perm_addr=001122334455", "22334455"),
    "a MAC in capitals": ("MAC: 3C6D66AABBCC up", "66AABBCC"),
    "a MAC in a file's name": ("nm-3c6d66aabbcc.nmconnection", "66aabbcc"),
    "a MAC as switches write it": ("learned 3c6d.66aa.bbcc on port 3", "66aa.bbcc"),
    "an EUI-64": ("gid 3e6d66fffeaabbcc", "aabbcc"),
    "an EUI-64 with dashes": ("EUI-64 3e-6d-66-ff-fe-aa-bb-cc", "aa-bb-cc"),
    "an EUI-64 in words": ("interface id 3e6d:66ff:feaa:bbcc", "feaa:bbcc"),
    "a GID without colons": ("fe800000000000003e6d66fffeaabbcc", "aabbcc"),
    "the last half of a GID, as sysfs has GUIDs": ("3c6d:6603:00aa:bbcc", "00aa:bbcc"),
    "a GUID that mlx5 makes of a MAC": ("sys_image 0x3c6d660300aabbcc", "aabbcc"),
    "a hardware address of InfiniBand": (f"link/infiniband {'80:00:00:48:' * 4}3c:6d:66:aa", "66:aa"),
    "S/N": ("S/N: 1234567", "1234567"),
    "S/N without a colon": ("card S/N 1234567 of lot 7", "1234567"),
    "a number behind [SN]": ("\t[SN] 1523423001", "1523423001"),
    "SN": ("SN: 4423", "4423"),
    "sn in JSON": ('"vendor_sn": 4423,', "4423"),
    "a serial number that is one": ("Serial Number: 0123456789", "0123456789"),
    "a numeric serial in JSON": ("{'serial': 98765}", "98765"),
    "a numeric Vendor SN": ("Vendor SN                                 : 1523423001", "1523423001"),
    "a serial in a sentence": ("module with serial 1523423001 inserted", "1523423001"),
    "a serial number of USB": ("usb 1-1: SerialNumber: 000000000001", "000000000001"),
    "an asset tag": ("Asset Tag: 77123", "77123"),
    "a GUID of an HCA": ("hca_guid: 3c6d660300aabbcc", "aabbcc"),
    "a cable's memory": ("0x00c0:\t\t4d 54 32 33 34 35 58 30", "32 33 34"),
    "a host name with its domain": ("jane-desktop.corp.example.com closed", "corp"),
    "a user in front of a node": ("john@spark-01: Permission denied (publickey).", "john"),
    "a user in front of a host": ("john@jane-desktop: Permission denied (publickey).", "john"),
    "a host name": ("Dec  1 jane-desktop kernel: x", "jane-desktop"),
}
KEPT = (
    "192.168.200.12 on enp1s0f0np0",
    "0000:0000:0000:0000:0000:ffff:c0a8:c80c RoCE v2",
    "GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:200:12",
    "mlx5_core 0000:01:00.0: 126.028 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x4 link)",
    "firmware-version: 28.45.4028 (NVD0000000087)",
    "Tue Dec  1 12:34:56 2026",
    "Version: 6.20, perftest 24.01.0+0.38-1build2",
    "127.0.0.1 and ::1",
    "Vendor PN : NJAAKK0006",
    "rx_bytes_phy: 123456789012",
    "tx_vport_rdma_unicast_bytes: 1844674407370955",
    "rx_packets_phy: 1234560300123456",
    "tx_mac_control_phy: 100000000007",
    "ghcr.io/a/b:0.1.1@sha256:a83948492cf13df455170fb42885f5ef4db54fefe0feff0f841ecbff464ac9d8",
    "image a83948492cf1, sha256:3c6d66aabbcc",
    "vllm-openai:nightly-8a728663c1c3eeace834a95f5654fa653cc1998c",
    "container 3c6d66aabbcc",
    "Linux 6.17.0-1032-nvidia-g3c6d66aabbcc",
    "01:00.0 and 0000:01:00.0 and 0002:01:00.1",
    "local address: LID 0000 QPN 0x0011 PSN 0x10f5c1 RKey 0x0016da VAddr 0x007f3c6d66aabb",
    "console on the serial port",
    "Serial number\nVendor rev: A3",
    "rx_sn_check: 5",
    "MT_0000000087",
)


def clean() -> Redactor:
    return Redactor(FABRIC, {"jane-desktop": "(host name of spark-01)"}, NODES)


IDENTITIES = {
    "serial": 98765,
    "serial_number": "X1",
    "sn": 7,
    "vendor_sn": "MT7",
    "machine_serial": 7.0,
    "mac": "3c6d66aabbcc",
    "perm_addr": "3c6d66aabbcc",
    "node_guid": 11,
    "board_id": "NVD7",
    "hostname": "jane",
    "hf_token": "x",
}
FIGURES = {
    "rx_bytes_phy": 123456789012,
    "tx_mac_control_phy": 7,
    "max_tokens": 4096,
    "speed_mbps": 200000,
    "gbps": 92.57,
    "serial": None,
    "carrier": True,
    "pci": "0000:01:00.0",
    "id": "sha256:" + "a8394849" * 8,
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_fields_of_a_document_that_name_a_machine_are_hidden_whatever_they_hold(name: str) -> None:
    assert clean().data({"at": [{name: IDENTITIES[name]}]}) == {"at": [{name: "(hidden)"}]}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_a_document_stay(name: str) -> None:
    assert clean().data({"at": [{name: FIGURES[name]}]}) == {"at": [{name: FIGURES[name]}]}


def test_a_field_that_is_named_by_a_mac() -> None:
    assert clean().data({"ethtool -m enx3c6d66aabbcc": "x"}) == {"ethtool -m enx(MAC)": "x"}


@pytest.mark.parametrize(("planted", "gone"), PLANTED.values(), ids=PLANTED)
def test_what_is_planted_is_gone(planted: str, gone: str) -> None:
    assert gone in planted
    assert gone not in clean()(f"before {planted}\nafter")
    assert "after" in clean()(f"before {planted}\nafter"), "the next line is left"


@pytest.mark.parametrize("text", KEPT)
def test_what_the_reader_needs_stays(text: str) -> None:
    assert clean()(text) == text


PLAN: dict[str, Any] = {
    "name": "pair_a",
    "transport": "rdma",
    "link_check": {"min_gbps": 170, "min_both_ways_gbps": 300},
    "rails": [{"rail": rail, "subnet": subnet} for rail, subnet in enumerate(FABRIC)],
    "nodes": [
        {"node": node, "role": "head", "rank": position, "management_address": f"203.0.113.{12 + position}"}
        for position, node in enumerate(NODES)
    ],
    "findings": [
        {"code": "FABRIC_SPEED_LOW", "severity": "warn", "node": "spark-01", "found": "seen from 203.0.113.12"}
    ],
}


def sick() -> dict[str, Any]:
    return evidence({"rates": {"write": [6.7, 6.7], "back": [6.7, 6.7], "loopback": {"spark-01": [11.4, 11.4]}}})


def test_no_file_of_a_bundle_holds_what_was_planted_anywhere_in_the_evidence() -> None:
    facts = {"spark-01": {"hostname": "jane-desktop"}}
    found = sick()
    every = "\n".join(planted for planted, _ in PLANTED.values())
    read = found["nodes"]["spark-01"]["read"]
    read["raw"]["ethtool -m enp1s0f0np0"] = every
    read["kernel_lines"] += every.splitlines()
    read["unread"]["tc"] = every
    found["runs"][0]["rails"][0].update(stdout=every, stderr=every)
    found["runs"][2]["skipped"] = every
    found["plan_findings"] = PLAN["findings"]
    read["functions"][0]["cable"]["serial"] = "planted-serial"
    told = diagnose(found)
    contents = files(told, found, markdown(told, found, {"at": "now"}), redactor(PLAN, facts))
    assert {"report.md", "evidence.json", "raw/spark-01/kernel.txt"} <= set(contents)
    for name, text in contents.items():
        for planted, (_, gone) in PLANTED.items():
            assert gone not in text, f"{planted} in {name}"
        assert "203.0.113" not in text, name
        assert "planted-serial" not in text, name
    assert "serial numbers, MACs and secrets are taken out" in contents["report.md"]
    assert json.loads(contents["evidence.json"])["state"] == "sick"
    assert "192.168.200.12" in contents["evidence.json"]


def test_nodes_that_are_named_by_their_address_or_domain_get_other_names() -> None:
    """In texts, fields and the names of files; names of the inventory without a domain stay, also as addresses."""
    nodes = [
        {"node": "spark-01", "rank": 0, "management_address": "spark-01"},
        {"node": "203.0.113.13", "rank": 1, "management_address": "203.0.113.13"},
        {"node": "c.corp.example", "rank": 2, "management_address": "198.51.100.7"},
    ]
    facts = {"spark-01": {"hostname": "spark-01.corp.example"}, "c.corp.example": {"hostname": "c3po.corp.example"}}
    made = redactor({**PLAN, "nodes": nodes}, facts)
    told = "203.0.113.13 and c.corp.example to spark-01.corp.example, me@c3po and me@spark-01"
    assert made(told) == "node-1 and node-2 to (host name of spark-01), user@(host name of node-2) and user@spark-01"
    assert made("198.51.100.7: refused") == "(management address of node-2): refused"
    found = json.loads(json.dumps(sick()).replace("spark-02", "c.corp.example"))
    diagnosis = diagnose(found)
    contents = files(diagnosis, found, markdown(diagnosis, found, {"at": "now"}), made)
    assert "raw/node-2/kernel.txt" in contents
    assert not [name for name, text in contents.items() if "corp.example" in name + text]


def test_the_report_says_what_was_found_and_what_helps() -> None:
    found = sick()
    told = diagnose(found)
    text = markdown(told, found, {"at": "2026-12-01"})
    first = text.index("1. **A ConnectX is in the degraded state")
    assert first < text.index("Reboot both Sparks")
    for part in (
        "known not to help: queue pair count",
        "settles it: Loopback on each node",
        "| write | spark-01 | spark-02 | enp1s0f0np0: 6.70, enP2p1s0f0np0: 6.70 | 13.40 |",
        "| spark-01 | enp1s0f0np0 | yes | 200000 | 1500 | 192.168.200.12 | 3 | 32 GT/s x4 |",
        "## Ruled out",
    ):
        assert part in text, part


def test_the_archive_belongs_to_nobody_and_unpacks_below_one_folder() -> None:
    packed = archive({"report.md": "x", "raw/spark-01/kernel.txt": "y"}, "diagnosis-pair_a", 1_700_000_000)
    with tarfile.open(fileobj=io.BytesIO(packed)) as opened:
        members = opened.getmembers()
    assert [item.name for item in members] == ["diagnosis-pair_a/raw/spark-01/kernel.txt", "diagnosis-pair_a/report.md"]
    assert {(item.uid, item.gid, item.uname, item.mode) for item in members} == {(0, 0, "", 0o644)}


def test_the_screen_has_the_causes_with_their_remedies() -> None:
    found = sick()
    lines = [f"{label:<10}{text}" for label, text in screen_lines(summary(diagnose(found), found))]
    assert len(lines) <= 40
    text = "\n".join(lines)
    assert "write spark-01 to spark-02: 6.70 + 6.70 = 13.40 Gb/s" in text
    assert "cause 1   certain: CAUSE_DEGRADED on spark-01" in text
    assert "known not to help: queue pair count" in text
    healthy = evidence({})
    assert ("cause", "none was found") in list(screen_lines(summary(diagnose(healthy), healthy)))


def test_evidence_is_gathered_from_what_the_phases_returned() -> None:
    whole = evidence({})
    nodes: dict[str, Any] = {
        "spark-01": {"look": {"read": whole["nodes"]["spark-01"]["read"], "runs": whole["runs"][:1]}, "run": None},
        "spark-02": {"look": None, "silent": "ssh timed out"},
    }
    facts = {"spark-01": {"kernel": "6.17", "gpu": {"driver_version": "580.1"}, "ssh_host_keys": ["ssh-ed25519 x"]}}
    made = evidence_of(PLAN, nodes, facts)
    assert made["nodes"]["spark-02"]["silent"] == "ssh timed out"
    assert made["nodes"]["spark-01"]["read"]["versions"]["GPU driver"] == "580.1"
    assert "ssh_host_keys" not in made["nodes"]["spark-01"]["facts"]
    broken = evidence_of(PLAN, {"spark-01": {"look": {"read": None, "broken": "KeyError: x"}}}, {})
    assert broken["nodes"]["spark-01"]["silent"] == "KeyError: x"
    assert diagnose(broken).causes
