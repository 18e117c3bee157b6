"""The command runner, with real programs."""

from __future__ import annotations

import sys

import pytest
from ansible.module_utils.spark.runner import NOT_FOUND_RC, TIMED_OUT_RC, CommandFailed, run


def test_what_a_program_says_is_kept_apart_and_in_the_c_locale() -> None:
    done = run(
        [sys.executable, "-c", "import os,sys; print(os.environ['LC_ALL']); print('no', file=sys.stderr); sys.exit(3)"]
    )
    assert (done.rc, done.stdout, done.stderr, done.ok) == (3, "C\n", "no\n", False)


def test_arguments_reach_the_program_without_a_shell() -> None:
    hostile = "$(id) `id` \"quoted\" 'single'\nsecond line \u00fc"
    assert (
        run([sys.executable, "-c", "import sys; sys.stdout.buffer.write(sys.argv[1].encode())", hostile]).stdout
        == hostile
    )


def test_a_missing_program_and_a_slow_one_have_their_own_codes() -> None:
    assert run(["no-such-program-here"]).rc == NOT_FOUND_RC
    slow = run([sys.executable, "-c", "import time; time.sleep(30)"], timeout_s=0.3)
    assert slow.rc == TIMED_OUT_RC
    assert "limit of 0.3 s" in slow.stderr


def test_a_failure_explains_itself() -> None:
    with pytest.raises(CommandFailed, match="exited 4: broken pipe dream Replace the pipe") as raised:
        run(
            [
                sys.executable,
                "-c",
                "import sys; sys.stderr.write('broken pipe dream'); sys.exit(4)",
            ],
            check=True,
            remedy="Replace the pipe.",
        )
    assert raised.value.completed.rc == 4


def test_bytes_that_are_no_text_are_shown_escaped() -> None:
    assert run([sys.executable, "-c", "import sys; sys.stdout.buffer.write(b'ok\\xff')"]).stdout == "ok\\xff"


def test_input_is_handed_over() -> None:
    assert run([sys.executable, "-c", "import sys; print(sys.stdin.read().upper())"], stdin="rail").stdout == "RAIL\n"
