"""A client for the OpenAI-compatible API that keeps a deadline and believes nothing but tokens.

A deadline covers a whole answer: a socket's own time limit starts anew with every byte, and a server that dribbles
would never meet it.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


class ApiError(Exception):
    """The server answered, and the answer is no completion."""

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class DeadlineError(Exception):
    """Connected, and no complete answer before the deadline."""


class ConnectError(Exception):
    """No connection."""


@dataclass
class Answer:
    """One completion. ``completion_tokens`` is what the server counted; a model that thinks may answer with an empty
    text."""

    model: str
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    latency_s: float = 0.0
    ttft_s: float | None = None
    done: bool = False
    chunks: int = 0
    fingerprint: str | None = None
    errors: list[str] = field(default_factory=list)


def complaint(body: Any) -> str | None:
    """The message of an error object, however the server wraps it; None if this is no error."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if error is None and isinstance(body, Mapping) and body.get("object") == "error":
        error = body
    if error is None:
        return None
    if isinstance(error, Mapping):
        return f"{error.get('type') or 'error'}: {error.get('message') or 'no message'}"
    return str(error)


def events(lines: Iterator[bytes]) -> Iterator[str]:
    """The data of server-sent events; a comment or a field of another name is passed over."""
    data: list[str] = []
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if data:
                yield "\n".join(data)
                data = []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
    if data:
        yield "\n".join(data)


def read_completion(body: Any, model: str) -> Answer:
    """A whole completion. Raises ApiError if it is none, or one without tokens."""
    if said := complaint(body):
        raise ApiError(said)
    try:
        choice = body["choices"][0]
        message = choice["message"]
        usage = body.get("usage") or {}
        answer = Answer(
            model=str(body.get("model") or model),
            text=str(message.get("content") or ""),
            reasoning=str(message.get("reasoning") or message.get("reasoning_content") or ""),
            finish_reason=choice.get("finish_reason"),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            done=True,
            fingerprint=body.get("system_fingerprint"),
        )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise ApiError(f"the answer is no chat completion: {json.dumps(body)[:300]}") from error
    if answer.completion_tokens < 1:
        raise ApiError(f"the answer has {answer.completion_tokens} tokens by the server's own count")
    return answer


def read_stream(lines: Iterator[bytes], model: str, began: float, clock: Any = time.monotonic) -> Answer:
    """A streamed completion. Raises ApiError for an error inside the stream: its HTTP status is 200 and it ends with
    [DONE] all the same."""
    answer = Answer(model=model)
    for data in events(lines):
        if data == "[DONE]":
            answer.done = True
            break
        try:
            chunk = json.loads(data)
        except ValueError as error:
            raise ApiError(f"the stream holds something that is not JSON: {data[:200]}") from error
        if said := complaint(chunk):
            raise ApiError(f"inside the stream, after {answer.chunks} chunks: {said}")
        usage = chunk.get("usage") or {}
        answer.prompt_tokens = int(usage.get("prompt_tokens") or answer.prompt_tokens)
        answer.completion_tokens = int(usage.get("completion_tokens") or answer.completion_tokens)
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
            # The first chunk names the role and is no token; a token may still be an empty text, as half of a
            # character is.
            if "role" in delta and not delta.get("content"):
                continue
            answer.chunks += 1
            if answer.ttft_s is None:
                answer.ttft_s = clock() - began
            answer.text += str(delta.get("content") or "")
            answer.reasoning += str(delta.get("reasoning") or delta.get("reasoning_content") or "")
    if not answer.done:
        raise ApiError(f"the stream broke off after {answer.chunks} chunks")
    if answer.completion_tokens < 1:
        raise ApiError("the stream ended without a token by the server's own count")
    return answer


class Client:
    """One server. The key goes into a header and nowhere else."""

    def __init__(self, base_url: str, api_key: str = "") -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} is no http address")
        self.secure = parts.scheme == "https"
        self.host, self.port = parts.hostname, parts.port or (443 if self.secure else 80)
        self.prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.api_key = api_key

    def _open(self, remaining: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=remaining)
        try:
            connection.connect()
        except OSError as error:
            raise ConnectError(f"{self.host} port {self.port}: {error.strerror or error}") from error
        return connection

    @contextmanager
    def _request(
        self, path: str, body: Mapping[str, Any] | None, until: float
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """The status and the lines of one answer; whatever goes wrong while they are read is told apart here."""
        connection = self._open(max(0.05, until - time.monotonic()))
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        try:
            # The connection forgets its socket once it knows that the answer is the last one.
            wire = connection.sock
            payload = None if body is None else json.dumps(body).encode()
            connection.request("GET" if body is None else "POST", f"{self.prefix}{path}", payload, headers)
            response = connection.getresponse()
            yield response.status, _lines(response, wire, until)
        except TimeoutError as error:
            raise DeadlineError from error
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(f"the connection broke: {error or error.__class__.__name__}") from error
        finally:
            connection.close()

    def fetch(self, path: str, deadline_s: float, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        until = time.monotonic() + deadline_s
        with self._request(path, body, until) as (status, lines):
            return status, b"".join(lines)

    def health(self, deadline_s: float = 3) -> str:
        """What /health says, in words; it proves nothing about the model."""
        try:
            return f"HTTP {self.fetch('/health', deadline_s)[0]}"
        except ConnectError as error:
            return f"no connection ({error})"
        except DeadlineError:
            return f"no answer in {deadline_s:.0f} s"
        except ApiError as error:
            return str(error)

    def served_names(self, deadline_s: float) -> list[str]:
        status, raw = self.fetch("/v1/models", deadline_s)
        body = _json(raw)
        if status != http.client.OK:
            raise ApiError(complaint(body) or f"HTTP {status} from /v1/models", status)
        return [str(item["id"]) for item in body.get("data", ()) if isinstance(item, Mapping) and "id" in item]

    def complete(self, body: Mapping[str, Any], deadline_s: float) -> Answer:
        began = time.monotonic()
        status, raw = self.fetch("/v1/chat/completions", deadline_s, body)
        if status != http.client.OK:
            raise ApiError(f"HTTP {status}: {complaint(_json(raw)) or raw[:300].decode('utf-8', 'replace')}", status)
        answer = read_completion(_json(raw), str(body["model"]))
        answer.latency_s = time.monotonic() - began
        return answer

    def stream(self, body: Mapping[str, Any], deadline_s: float) -> Answer:
        began = time.monotonic()
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with self._request("/v1/chat/completions", asked, began + deadline_s) as (status, lines):
            if status != http.client.OK:
                raw = b"".join(lines)
                raise ApiError(
                    f"HTTP {status}: {complaint(_json(raw)) or raw[:300].decode('utf-8', 'replace')}", status
                )
            answer = read_stream(lines, str(body["model"]), began)
            answer.latency_s = time.monotonic() - began
            return answer


def _lines(response: http.client.HTTPResponse, wire: Any, until: float) -> Iterator[bytes]:
    """Lines as they arrive, each read limited by what is left of the deadline."""
    buffer = b""
    while True:
        remaining = until - time.monotonic()
        if remaining <= 0:
            raise DeadlineError
        wire.settimeout(remaining)
        piece = response.read1(1 << 16)
        if not piece:
            break
        *whole, buffer = (buffer + piece).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if buffer:
        yield buffer


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return {}


def question(model: str, text: str, max_tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
