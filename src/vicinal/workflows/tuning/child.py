"""A command in a process of its own, which ends when the study that started it ends: `python -m ... train ...`."""

from __future__ import annotations

import runpy

from vicinal.training.interrupt import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    runpy.run_module("vicinal", run_name="__main__", alter_sys=True)
