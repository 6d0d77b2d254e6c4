"""A bundle that runs in the browser: one page beside the model, with onnxruntime-web.

The page (`web_page/`) does what `runs.bundle` and `runs.postprocess` do in Python: the same pixels, the same
predictions. Its folder is an ONNX bundle as any other, so `nearsight predict` and `eval` take it, too.
"""

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from importlib.resources import files
from pathlib import Path

from ..atomic import expand_home, write_whole
from ..checkpoints.pretrained import weight_folders
from ..network import refuse_offline
from ..plots.overlays import class_colours
from ..runs.bundle import PAGE

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
MEGABYTES = 33  # of the package on npm
# What the page loads: WebAssembly with SIMD and threads, and WebGPU.
RUNTIME = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
    "ort.webgpu.min.mjs",
    "ort-wasm-simd-threaded.asyncify.mjs",
    "ort-wasm-simd-threaded.asyncify.wasm",
)
LARGEST = 2**26  # bytes of one of these files
SECONDS = 600  # that npm may take
COLOURS = 256  # classes that a map of pixels can have

# The package says "license": "MIT" and has no file of it.
LICENCE = """MIT License

Copyright (c) Microsoft Corporation

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def find_runtime(folder: str | os.PathLike[str] | None = None, download: bool = False) -> Path:
    """The folder with the files of onnxruntime-web that the page loads.

    Args:
        folder: Where somebody has them: the unpacked package, its `dist`, or a folder with `node_modules`; None takes
            what was downloaded before.
        download: Whether they may be taken from npm.

    Raises:
        ValueError: They are not there, and may not or can't be had.
    """
    if folder is not None:
        given = expand_home(folder)
        for candidate in (given, given / "dist", given / "node_modules" / PACKAGE / "dist", given / PACKAGE / "dist"):
            if has_runtime(candidate):
                return candidate
        lacking = [name for name in RUNTIME if not (given / name).is_file()]
        raise ValueError(
            f"{given} lacks {lacking[0]} of {PACKAGE}; give its unpacked package (`npm pack {PACKAGE}@{VERSION}`), "
            "or leave --runtime out."
        )
    cached = weight_folders()[-1][0].with_name(f"{PACKAGE}-{VERSION}")
    if not has_runtime(cached):
        if not download:
            raise ValueError(
                f"The page needs {PACKAGE}, which is not at hand; --download takes it from npm ({MEGABYTES} MB, "
                "MIT licence), --runtime FOLDER from an unpacked package."
            )
        refuse_offline(PACKAGE, "give an unpacked package with --runtime FOLDER")
        fetch_runtime(cached)
    return cached


def has_runtime(folder: Path) -> bool:
    """Whether a folder has every file that the page loads."""
    return all((folder / name).is_file() for name in RUNTIME)


def fetch_runtime(folder: Path) -> None:
    """Take onnxruntime-web from npm, which checks what it gets, and unpack what the page loads."""
    npm = shutil.which("npm")
    if npm is None:
        raise ValueError(f"--download needs npm, which is not installed; or give {PACKAGE} with --runtime FOLDER.")
    with tempfile.TemporaryDirectory(prefix="nearsight-npm-") as scratch:
        command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--pack-destination", scratch, "--ignore-scripts", "--silent"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=scratch, check=False)
        except subprocess.TimeoutExpired:
            raise ValueError(f"npm did not bring {PACKAGE} within {SECONDS // 60} minutes; try again later.") from None
        packed = next(Path(scratch).glob("*.tgz"), None)
        if done.returncode or packed is None:
            reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise ValueError(f"npm could not bring {PACKAGE} {VERSION} ({reason[0]}); try again, or give --runtime.")
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(packed) as archive:
            for name in RUNTIME:
                member = archive.extractfile(f"package/dist/{name}")
                assert member is not None
                write_whole(folder / name, member.read(LARGEST))


def write_page(folder: Path, runtime: Path) -> None:
    """Put the page and its runtime beside the model of a bundle.

    Args:
        folder: Of the bundle.
        runtime: Folder with the files of onnxruntime-web.
    """
    source = files("nearsight.deployment") / "web_page"
    page, script = ((source / name).read_text(encoding="utf-8") for name in ("index.html", "page.js"))
    page = page.replace("{{colours}}", json.dumps(class_colours(COLOURS))).replace("{{script}}", script)
    index, isolate, package = (folder / name for name in PAGE)
    index.write_text(page, encoding="utf-8")
    isolate.write_text((source / isolate.name).read_text(encoding="utf-8"), encoding="utf-8")
    target = package
    target.mkdir()
    for name in RUNTIME:
        shutil.copyfile(runtime / name, target / name)
    (target / "LICENSE").write_text(LICENCE, encoding="utf-8")
