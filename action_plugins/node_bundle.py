"""Bring the bundle's contents to a node, only those that it lacks, and compare what lies there with what lies here."""

from __future__ import annotations

import base64
import hashlib
import zlib
from pathlib import Path
from typing import Any

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from ansible.module_utils.spark.findings import finding, render  # noqa: E402
from ansible.plugins.action import ActionBase  # noqa: E402


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        args = dict(self._task.args)
        files = [dict(item) for item in args.get("files") or []]
        sources = {item["path"]: item.pop("source", None) for item in files}
        args["files"] = files
        executions = 1
        result.update(self._execute_module(module_name="node_bundle", module_args=args, task_vars=task_vars))
        if result.get("need") and not result.get("failed"):
            hashes = {item["path"]: item["sha256"] for item in files}
            contents = {}
            for path in result["need"]:
                try:
                    raw = Path(sources[path] or "").read_bytes()
                except OSError as error:
                    return {**result, "failed": True, "msg": f"the controller cannot read its copy of {path}: {error}"}
                if hashlib.sha256(raw).hexdigest() != hashes[path]:
                    said = f"{sources[path]} is not the file that was planned as {path}; run the command again"
                    return {**result, "failed": True, "msg": said}
                contents[path] = base64.b64encode(zlib.compress(raw, 6)).decode()
            args["contents"] = contents
            executions = 2
            result.update(self._execute_module(module_name="node_bundle", module_args=args, task_vars=task_vars))
        result["module_executions"] = {"modules": executions, "polls": 0}
        if not result.get("failed") and not self._task.check_mode:
            self._compare(result, files, str(args.get("node")))
        return result

    def _compare(self, result: dict[str, Any], files: list[dict[str, Any]], node: str) -> None:
        """Every node is compared with the controller, and so with every other node."""
        installed = result.get("installed") or {}
        wrong = [
            finding(
                "LAUNCHER_NOT_EQUAL",
                node=node,
                found=f"{item['path']} has SHA-256 {installed.get(item['path'])}",
                expected=f"SHA-256 {item['sha256']}, as on the controller",
            )
            for item in files
            if installed.get(item["path"]) != item["sha256"]
        ]
        result["configuration"] = {"launcher": {item["path"]: item["sha256"] for item in files}}
        if wrong:
            result["findings"] = [*result.get("findings", []), *(item.as_dict() for item in wrong)]
            result.update(failed=True, msg="\n".join(render(item) for item in wrong))
