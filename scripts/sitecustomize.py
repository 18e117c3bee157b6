"""Lets ansible-lint import module_utils/spark: without it its args rule passes any argument to our own modules.

Python loads this file by its name when its folder is on PYTHONPATH.
"""

from __future__ import annotations

from pathlib import Path

import ansible.module_utils

ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "module_utils"))
