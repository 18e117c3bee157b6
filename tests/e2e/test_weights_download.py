"""Weights from a double of the hub, by the hub's own client inside the real engine's image."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hub_double import COMMIT, REPOSITORY

from .virtual_pair import PROJECT, VirtualPair

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

HEAD, CLUSTER = "spark-01", "lab"
PLAY = "tests/e2e/images.yml"
PORT = 18411
TOKEN = "hf_onlyforthisdouble"


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    (tmp_path / "lab-hub.yml").write_text(
        "---\nschema: 1\nextends: lab-tiny\nname: lab-hub\ntitle: From the hub\n"
        f"weights:\n  folder: hub-tiny\n  repository: {REPOSITORY}\n  revision: {COMMIT}\n"
    )
    return tmp_path


@pytest.fixture
def hub(container_pair: VirtualPair) -> VirtualPair:
    pair = container_pair
    argv = [
        sys.executable,
        "-m",
        "lab",
        "--machines",
        pair.machines,
        "exec",
        HEAD,
        "sh",
        "-c",
        "cat > /root/hub_double.py",
    ]
    double = (PROJECT / "tests/hub_double.py").read_bytes()
    subprocess.run(argv, cwd=PROJECT, input=double, check=True, capture_output=True)
    command = f"/usr/bin/python3 /root/hub_double.py {PORT} /home/spark/models/lab-tiny {TOKEN}"
    pair.sh(HEAD, f"systemd-run --quiet --collect --unit=hub-double {command}")
    pair.sh(HEAD, "mkdir -p -m 755 /etc/spark-cluster; rm -rf /home/spark/models/hub-tiny")
    return pair


def test_gated_at_first_then_with_a_login(hub: VirtualPair, recipes: Path) -> None:
    asked: dict[str, Any] = {
        "model": "lab-hub",
        "spark_models_path": [str(recipes)],
        "weights_download": True,
        "hub_endpoint": f"http://127.0.0.1:{PORT}",
    }
    try:
        refused = hub.play(PLAY, **asked)
        assert refused.rc != 0
        assert "HUB_DENIED" in refused.codes(CLUSTER)
        hub.sh(HEAD, f"umask 077; echo {TOKEN} > /etc/spark-cluster/hub-login")
        outcome = hub.play(PLAY, **asked, hub_token_file="/etc/spark-cluster/hub-login")
        assert outcome.rc == 0, outcome.output[-6000:]
        assert "HUB_FETCHED" in outcome.codes(CLUSTER)
        hub.sh(HEAD, "cd /home/spark/models && diff -r --exclude=.cache lab-tiny hub-tiny")
        assert hub.sh(HEAD, "stat -c %U /home/spark/models/hub-tiny/config.json").strip() == "spark"
        shown = hub.sh(HEAD, "journalctl --no-pager -u 'spark-job-*'; cat /run/spark-cluster/jobs/*.json")
        assert TOKEN not in shown + outcome.output
        again = hub.play(PLAY, **asked)
        assert again.rc == 0, again.output[-6000:]
    finally:
        hub.sh(HEAD, "systemctl stop hub-double; rm -rf /home/spark/models/hub-tiny /etc/spark-cluster/hub-login")
