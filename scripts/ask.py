"""Ask a served model one question: ask.py BASE_URL QUESTION."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from typing import Any

TIMEOUT_S = 120
MAX_TOKENS = 32


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 - http is what is served
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310
        return json.load(reply)


def main(base_url: str, question: str) -> int:
    try:
        model = call(f"{base_url}/v1/models")["data"][0]["id"]
        print(f"  POST {base_url}/v1/chat/completions  model {model}\n  > {question}")
        begin = time.monotonic()
        message = {"role": "user", "content": question}
        body = {"model": model, "messages": [message], "max_tokens": MAX_TOKENS, "temperature": 0}
        reply = call(f"{base_url}/v1/chat/completions", body)
    except (OSError, ValueError, KeyError, IndexError) as error:
        detail = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
        print(f"ask: no answer from {base_url}: {error} {detail}".rstrip(), file=sys.stderr)
        return 1
    answer, tokens = reply["choices"][0]["message"]["content"], reply["usage"]["completion_tokens"]
    print(f"  < {answer}\n  {tokens} tokens in {time.monotonic() - begin:.2f} s")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1].rstrip("/"), sys.argv[2]))
