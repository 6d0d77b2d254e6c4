"""Run the test-suite of the installed timm on Nearsight's models.

    python tests/timm_suite/run.py [--quick] [options of pytest]

The suite is no part of timm's wheel, so the source distribution of the same version is fetched by pip, once, into
`build/`. `plugin.py` tells it which models there are.
"""

import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def fetch_suite(release: str, cache: Path) -> Path:
    """The unpacked tests of a timm release, downloaded if they are not in the cache."""
    folder = cache / f"timm-{release}"
    if not (folder / "tests" / "test_models.py").exists():
        cache.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "timm"]
        subprocess.run([*pip, "--dest", str(cache), f"timm=={release}"], check=True)
        with tarfile.open(cache / f"timm-{release}.tar.gz") as archive:
            wanted = (f"timm-{release}/tests/", f"timm-{release}/pyproject.toml")
            for member in archive.getmembers():  # plain files alone: Python before 3.11.4 has no filter for the others
                if member.name.startswith(wanted) and member.isfile() and ".." not in member.name:
                    archive.extract(member, cache, set_attrs=False)
    return folder


def main(options: list[str]) -> int:
    """Run the suite; `options` go to pytest."""
    suite = fetch_suite(version("timm"), ROOT / "build" / "timm_suite")
    paths = [str(HERE), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "pytest", "-p", "plugin", "--import-mode=importlib", "--rootdir", str(suite)]
    command += ["-o", "cache_dir=" + str(suite / ".pytest_cache"), str(suite / "tests" / "test_models.py"), *options]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
