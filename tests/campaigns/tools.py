"""Programs of the system that tests use: `python tests/campaigns/tools.py` installs what is missing, or says what is then not tested.

Only root on a system with apt-get can install them. Tests ask `path` of `tests/support/system_tools.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from system_tools import TOOLS, install, may_install  # beside the tests


def main() -> int:
    """Return 1 if a tool could not be installed although root may."""
    missing = [tool for tool in TOOLS.values() if tool.found() is None]
    if not missing:
        return 0
    if may_install():
        return install(missing)
    for tool in missing:
        print(
            f"{tool.name} is not installed: {tool.tests} are skipped (Debian: apt-get install {tool.package})",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
