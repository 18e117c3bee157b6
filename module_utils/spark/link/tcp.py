"""A plain TCP stream from one rail's address to another: for machines without RDMA devices, and to compare with it.

A copy of this file runs by itself on both nodes, so it imports nothing of this package.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import sys
import time
from typing import Any

CHUNK = 1 << 20
CONNECT_S = 10.0
# How long either side waits for the other one to move at all.
STALL_S = 20.0
MOST_ANSWER_BYTES = 64 << 10


class NotOurs(Exception):
    """Something else listens on the port."""


def receive(address: str, port: int, life_s: int) -> dict[str, Any]:
    """Take one connection, count its bytes, and report them to the sender. Ends by itself after ``life_s`` seconds."""
    signal.alarm(life_s)
    with socket.create_server((address, port), backlog=1) as server:
        connection, peer = server.accept()
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    received = 0
    with connection:
        connection.settimeout(STALL_S)
        began = time.time()
        while count := connection.recv_into(view):
            received += count
        report = {"bytes": received, "began": began, "ended": time.time(), "peer": peer[0]}
        connection.sendall(json.dumps(report).encode() + b"\n")
    return report


def send(source: str, address: str, port: int, seconds: float, start_at: float = 0.0) -> dict[str, Any]:
    """Send for ``seconds`` from the time ``start_at`` on, which all senders of a measurement share.

    The rate is what the receiver counted over the time until it had everything.
    """
    with socket.create_connection((address, port), timeout=CONNECT_S, source_address=(source, 0)) as connection:
        connection.settimeout(STALL_S)
        data = memoryview(bytes(CHUNK))
        time.sleep(max(0.0, min(STALL_S / 2, start_at - time.time())))
        began = time.time()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while len(answer) < MOST_ANSWER_BYTES and (chunk := connection.recv(4096)):
            answer += chunk
        ended = time.time()
    if not answer:
        raise ConnectionResetError("the receiver ended without a report")
    try:
        received = int(json.loads(answer)["bytes"])
    except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as wrong:
        raise NotOurs(f"what answered is no receiver of ours: {answer[:80]!r}") from wrong
    return {
        "bytes": received,
        "began": began,
        "ended": ended,
        "gbps": round(received * 8 / (ended - began) / 1e9, 6),
    }


def main(argv: list[str]) -> int:
    """One JSON line on standard output, or one line of reason on standard error."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    taking = commands.add_parser("receive")
    taking.add_argument("address")
    taking.add_argument("port", type=int)
    taking.add_argument("life_s", type=int)
    giving = commands.add_parser("send")
    giving.add_argument("source")
    giving.add_argument("address")
    giving.add_argument("port", type=int)
    giving.add_argument("seconds", type=float)
    giving.add_argument("start_at", type=float, nargs="?", default=0.0)
    asked = parser.parse_args(argv)
    try:
        if asked.command == "receive":
            report = receive(asked.address, asked.port, asked.life_s)
        else:
            report = send(asked.source, asked.address, asked.port, asked.seconds, asked.start_at)
    except (ConnectionRefusedError, socket.gaierror) as refused:
        print(f"no_server: {refused}", file=sys.stderr)
    except TimeoutError as late:
        print(f"timed_out: {late}", file=sys.stderr)
    except ConnectionError as lost:
        print(f"peer_lost: {lost}", file=sys.stderr)
    except NotOurs as other:
        print(f"wrong_peer: {other}", file=sys.stderr)
    except OSError as wrong:
        # EADDRINUSE, EHOSTUNREACH, ENETUNREACH
        kind = {98: "port_in_use", 113: "no_server", 101: "no_server"}.get(wrong.errno or 0, "unknown")
        print(f"{kind}: {wrong}", file=sys.stderr)
    else:
        print(json.dumps(report))
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
