"""The forwarder carries bytes both ways, half-closed connections too, and refuses what nobody listens to."""

from __future__ import annotations

import asyncio
import socket

import pytest

from lab.containers import forwarder


def listener() -> socket.socket:
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    found.listen()
    return found


def port_of(one: socket.socket) -> int:
    port: int = one.getsockname()[1]
    return port


async def _shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer only after the other side has said all: needs a connection that half-closes."""
    said = await reader.read()
    writer.write(said.upper())
    await writer.drain()
    writer.close()


async def _ask(port: int, said: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


def test_both_ways_and_half_closed() -> None:
    async def play() -> bytes:
        far, near = listener(), listener()
        async with await asyncio.start_server(_shout, sock=far):
            task = asyncio.create_task(forwarder.serve(near, "127.0.0.1", port_of(far)))
            try:
                return await _ask(port_of(near), b"x" * 300_000)
            finally:
                task.cancel()

    assert asyncio.run(play()) == b"X" * 300_000


def test_nobody_there_is_a_reset() -> None:
    async def play() -> None:
        dead, near = listener(), listener()
        port = port_of(dead)
        dead.close()
        task = asyncio.create_task(forwarder.serve(near, "127.0.0.1", port))
        try:
            with pytest.raises(ConnectionError):
                await _ask(port_of(near), b"hello")
        finally:
            task.cancel()

    asyncio.run(play())
