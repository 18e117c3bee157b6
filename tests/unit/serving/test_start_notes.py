"""What a start finds and goes on with reaches the play that started it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from ansible.module_utils.spark.findings import finding
from ansible.module_utils.spark.gids import Resolved, drift

LIBRARY = Path(__file__).resolve().parents[3] / "library"


def test_a_drift_of_the_start_is_a_finding_of_the_play() -> None:
    spec = importlib.util.spec_from_file_location("rank_start", LIBRARY / "rank_start.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    now = Resolved(0, "enp1s0f0np0", "rocep1s0f0", 1, 4, "0000:...:c0a8:c80c", "192.168.200.12")
    moved = drift([{"rdma_device": "rocep1s0f0", "index": 3}], [now], "spark-01")
    refused = finding("GID_MISSING", node="spark-01", found="", expected="", netdev="x", address="y")
    record = {"findings": [item.as_dict() for item in (*moved, refused)]}
    assert module.noticed({"start": record}) == moved, "what is fatal never started"
    assert module.noticed({"start": {}}) == []
