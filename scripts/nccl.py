"""Run the all-reduce with real NCCL on this machine's GPUs, two ranks as if on two nodes, and judge it.

    python3 scripts/nccl.py [--one-host] [--kill] [--json FILE]

One GPU is enough: NCCL takes ranks with different NCCL_HOSTID for ranks of different hosts, and goes over the network
between them. Two ranks on one GPU take turns, so their times mean nothing; with two GPUs each rank has its own. With
--one-host they are what they are, and NCCL goes over NVLink or shared memory. Needs PyTorch with CUDA and nothing else:
a stand-in for Docker's client starts the program, everything between the job and the verdict is what runs on a node.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "module_utils"))

from spark import bundle, collective, collective_job  # noqa: E402
from spark.findings import Finding, render  # noqa: E402
from spark.jobs import JobFailedError, Reporter  # noqa: E402
from spark.rank import Place  # noqa: E402

PROGRAM = PROJECT / "in_container" / "allreduce.py"
NODES = ("spark-01", "spark-02")
IMAGE = [{"Id": "sha256:0", "RepoDigests": [], "RootFS": {"Layers": []}, "Architecture": "any"}]
# Becomes the program where Docker would start a container, with NCCL's log where the node's folder is.
DOCKER = """#!{python}
import os, sys
if sys.argv[1] == "run":
    rest = sys.argv[sys.argv.index({script!r}) + 1 :]
    volume = next(part for part in sys.argv if part.endswith(":" + {inside!r}))
    os.environ["NCCL_DEBUG_FILE"] = os.environ["ROOT_OF_THE_NODE"] + volume.split(":")[0] + "/" + {log!r}
    os.execv(sys.executable, [sys.executable, {program!r}, *rest])
if sys.argv[1:3] == ["image", "inspect"]:
    print({image!r})
if sys.argv[1:3] == ["container", "inspect"]:
    sys.exit("No such container: spark-rank")
"""


def gpus() -> int:
    if shutil.which("nvidia-smi") is None:
        return 0
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def stand_in(folder: Path) -> None:
    folder.mkdir()
    text = DOCKER.format(
        python=sys.executable,
        script=collective.SCRIPT,
        inside=collective.IN_CONTAINER,
        log=collective.NCCL_LOG,
        program=str(PROGRAM),
        image=json.dumps(IMAGE),
    )
    (folder / "docker").write_text(text)
    (folder / "docker").chmod(0o755)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def node(root: Path) -> Place:
    place = Place(root=root)
    program = PROGRAM.read_bytes()
    manifest = bundle.render_manifest({bundle.ALLREDUCE: hashlib.sha256(program).hexdigest()})
    for path, content in ((bundle.ALLREDUCE, program), (bundle.MANIFEST, manifest)):
        place.path(path).parent.mkdir(parents=True, exist_ok=True)
        place.path(path).write_bytes(content)
    place.path("/proc").mkdir()
    place.path("/proc/meminfo").write_bytes(Path("/proc/meminfo").read_bytes())
    return place


def spec(rank: int, root: Path, asked: argparse.Namespace) -> dict[str, Any]:
    name = NODES[rank]
    variables = {"CUDA_VISIBLE_DEVICES": str(rank % gpus()), "ROOT_OF_THE_NODE": str(root)}
    variables |= {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    if not asked.one_host:
        variables |= {"NCCL_HOSTID": name, "NCCL_SOCKET_IFNAME": "=lo"}
    return {
        "plan": {
            "node": name,
            "rank": rank,
            "role": "worker" if rank else "head",
            "transport": "rdma",
            "rails": [],
            "resolve": {"gids": []},
            "image": {"reference": "none"},
            "config_sha256": "",
            "argv": ["docker", "run", "--entrypoint", "vllm", "none"],
        },
        "environment": [f"{key}={value}" for key, value in variables.items()],
        "nodes": len(NODES),
        "master": "127.0.0.1",
        "port": 29511,
        "backend": "nccl",
        "sizes": collective.sizes([], 64 * collective.MIB),
        "calls": 10**6 if asked.kill else 200,
        "seconds": 8.0 if asked.kill else 1.0,
        "join_s": 120.0,
        "silence_s": 20.0,
        "while_serving": False,
    }


def run(asked: argparse.Namespace, scratch: Path) -> tuple[list[dict[str, Any]], dict[str, tuple[Finding, ...]]]:
    reports: dict[str, dict[str, Any]] = {}
    failed: dict[str, tuple[Finding, ...]] = {}

    def one(rank: int) -> None:
        name, root = NODES[rank], scratch / NODES[rank]
        status: dict[str, Any] = {"node": name, "progress": {}, "findings": [], "measurements": {}}
        reporter = Reporter(scratch / f"{name}.json", status)
        try:
            reports[name] = collective_job.collective_job(spec(rank, root, asked), reporter, node(root))
        except JobFailedError as error:
            failed[name] = error.findings
            print(f"{name} ended {time.monotonic() - began:.1f} s after the start", flush=True)

    began = time.monotonic()
    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(NODES))]
    for thread in threads:
        thread.start()
    if asked.kill:
        kill(scratch)
    for thread in threads:
        thread.join()
    return [reports[name] for name in NODES if name in reports], failed


def kill(scratch: Path) -> None:
    """End rank 1 in the middle of its first size."""
    status = scratch / f"{NODES[1]}.json"
    until = time.monotonic() + 120
    while not (status.exists() and "warming up" in status.read_text()):
        if time.monotonic() > until:
            return
        time.sleep(0.2)
    time.sleep(3)
    argument = f"\0{PROGRAM}\0--rank\x001\0".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and argument in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
                print(f"killed rank 1, process {entry.name}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one-host", action="store_true", help="leave NCCL the way inside the machine")
    parser.add_argument("--kill", action="store_true", help="kill a rank and see the other one end")
    parser.add_argument("--json", type=Path, help="write the measurement there")
    asked = parser.parse_args()
    if gpus() < (len(NODES) if asked.one_host else 1):
        parser.error("--one-host needs a GPU for each rank" if asked.one_host else "this machine has no GPU")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        stand_in(scratch / "bin")
        reports, failed = run(asked, scratch)
    for findings in failed.values():
        print("\n".join(map(render, findings)))
    if failed:
        return 0 if asked.kill else 1
    serving = {
        "model": "none",
        "expected": [],
        "collective": {"activations": [], "calls_per_token": None, "calls_source": ""},
    }
    plan = {"serving": serving, "head": NODES[0], "transport": "tcp"}
    measurement, _found = collective.judge(plan, reports, None, slow_factor=2)
    print("\n".join(collective.summary_lines(measurement)))
    print("Judged as if RDMA were planned:")
    for report in reports:
        found = collective.judge_rank(report, "rdma")
        print("\n".join(map(render, found)) or f"{report['node']}: nothing")
    if asked.json:
        asked.json.write_text(json.dumps(measurement, indent=1) + "\n")
    return 0 if all(row["correct"] for row in measurement["sizes"]) else 1


if __name__ == "__main__":
    sys.exit(main())
