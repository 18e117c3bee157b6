"""The proof against servers that answer as real ones did: well, with errors, inside a stream, slowly, and not at
all."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.spark import openai
from ansible.module_utils.spark.findings import Finding
from ansible.module_utils.spark.openai import ApiError, Client
from ansible.module_utils.spark.probe import probe

FIXTURES = Path(__file__).parent / "fixtures"
Reply = Callable[[BaseHTTPRequestHandler], None]


def send(status: int, body: bytes, kind: str = "application/json") -> Reply:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return reply


def captured(name: str, status: int = 200) -> Reply:
    return send(status, (FIXTURES / name).read_bytes())


def hang(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(3)


def dribble(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then: every single read is quick, the answer never ends."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(60):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


class Server:
    """The served model: healthy unless a test says otherwise."""

    def __init__(self) -> None:
        self.models: Reply = captured("models.json")
        self.whole: Reply = captured("completion.json")
        self.stream: Reply = captured("stream.sse")
        self.key = ""
        self.asked: list[dict[str, Any]] = []


@pytest.fixture
def served() -> Iterator[tuple[Server, str]]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            send(200, b"")(self) if self.path == "/health" else self._if_allowed(server.models)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append(body)
            self._if_allowed(server.stream if body.get("stream") else server.whole)

        def _if_allowed(self, reply: Reply) -> None:
            allowed = not server.key or self.headers.get("Authorization") == f"Bearer {server.key}"
            with contextlib.suppress(OSError):  # the client may have gone
                (reply if allowed else send(401, b'{"error":"Unauthorized"}'))(self)

        def log_message(self, *_: Any) -> None: ...

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    listening.block_on_close = False
    threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True).start()
    yield server, f"http://127.0.0.1:{listening.server_address[1]}"
    listening.shutdown()
    listening.server_close()


def ask(url: str, deadline_s: float = 5, key: str = "", names: tuple[str, ...] = ("tiny",)) -> tuple[Finding, Any]:
    said, measured = probe(
        Client(url, key), list(names), node="spark-01", deadline_s=deadline_s, text="Say hello.", max_tokens=8
    )
    assert len(said) == 1
    return said[0], measured


def test_a_served_model_is_measured(served: tuple[Server, str]) -> None:
    server, url = served
    answer = server.stream

    def late(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(0.02)
        answer(handler)

    server.stream = late
    said, measured = ask(f"{url}/v1")
    assert (said.code, said.severity) == ("COMPLETION_OK", "ok")
    assert (measured["completion_tokens"], measured["finish_reason"]) == (8, "length")
    assert (measured["question"], measured["answer"]) == ("Say hello.", "K\x1a")
    assert measured["streamed_tokens"] == 6
    assert 0.02 <= measured["ttft_s"] < 5
    assert [body.get("stream", False) for body in server.asked] == [False, True]


EMPTY = json.loads((FIXTURES / "completion.json").read_text())
EMPTY["choices"][0]["message"].update(content=None, reasoning="Let me think.")
NOTHING = {**EMPTY, "usage": {"prompt_tokens": 5, "completion_tokens": 0}}
DEAD = b'{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","param":null,"code":500}}'


def test_a_model_that_only_thinks_has_answered(served: tuple[Server, str]) -> None:
    server, url = served
    server.whole = send(200, json.dumps(EMPTY).encode())
    said, measured = ask(url)
    assert said.code == "COMPLETION_OK"
    assert (measured["answer"], measured["reasoning"]) == ("", "Let me think.")


@pytest.mark.parametrize(
    ("part", "reply", "words"),
    [
        ("whole", send(500, DEAD), "EngineCore encountered an issue"),
        ("whole", send(200, json.dumps(NOTHING).encode()), "0 tokens"),
        ("whole", send(200, b"<html>proxy</html>"), "no chat completion"),
        ("whole", captured("err-too-long.json", 400), "maximum context length"),
        ("stream", captured("stream-worker-killed.sse"), "inside the stream, after 3 chunks: InternalServerError"),
        ("stream", send(200, (FIXTURES / "stream.sse").read_bytes()[:900]), "broke off"),
        ("stream", send(200, b"data: [DONE]\n\n"), "without a token"),
    ],
)
def test_a_failed_completion_is_told_with_what_health_says(
    served: tuple[Server, str], part: str, reply: Reply, words: str
) -> None:
    server, url = served
    setattr(server, part, reply)
    said, measured = ask(url)
    assert (said.code, said.severity, measured) == ("COMPLETION_FAILED", "fatal", None)
    assert words in said.found
    assert "/health said HTTP 200 before the completion, and says HTTP 200 after it" in said.evidence


@pytest.mark.parametrize("part", ["whole", "stream", "models"])
@pytest.mark.parametrize("reply", [hang, dribble])
def test_an_answer_that_does_not_come_ends_at_the_deadline(served: tuple[Server, str], part: str, reply: Reply) -> None:
    server, url = served
    setattr(server, part, reply)
    began = time.monotonic()
    said, _ = ask(url, deadline_s=0.6)
    assert time.monotonic() - began < 2
    assert said.code == "COMPLETION_HANGS"
    assert "/health said HTTP 200 before the completion, and says HTTP 200 after it" in said.evidence


def test_every_served_name_is_asked(served: tuple[Server, str]) -> None:
    server, url = served
    said, _ = ask(url, names=("tiny", "nope"))
    assert said.code == "SERVED_NAME_MISSING"
    server.models = send(200, b'{"data": [{"id": "tiny"}, {"id": "alias"}]}')
    said, measured = ask(url, names=("tiny", "alias"))
    assert said.code == "COMPLETION_OK"
    assert measured["served_names"] == ["tiny", "alias"]
    assert [body["model"] for body in server.asked] == ["tiny", "tiny", "alias"]


def test_the_key_opens_the_api_and_shows_nowhere(served: tuple[Server, str]) -> None:
    server, url = served
    server.key = "s3cret"
    assert ask(url, key="s3cret")[0].code == "COMPLETION_OK"
    said, _ = ask(url, key="wr0ng")
    assert said.code == "API_KEY_REFUSED"
    assert "wr0ng" not in str(said)
    assert ask(url)[0].code == "API_KEY_REFUSED"


def test_nobody_listens() -> None:
    said, _ = ask("http://127.0.0.1:9")
    assert said.code == "API_UNREACHABLE"


def test_events_survive_comments_other_fields_and_a_missing_end() -> None:
    lines = [b": ping\n", b"event: x\r\n", b"data: a\r\n", b"data:b\r\n", b"\r\n", b"data: c"]
    assert list(openai.events(iter(lines))) == ["a\nb", "c"]


@pytest.mark.parametrize(
    "name", ["err-bad-json.json", "err-max-tokens-0.json", "err-too-long.json", "err-unknown-model.json"]
)
def test_the_servers_own_words_are_kept(name: str) -> None:
    body = json.loads((FIXTURES / name).read_text())
    said = openai.complaint(body)
    assert said is not None
    assert body["error"]["message"] in said
    with pytest.raises(ApiError):
        openai.read_completion(body, "m")


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no http address"):
        Client(url)
