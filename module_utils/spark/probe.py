"""The proof that a model is served: real completions, under every name, whole and streamed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from .findings import Finding, finding
from .openai import Answer, ApiError, Client, ConnectError, DeadlineError, question


def probe(
    client: Client, names: Sequence[str], *, node: str, deadline_s: float, text: str, max_tokens: int
) -> tuple[list[Finding], dict[str, Any] | None]:
    """Ask the model: what stands against it, and what was measured. ``deadline_s`` covers all of it.

    The first name is asked for a whole answer and for a streamed one, every other name for one token.
    """
    until = time.monotonic() + deadline_s
    before = client.health(min(3, deadline_s))
    asked = names[0] if names else "?"

    def remaining() -> float:
        return max(0.05, until - time.monotonic())

    def evidence(*lines: str) -> list[str]:
        return [
            *lines,
            f"/health said {before} before the completion, and says {client.health()} after it",
            f"asked for {asked!r} with a deadline of {deadline_s:.0f} s",
        ]

    expected = "a chat completion with at least one token"
    try:
        served = client.served_names(remaining())
        missing = [name for name in names if name not in served]
        if missing:
            found = f"the API serves {', '.join(served) or 'nothing'}"
            wanted = f"it serves {', '.join(names)}"
            return [finding("SERVED_NAME_MISSING", node=node, found=found, expected=wanted)], None
        names = list(names) or served
        asked = names[0]
        whole = client.complete(question(asked, text, max_tokens), remaining())
        streamed = client.stream(question(asked, text, max_tokens), remaining())
        for name in names[1:]:
            asked = name
            client.complete(question(name, text, 1), remaining())
    except ConnectError as error:
        found = f"no connection to the API: {error}"
        return [finding("API_UNREACHABLE", node=node, found=found, expected=expected)], None
    except DeadlineError:
        found = f"no complete answer in {deadline_s:.0f} s"
        return [finding("COMPLETION_HANGS", node=node, found=found, expected=expected, evidence=evidence())], None
    except ApiError as error:
        if error.status in (401, 403):
            key = "with a key" if client.api_key else "without a key"
            found = f"asked {key}: {error}"
            return [finding("API_KEY_REFUSED", node=node, found=found, expected="the key is accepted")], None
        return [finding("COMPLETION_FAILED", node=node, found=str(error), expected=expected, evidence=evidence())], None
    measured = measurement(names, text, whole, streamed)
    found = (
        f"{whole.completion_tokens} tokens in {whole.latency_s:.2f} s, the first after {streamed.ttft_s or 0:.2f} s, "
        f"as {', '.join(names)}"
    )
    return [finding("COMPLETION_OK", node=node, found=found, expected=expected)], measured


def measurement(names: Sequence[str], text: str, whole: Answer, streamed: Answer) -> dict[str, Any]:
    ttft = streamed.ttft_s or 0.0
    decode = streamed.latency_s - ttft
    rate = (streamed.completion_tokens - 1) / decode if streamed.completion_tokens > 1 and decode > 0 else None
    return {
        "model": whole.model,
        "served_names": list(names),
        "question": text,
        "answer": whole.text,
        "reasoning": whole.reasoning,
        "finish_reason": whole.finish_reason,
        "prompt_tokens": whole.prompt_tokens,
        "completion_tokens": whole.completion_tokens,
        "latency_s": round(whole.latency_s, 3),
        "ttft_s": round(ttft, 3),
        "streamed_tokens": streamed.completion_tokens,
        "decode_tokens_per_s": None if rate is None else round(rate, 2),
        "fingerprint": whole.fingerprint,
    }
