"""Ansible's own screen, with the commands of remedies as they work for this run, and each refusal said once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.module_utils.spark_command import as_run  # noqa: E402
from ansible.plugins.callback.default import CallbackModule as Default  # noqa: E402

DOCUMENTATION = """
name: spark_screen
type: stdout
short_description: Ansible's default screen with remedies that work as printed
description:
  - A module on a node does not know with which inventory and limit it was run. Here the playbooks that a failure names
    become whole commands with C(-i), C(-l) and the login options of this run.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements:
  - set as stdout_callback in ansible.cfg
"""


class CallbackModule(Default):  # type: ignore[misc, unused-ignore]
    CALLBACK_NAME = "spark_screen"

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        _repeat(result.result)
        super().v2_runner_on_failed(result, ignore_errors)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        _repeat(result.result)
        super().v2_runner_item_on_failed(result)


def _repeat(data: Any) -> None:
    """Rewrite a failed task's own copy of its result; its message says all that the exception would say again."""
    told = {key: as_run(data[key]) for key in ("msg", "findings") if data.get(key)}
    if data.get("findings") or told.get("msg") != data.get("msg"):
        data.pop("exception", None)
    data.update(told)
