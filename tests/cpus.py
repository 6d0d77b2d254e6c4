"""Run the tests of numbers as if on other CPUs: with fewer vector instructions, and with two threads and used memory.

    python tests/cpus.py [options of pytest]

PyTorch's kernels, those of oneDNN and the order of sums differ with each of these; no fact of a test may. What this CPU
does by itself is left out: `make test` has run it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("ops", "parts", "models", "heads", "explanation", "retrofit", "checkpoints", "deployment", "training", "tasks")
SETTINGS: dict[str, dict[str, str]] = {
    "no vector instructions": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "AVX-512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    # glibc fills fresh memory with a number, so that nothing is right because it happened to be zero.
    "two threads, fresh memory filled": {
        "OMP_NUM_THREADS": "2",
        "NEARSIGHT_TEST_THREADS": "2",
        "MALLOC_PERTURB_": "165",
    },
}
NEEDED = {"AVX2": "avx2", "AVX-512": "avx512bw"}  # PyTorch takes our word for it, and would die
# OpenVINO refuses some layers where its oneDNN may use no vector instructions, and `export` says so.
WITHOUT_OPENVINO = "not openvino and not test_what_is_not_installed_is_named and not test_the_fastest_is_kept"


def has(instructions: str) -> bool:
    """Whether this CPU has some instructions, as far as the system tells."""
    about = Path("/proc/cpuinfo")
    return about.is_file() and f" {instructions} " in about.read_text(encoding="utf-8")


def main(options: list[str]) -> int:
    """Run the tests in every setting that this CPU allows; `options` go to pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--maxprocesses", "8", "--dist", "worksteal"]
    command += [*(f"tests/{name}" for name in TESTS), *options]
    failed, own = [], torch.backends.cpu.get_cpu_capability().lower()
    for name, setting in SETTINGS.items():
        if setting.get("ATEN_CPU_CAPABILITY") == own:
            print(f"{name}: what this CPU does by itself, left out", flush=True)
            continue
        if name in NEEDED and not has(NEEDED[name]):
            print(f"{name}: this CPU has none, left out", flush=True)
            continue
        print(f"{name}:", flush=True)
        with tempfile.TemporaryDirectory() as cache:  # else PyTorch takes what it compiled for other instructions
            environment = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": cache} | os.environ | setting
            chosen = ["-k", WITHOUT_OPENVINO] if setting.get("ATEN_CPU_CAPABILITY") == "default" else []
            if subprocess.run([*command, *chosen], cwd=ROOT, env=environment, check=False).returncode:
                failed.append(name)
    if failed:
        print(f"Failed with {', '.join(failed)}.")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
