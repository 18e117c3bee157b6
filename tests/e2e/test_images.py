"""An image from one node's Docker to the other's by the play: both stores, what is lacking, killed and repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from bench.images import image

from .virtual_pair import PROJECT, VirtualPair

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

HEAD, WORKER, CLUSTER = "spark-01", "spark-02", "bare"
PLAY = "tests/e2e/images.yml"
NAME = "spark-lab/vllm-cpu:0.32.0"
SMALL, LARGE = (8, 8, 4, 1), (64, 300, 64, 4)


@pytest.fixture(scope="module")
def pair(bare_pair: VirtualPair) -> VirtualPair:
    outcome = bare_pair.play("tests/e2e/fabric_alone.yml")
    assert outcome.rc == 0, outcome.output[-6000:]
    return bare_pair


def use(pair: VirtualPair, **stores: str) -> None:
    for node, store in {HEAD: stores["head"], WORKER: stores["worker"]}.items():
        settings = json.dumps({"features": {"containerd-snapshotter": store == "containerd"}})
        pair.sh(
            node,
            "systemctl stop docker.socket docker; mkdir -p /etc/docker;"
            f"echo '{settings}' > /etc/docker/daemon.json; systemctl start docker;"
            "docker image ls -q | sort -u | xargs -r docker image rm -f; docker image prune -af",
        )


def plant(pair: VirtualPair, node: str, *seeds: int, layers_mib: tuple[int, ...] = SMALL) -> None:
    argv = [sys.executable, "-m", "lab", "--machines", pair.machines, "exec", node, "docker", "load"]
    subprocess.run(argv, cwd=PROJECT, input=image(NAME, seeds, layers_mib), check=True, capture_output=True)


def inspected(pair: VirtualPair, node: str) -> dict[str, Any]:
    (found,) = json.loads(pair.sh(node, f"docker image inspect {NAME}"))
    return dict(found)


def measured(outcome: Any) -> dict[str, Any]:
    by_node = outcome.result(CLUSTER)["measurements"]
    return next(values for values in by_node.values() if "image_copy_bytes" in values)


@pytest.mark.parametrize(
    ("head", "worker"),
    [
        ("classic", "classic"),
        ("containerd", "containerd"),
        ("classic", "containerd"),
        ("containerd", "classic"),
    ],
)
def test_from_store_to_store(pair: VirtualPair, head: str, worker: str) -> None:
    use(pair, head=head, worker=worker)
    plant(pair, HEAD, 1, 2, 3, 4)
    plant(pair, WORKER, 1, 2, 3, 9)
    outcome = pair.play(PLAY, model="lab-tiny")
    assert outcome.rc == 0, outcome.output[-6000:]
    assert "IMAGE_VERIFIED" in outcome.codes(CLUSTER)
    here, there = inspected(pair, HEAD), inspected(pair, WORKER)
    assert here["RootFS"] == there["RootFS"]
    assert (here["RepoDigests"] == there["RepoDigests"]) is (head == worker)
    # The top layer alone went over, and nothing of the way is left behind.
    if head == worker:
        assert measured(outcome)["image_copy_bytes"] < 4 << 20
    assert "127.0.0.1" not in pair.sh(WORKER, "docker image ls --digests")
    again = pair.play(PLAY, model="lab-tiny")
    assert (again.rc, sum(again.changed.values())) == (0, 0), again.output[-6000:]


@pytest.mark.parametrize("store", ["classic", "containerd"])
@pytest.mark.parametrize("victim", [HEAD, WORKER])
def test_whoever_is_killed_the_same_command_ends_well(pair: VirtualPair, store: str, victim: str) -> None:
    use(pair, head=store, worker=store)
    plant(pair, HEAD, 1, 2, 3, 4, layers_mib=LARGE)
    environment = {**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "LC_ALL": "C.UTF-8"}
    argv = ["ansible-playbook", "-i", str(pair.inventory), PLAY, "-e", "model=lab-tiny"]
    play = subprocess.Popen(argv, cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL)
    ends = time.monotonic() + 120
    status = 'python3 -c \'import json; print(json.load(open("/run/spark-cluster/jobs/image-fetch.json"))'
    while int(pair.sh(WORKER, f'{status}["progress"]["done_bytes"])\' 2>/dev/null || echo 0')) < 20_000_000:
        assert play.poll() is None
        assert time.monotonic() < ends
    if victim == WORKER:
        pair.sh(WORKER, "systemctl kill -s KILL spark-job-image-fetch.service")
    else:
        pair.sh(HEAD, "systemctl restart docker")
    play.wait(300)
    outcome = pair.play(PLAY, model="lab-tiny")
    assert outcome.rc == 0, outcome.output[-6000:]
    assert inspected(pair, HEAD)["RootFS"] == inspected(pair, WORKER)["RootFS"]
    assert "127.0.0.1" not in pair.sh(WORKER, "docker image ls --digests")
    assert not pair.sh(WORKER, "ls /var/lib/docker/tmp").strip()
