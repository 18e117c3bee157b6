"""Ports on the controller's loopback that lead into the management namespace of a pair.

    python -m lab.containers.forwarder NETNS LISTEN:ADDRESS:PORT ...

It listens where it is started and connects from inside NETNS: a socket stays in the namespace in which it was made.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWNET = 0x40000000
CHUNK = 1 << 16


def enter(namespace: str) -> None:
    # os.setns is new in Python 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(Path("/run/netns") / namespace, os.O_RDONLY)
    try:
        if libc.setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    finally:
        os.close(descriptor)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction; a half-closed connection stays open the other way."""
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except (ConnectionError, TimeoutError, OSError):
        writer.close()


async def serve(listener: socket.socket, address: str, port: int) -> None:
    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(address, port)
        except OSError:
            # A reset, as from a port where nobody listens, and not an orderly end.
            near: socket.socket = writer.get_extra_info("socket")
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        for side in (writer, far_writer):
            side.close()
            with contextlib.suppress(OSError):
                await side.wait_closed()

    server = await asyncio.start_server(connection, sock=listener)
    async with server:
        await server.serve_forever()


async def serve_all(pairs: Sequence[tuple[socket.socket, str, int]]) -> None:
    await asyncio.gather(*(serve(*pair) for pair in pairs))


def main(argv: Sequence[str]) -> None:
    namespace, *rules = argv
    pairs = []
    for rule in rules:
        listen, address, port = rule.split(":")
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(listen)))
        listener.listen(128)
        pairs.append((listener, address, int(port)))
    enter(namespace)
    asyncio.run(serve_all(pairs))


if __name__ == "__main__":
    main(sys.argv[1:])
