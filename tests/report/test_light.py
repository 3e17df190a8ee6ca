"""What pages, analyses and pictures load."""

from __future__ import annotations

import subprocess
import sys


def test_what_is_not_needed_is_not_loaded() -> None:
    loaded = (
        "import sys, vicinal.report.page, vicinal.analysis\n"
        "print([name for name in sys.modules if name.startswith(('matplotlib', 'vicinal.training'))])\n"
        "import vicinal.report.plots, vicinal.report.plots\n"
        "print([name for name in sys.modules if name.startswith('vicinal.training')])"
    )
    result = subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, text=True)
    assert result.stdout == "[]\n[]\n"
