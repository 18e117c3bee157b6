"""The two ends of one stream: messages and bytes over TLS 1.3 with both certificates pinned, or in the clear after both
ends have proven that they know a one-time secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import select
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

# Large enough to keep calls rare, small enough to stay in a core's second-level cache between socket, hash and file.
PLAIN_CHUNK = 1 << 20
TLS_CHUNK = 256 << 10

HANDSHAKE_S = 10.0
SILENCE_S = 20
_LENGTH = struct.Struct("!I")
_LONGEST = 1 << 20
# Python sets no suites of TLS 1.3 before 3.15. Of those that OpenSSL would choose from, this one is the fastest where
# the processor knows AES; it is handed to a copy's process by OPENSSL_CONF. Without it a copy works as well.
OPENSSL_CONF = """\
openssl_conf = openssl_init
[openssl_init]
ssl_conf = ssl_sect
[ssl_sect]
system_default = copy_sect
[copy_sect]
MinProtocol = TLSv1.3
Ciphersuites = TLS_AES_128_GCM_SHA256
"""
_NONCE = 32
_CLOSED = "the other end closed the stream"


class BrokenError(Exception):
    """The stream ended, or what came over it is not this protocol."""


class RefusedError(Exception):
    """The other end is not the one that was expected, or did not take us for it."""


@dataclass(frozen=True)
class Credentials:
    """What proves one end to the other. With TLS: this end's certificate and key and the other's certificate, all PEM;
    without: the secret, in hexadecimal.
    """

    certificate: str = ""
    key: str = ""
    peer: str = ""
    secret: str = ""

    @property
    def encrypted(self) -> bool:
        return not self.secret

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Credentials:
        """Raises ValueError where neither a whole set of certificates nor a secret was given."""
        made = cls(**{name: str(data.get(name) or "") for name in ("certificate", "key", "peer", "secret")})
        whole = bool(made.certificate and made.key and made.peer)
        if whole == bool(made.secret) or (made.secret and len(made.secret) < 2 * _NONCE):
            raise ValueError("a copy needs two certificates and a key, or a secret, and got neither or both")
        return made


@contextmanager
def _breaks() -> Iterator[None]:
    """Whatever the socket says: the stream is of no more use. An error of the disk is thus never taken for one of the
    stream.
    """
    try:
        yield
    except OSError as error:
        text = _reason(error) if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        raise BrokenError(text) from error


def _reason(error: ssl.SSLError) -> str:
    return str(error.reason or error).lower().replace("_", " ")


class Channel(Protocol):
    chunk: int

    def write(self, data: bytes | memoryview) -> None: ...

    def fill(self, view: memoryview) -> None:
        """Read until ``view`` is full; raises BrokenError at the end of the stream."""

    def waiting(self) -> bool:
        """Whether something came in that was not read."""

    def close(self) -> None: ...


def tune(sock: socket.socket) -> None:
    """A peer that lost its power says nothing: let the kernel find out."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)


class Plain:
    chunk = PLAIN_CHUNK

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def write(self, data: bytes | memoryview) -> None:
        with _breaks():
            self.socket.sendall(data)

    def fill(self, view: memoryview) -> None:
        with _breaks():
            while view:
                count = self.socket.recv_into(view, len(view), socket.MSG_WAITALL)
                if not count:
                    raise BrokenError(_CLOSED)
                view = view[count:]

    def waiting(self) -> bool:
        return _readable(self.socket)

    def close(self) -> None:
        self.socket.close()


class TlsClient:
    """TLS on the socket itself: a long write is cut into records inside OpenSSL, without a copy of ours."""

    chunk = TLS_CHUNK

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.socket = sock
        self._heard = False

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        with _breaks():
            while view:
                view = view[self.socket.send(view) :]

    def fill(self, view: memoryview) -> None:
        try:
            with _breaks():
                while view:
                    count = self.socket.recv_into(view)
                    if not count:
                        raise BrokenError(_CLOSED)
                    view = view[count:]
        except BrokenError as error:
            # In TLS 1.3 a client hears only now that its certificate was not taken.
            if not self._heard and isinstance(error.__cause__, ssl.SSLError):
                raise RefusedError(_reason(error.__cause__)) from error
            raise
        self._heard = True

    def waiting(self) -> bool:
        return self.socket.pending() > 0 or _readable(self.socket)

    def close(self) -> None:
        self.socket.close()


class TlsServer:
    """TLS on buffers in memory, fed by large reads.

    On a socket OpenSSL would ask the kernel twice per record of 16 KiB; that alone took as long as all the rest.
    """

    chunk = TLS_CHUNK

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._raw = memoryview(bytearray(TLS_CHUNK))

    def handshake(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._feed()
            except ssl.SSLError:
                # The alert tells the other end why.
                self._flush()
                raise
            else:
                self._flush()
                return

    def _flush(self) -> None:
        if self._outgoing.pending:
            with _breaks():
                self.socket.sendall(self._outgoing.read())

    def _feed(self) -> None:
        with _breaks():
            count = self.socket.recv_into(self._raw)
        if not count:
            raise BrokenError(_CLOSED)
        self._incoming.write(self._raw[:count])

    def write(self, data: bytes | memoryview) -> None:
        self.tls.write(data)
        self._flush()

    def fill(self, view: memoryview) -> None:
        read = self.tls.read
        done, wanted = 0, len(view)
        while done < wanted:
            try:
                count = int(read(wanted - done, view[done:]))
            except ssl.SSLWantReadError:
                self._feed()
                continue
            except ssl.SSLError as error:
                raise BrokenError(_reason(error)) from error
            if not count:
                raise BrokenError(_CLOSED)
            done += count

    def waiting(self) -> bool:
        return self.tls.pending() > 0 or self._incoming.pending > 0 or _readable(self.socket)

    def close(self) -> None:
        self.socket.close()


def _readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


# Messages


def say(channel: Channel, **message: Any) -> None:
    raw = json.dumps(message, separators=(",", ":")).encode("utf-8", "surrogateescape")
    channel.write(_LENGTH.pack(len(raw)) + raw)


def hear(channel: Channel) -> dict[str, Any]:
    head = memoryview(bytearray(_LENGTH.size))
    channel.fill(head)
    (length,) = _LENGTH.unpack(head)
    if length > _LONGEST:
        raise BrokenError(f"a message of {length} bytes")
    body = memoryview(bytearray(length))
    channel.fill(body)
    try:
        message = json.loads(bytes(body).decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise BrokenError("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise BrokenError("a message that is not an object")
    return message


# Both ends prove who they are


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """A path to ``text`` for as long as it is needed: OpenSSL loads keys from files only, and these touch no disk."""
    descriptor = os.memfd_create("spark-copy", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def tls_context(mine: Credentials, *, server: bool) -> ssl.SSLContext:
    """TLS 1.3 and nothing older; of all certificates only the peer's own is believed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=mine.peer)
    with _in_memory(mine.certificate + mine.key) as path:
        context.load_cert_chain(path)
    if server:
        # Nobody resumes a session here, and a ticket would be one more message on the wire.
        context.num_tickets = 0
    return context


def fingerprint(pem: str) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def _pinned(shown: bytes | None, mine: Credentials) -> None:
    if shown is None or hashlib.sha256(shown).hexdigest() != fingerprint(mine.peer):
        raise RefusedError("another certificate than the one that was agreed on")


def dial(address: str, port: int, local: str | None, mine: Credentials, context: ssl.SSLContext | None) -> Channel:
    """Connect to a receiver. Raises OSError where no connection comes about, RefusedError where it is not ours."""
    source = (local, 0) if local else None
    sock = socket.create_connection((address, port), timeout=HANDSHAKE_S, source_address=source)
    try:
        tune(sock)
        if context is None:
            _prove(Plain(sock), mine.secret, "sender", "receiver")
            sock.settimeout(None)
            return Plain(sock)
        with _refusals():
            secured = context.wrap_socket(sock)
        _pinned(secured.getpeercert(binary_form=True), mine)
        secured.settimeout(None)
        return TlsClient(secured)
    except BaseException:
        sock.close()
        raise


def answer(sock: socket.socket, mine: Credentials, context: ssl.SSLContext | None) -> Channel:
    """The receiver's side of ``dial``."""
    sock.settimeout(HANDSHAKE_S)
    tune(sock)
    if context is None:
        plain = Plain(sock)
        _prove(plain, mine.secret, "receiver", "sender")
        sock.settimeout(None)
        return plain
    channel = TlsServer(sock, context)
    with _refusals():
        channel.handshake()
    _pinned(channel.tls.getpeercert(binary_form=True), mine)
    sock.settimeout(None)
    return channel


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        raise RefusedError(_reason(error)) from error


def _prove(channel: Plain, secret: str, me: str, other: str) -> None:
    """Both ends show that they know the secret without showing it; each answers for its own role only, so that an
    answer cannot be played back.
    """

    def proof(role: str, sender_nonce: bytes, receiver_nonce: bytes) -> bytes:
        text = role.encode() + b"\0" + sender_nonce + receiver_nonce
        return hmac.digest(bytes.fromhex(secret), text, "sha256")

    mine, theirs = secrets.token_bytes(_NONCE), memoryview(bytearray(_NONCE))
    shown = memoryview(bytearray(_NONCE))
    try:
        channel.write(mine)
        channel.fill(theirs)
        nonces = (mine, bytes(theirs)) if me == "sender" else (bytes(theirs), mine)
        # The sender proves itself first: who only knocks learns nothing.
        if me == "sender":
            channel.write(proof(me, *nonces))
        channel.fill(shown)
        if not hmac.compare_digest(proof(other, *nonces), bytes(shown)):
            raise RefusedError("another secret than the one that was agreed on")
        if me == "receiver":
            channel.write(proof(me, *nonces))
    except BrokenError as error:
        raise RefusedError("the other end did not prove that it knows the secret") from error
