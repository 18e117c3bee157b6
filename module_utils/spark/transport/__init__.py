"""Files from one node to another over all rails at once, verified while they arrive.

The receiver listens on its fabric addresses for as long as it runs; the sender opens several streams on each rail and
hands them files, the largest first. A stream is a process of its own at both ends: TLS yields 16 KiB per call, and with
threads the interpreter's lock, not the link, would set the pace.

One stream speaks in short JSON messages, each with its length in front, and raw bytes between them:

    sender                                   receiver
    {"op": "hello", "version": 1}            {"op": "ready"}
    {"op": "file", "path": P}                {"op": "from", "at": OFFSET}
    the bytes of P from OFFSET on            {"op": "done", "bad": []}
    {"op": "batch", "paths": [P, ...]}
    the bytes of all of them                 {"op": "done", "bad": [P, ...]}
    {"op": "end", "complete": true}

What may arrive, with sizes and hashes, the receiver knows from its own instructions, never from the wire. It says
{"op": "busy"} every second while it works on a file, and {"op": "error", ...} when its disk does not take it.
"""

from __future__ import annotations
