"""Netplan's files by their bytes, and the interfaces that they claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.spark.parse import netplan

CASES = yaml.safe_load((Path(__file__).parent / "netplan.yml").read_text())
MACS = {"enp1s0f0np0": "52:54:00:aa:00:01", "enP2p1s0f0np0": "52:54:00:bb:00:01", "mgmt0": "52:54:00:cc:00:01"}


def content(case: dict[str, Any]) -> bytes:
    if "nul" in case:
        return bytes(case["nul"])
    return bytes.fromhex(case["bytes"]) if "bytes" in case else str(case["text"]).encode()


@pytest.mark.parametrize("case", CASES["classes"], ids=lambda case: case["name"])
def test_a_file_is_classed_by_its_bytes(case: dict[str, Any]) -> None:
    verdict = netplan.classify(f"/etc/netplan/{case['file']}", content(case), case["live"])
    assert verdict.kind == case["class"]
    if "error" in case:
        assert case["error"] in (verdict.error or "")
    else:
        assert verdict.error is None


@pytest.mark.parametrize("case", CASES["claims"], ids=lambda case: case["name"])
def test_claims(case: dict[str, Any]) -> None:
    document = netplan.parse(case["text"])
    assert sorted({name for claim in document.claims for name in claim.netdevs(MACS)}) == case["netdevs"]
    assert document.renderer == case["renderer"]


def test_the_valid_cases_are_valid_yaml() -> None:
    """A file that YAML accepts must never be called damaged."""
    for case in [*CASES["claims"], *(case for case in CASES["classes"] if case["class"] == "yaml")]:
        yaml.safe_load(case["text"])
        assert netplan.classify("/etc/netplan/a.yaml", case["text"].encode(), []).kind == "yaml"
