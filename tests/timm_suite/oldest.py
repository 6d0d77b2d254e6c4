"""Run the tests that lean on timm's inside with the oldest release that pyproject.toml admits.

    python tests/timm_suite/oldest.py [options of pytest]

The release is fetched by pip, once, into `build/`, and stands in front of the installed one.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/retrofit/test_preserve.py", "tests/retrofit/test_contract.py", "tests/retrofit/test_travel.py")


def oldest_release() -> str:
    """The version behind `timm>=` in pyproject.toml."""
    match = re.search(r'"timm>=([0-9.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if match is None:
        raise ValueError("pyproject.toml does not say which timm it takes at least (timm>=...).")
    return match[1]


def fetch(release: str, folder: Path) -> Path:
    """A release of timm without what it depends on, downloaded if it is not there."""
    if not (folder / "timm" / "version.py").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, f"timm=={release}"], check=True)
    return folder


def main(options: list[str]) -> int:
    """Run the tests; `options` go to pytest."""
    release = oldest_release()
    folder = fetch(release, ROOT / "build" / f"timm-{release}")
    print(f"With timm {release}:", flush=True)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "pytest", "-q", *TESTS, *options]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
