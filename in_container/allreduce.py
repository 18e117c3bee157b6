"""Measure all-reduce between the ranks of a cluster, from inside the image and the environment that serve the model.

One process per node, started on all of them: allreduce.py --rank R --nodes N --master ADDRESS. It needs PyTorch and
nothing else. Each line that it prints about itself is one JSON object with the key "allreduce"; the last one is the
result. It ends by itself when it makes no progress, so that a rank whose peer has died is not left behind.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

KIB, MIB = 2**10, 2**20
STALLED = 75  # EX_TEMPFAIL
# Activations are reduced in 16 bits, whatever the format of the weights is.
DTYPE, DTYPE_BYTES = "bfloat16", 2
WARM_UP = 5
# Sizes at which launching a call may take longer than the call.
GRAPH_BYTES = MIB
GRAPH_CALLS, GRAPH_REPLAYS = 20, 30
# One buffer of the largest size, and what the check of its contents takes.
CHECK_BYTES = 4 * MIB


def doubling(first: int, last: int) -> list[int]:
    return [first << power for power in range((last // first).bit_length())]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--master", required=True, help="address of rank 0 on the first rail")
    parser.add_argument("--port", type=int, default=29511, help="port on which rank 0 meets the others")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl")
    parser.add_argument("--bytes", default="", help="sizes, separated by commas; 8 KiB to 64 MiB in doublings if empty")
    parser.add_argument("--cap", type=int, default=128 * MIB, help="most memory for tensors, in bytes")
    parser.add_argument("--calls", type=int, default=200, help="most timed calls of one size")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for the timed calls of one size")
    parser.add_argument("--join", type=float, default=180, help="how long to wait for the other ranks, in seconds")
    parser.add_argument("--silence", type=float, default=60, help="how long a step may take before it counts as stuck")
    parser.add_argument("--engine", default="vllm", help="program whose Python has PyTorch, where python3 has none")
    return parser.parse_args(argv)


def sizes_of(text: str) -> list[int]:
    sizes = sorted({int(part) for part in text.split(",")}) if text else doubling(8 * KIB, 64 * MIB)
    wrong = [size for size in sizes if size <= 0 or size % DTYPE_BYTES]
    if wrong:
        raise SystemExit(f"allreduce: {wrong[0]} bytes are no whole number of {DTYPE} values")
    return sizes


def interpreter(engine: str) -> str | None:
    """The Python that the engine's program names in its first line."""
    program = shutil.which(engine)
    if program is None:
        return None
    with open(program, "rb") as stream:
        words = stream.readline(512).decode("utf-8", "replace").strip().removeprefix("#!").split()
    path = words[-1] if words else ""
    return path if path.startswith("/") and os.access(path, os.X_OK) and "python" in path else None


def load_torch(engine: str) -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        other = interpreter(engine)
        if error.name != "torch" or other is None or os.environ.get("ALLREDUCE_AGAIN"):
            raise
        os.environ["ALLREDUCE_AGAIN"] = "1"
        os.execv(other, [other, *sys.argv])  # noqa: S606 - it becomes the engine's own Python
    return torch


def say(what: str, **values: Any) -> None:
    print(json.dumps({"allreduce": what, **values}), flush=True)


class Watchdog:
    """Ends this process when no step was finished for too long: a collective without its peer never returns."""

    def __init__(self, limit_s: float) -> None:
        self.step, self.limit_s, self.since = "start", limit_s, time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def enter(self, step: str, limit_s: float) -> None:
        self.since = time.monotonic()
        self.step, self.limit_s = step, limit_s

    def _watch(self) -> None:
        while (silent := time.monotonic() - self.since) < self.limit_s:
            time.sleep(0.5)
        say("stalled", step=self.step, seconds=round(silent, 1))
        os._exit(STALLED)


class Ring:
    """The process group and the device, as far as measuring needs them."""

    def __init__(self, torch: Any, asked: argparse.Namespace) -> None:
        self.torch, self.dist = torch, torch.distributed
        self.rank, self.nodes = asked.rank, asked.nodes
        self.cuda = asked.backend == "nccl"
        self.device = torch.device("cuda:0" if self.cuda else "cpu")
        self.dtype = getattr(torch, DTYPE)

    def join(self, asked: argparse.Namespace) -> None:
        host = f"[{asked.master}]" if ":" in asked.master else asked.master
        self.dist.init_process_group(
            asked.backend,
            init_method=f"tcp://{host}:{asked.port}",
            rank=self.rank,
            world_size=self.nodes,
            timeout=timedelta(seconds=asked.join),
        )
        # The group's connections are made by its first collective.
        self.dist.all_reduce(self.torch.zeros(1, device=self.device))
        self.settle()

    def settle(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def correct(self, buffer: Any) -> bool:
        """Whether the sum over all ranks is right, in every element. Small whole numbers are exact in 16 bits."""
        step = CHECK_BYTES // 8
        pattern = (self.torch.arange(step, device=self.device) % 4).to(self.dtype)
        for begin in range(0, buffer.numel(), step):
            part = buffer[begin : begin + step]
            part.copy_(pattern[: part.numel()])
        buffer.add_(self.rank % 2)
        self.dist.all_reduce(buffer)
        pattern.mul_(self.nodes).add_(self.nodes // 2)
        wrong = self.torch.zeros((), dtype=self.torch.bool, device=self.device)
        for begin in range(0, buffer.numel(), step):
            part = buffer[begin : begin + step]
            wrong |= (part != pattern[: part.numel()]).any()
        return not bool(wrong.item())

    def timed(self, buffer: Any, calls: int) -> list[float]:
        """Time of each call in microseconds.

        On a GPU the calls are queued without a pause and timed on the stream, between the ends of neighbours: as the
        engine issues them, without the way back to Python.
        """
        self.dist.all_reduce(buffer)
        self.settle()
        if not self.cuda:
            return [self._clocked(lambda: self.dist.all_reduce(buffer)) for _ in range(calls)]
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
        events[0].record()
        for event in events[1:]:
            self.dist.all_reduce(buffer)
            event.record()
        self.torch.cuda.synchronize()
        return [1000 * one.elapsed_time(other) for one, other in zip(events, events[1:])]  # noqa: B905, RUF007

    @staticmethod
    def _clocked(call: Callable[[], Any]) -> float:
        began = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - began) / 1000

    def graphed(self, buffer: Any) -> tuple[float | None, str]:
        """Time of one call in a CUDA graph, as engines replay a step, or why there is none.

        Where launching a call takes longer than the call itself, this is the time without the launch.
        """
        buffer.zero_()
        graph, why = self.torch.cuda.CUDAGraph(), ""
        try:
            # The group's own thread may query events meanwhile, which must not end the capture.
            with self.torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for _ in range(GRAPH_CALLS):
                    self.dist.all_reduce(buffer)
        except RuntimeError as error:
            why = str(error).splitlines()[0][:200]
        # Replaying it on some of the ranks only would leave them waiting.
        if self.least(0 if why else 1) == 0:
            return None, why or "another rank could not capture it"
        samples = []
        for _ in range(GRAPH_REPLAYS):
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            samples.append(1000 * begin.elapsed_time(end) / GRAPH_CALLS)
        return round(statistics.median(samples), 2), ""

    def least(self, number: int) -> int:
        shared = self.torch.tensor([number], dtype=self.torch.int64, device=self.device)
        self.dist.all_reduce(shared, op=self.dist.ReduceOp.MIN)
        return int(shared.item())

    def agreed(self, number: int) -> int:
        """Rank 0's number, on every rank: a different count of calls would leave one of them waiting."""
        shared = self.torch.tensor([number], dtype=self.torch.int64, device=self.device)
        self.dist.broadcast(shared, src=0)
        return int(shared.item())


def measure(ring: Ring, whole: Any, size: int, asked: argparse.Namespace) -> dict[str, Any]:
    buffer = whole[: size // DTYPE_BYTES]
    right = ring.correct(buffer)
    # Zeros stay zeros, however often they are added.
    buffer.zero_()
    warm = ring.timed(buffer, WARM_UP)
    calls = ring.agreed(max(5, min(asked.calls, int(1e6 * asked.seconds / max(1.0, statistics.median(warm))))))
    samples = sorted(ring.timed(buffer, calls))
    right = ring.correct(buffer) and right
    median = statistics.median(samples)
    factor = 2 * (ring.nodes - 1) / ring.nodes
    return {
        "bytes": size,
        "calls": calls,
        "median_us": round(median, 2),
        "p99_us": round(samples[math.ceil(0.99 * len(samples)) - 1], 2),
        "min_us": round(samples[0], 2),
        "bus_gbps": round(8 * size * factor / median / 1000, 4) if ring.nodes > 1 else None,
        "correct": right,
    }


def memory(ring: Ring, cap: int, free_before: int | None) -> dict[str, int | None]:
    cuda = ring.torch.cuda
    return {
        "tensor_cap_bytes": cap,
        "tensor_peak_bytes": cuda.max_memory_allocated() if ring.cuda else None,
        # Context, kernels and the buffers of NCCL as well.
        "device_used_bytes": max(0, free_before - cuda.mem_get_info()[0]) if free_before is not None else None,
        "process_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    sizes = sizes_of(asked.bytes)
    needed = sizes[-1] + CHECK_BYTES
    if needed > asked.cap:
        raise SystemExit(f"allreduce: {sizes[-1]} bytes need {needed} bytes for tensors, and the cap is {asked.cap}")
    watchdog = Watchdog(asked.join)
    torch = load_torch(asked.engine)
    ring = Ring(torch, asked)
    free_before = None
    if ring.cuda:
        free_before, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(min(1.0, asked.cap / total))
    say("ready", torch=torch.__version__, pid=os.getpid())
    watchdog.enter("waiting for the other ranks", asked.join + asked.silence)
    ring.join(asked)
    say("joined", rank=ring.rank, nodes=ring.nodes)
    whole = torch.zeros(sizes[-1] // DTYPE_BYTES, dtype=ring.dtype, device=ring.device)
    watchdog.enter("warming up", asked.silence)
    # Clocks, caches and connections come to rest; the smallest sizes matter most and are the first.
    measure(ring, whole, sizes[0], asked)
    measured = []
    for size in sizes:
        watchdog.enter(f"all-reduce of {size} bytes", asked.silence)
        measured.append(measure(ring, whole, size, asked))
        say("size", **measured[-1])
    watchdog.enter("leaving", asked.silence)
    ring.agreed(0)
    say(
        "result",
        schema=1,
        rank=ring.rank,
        nodes=ring.nodes,
        backend=asked.backend,
        torch=torch.__version__,
        nccl=".".join(map(str, torch.cuda.nccl.version())) if ring.cuda else None,
        device=torch.cuda.get_device_name(0) if ring.cuda else "cpu",
        dtype=DTYPE,
        sizes=measured,
        memory=memory(ring, asked.cap, free_before),
    )
    if ring.cuda:
        # Last, because it can fail where everything else works: the result stands without it.
        in_graph(ring, whole, sizes, watchdog, asked.silence)
    ring.dist.destroy_process_group()
    return 0


def in_graph(ring: Ring, whole: Any, sizes: Sequence[int], watchdog: Watchdog, silence_s: float) -> None:
    found, why = {}, ""
    for size in sizes:
        if size <= GRAPH_BYTES and not why:
            watchdog.enter(f"all-reduce of {size} bytes in a CUDA graph", silence_s)
            took, why = ring.graphed(whole[: size // DTYPE_BYTES])
            found |= {str(size): took} if took is not None else {}
    watchdog.enter("leaving", silence_s)
    say("graph", microseconds=found, why=why)


if __name__ == "__main__":
    sys.exit(main())
