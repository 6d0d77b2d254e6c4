"""What was measured as JSON: every round's seconds, so that others can compute again, and the machine."""

import json
import math
from dataclasses import asdict
from typing import Any

from .. import __version__
from ..clock import Spread
from ..train.run import environment
from .results import Bench, Key
from .scaling import growths


def to_json(found: Bench, *, scaling: bool = False) -> bytes:
    """The bytes of the file."""
    record = {
        "nearsight": __version__,
        "machine": describe_machine(found),
        "setting": describe_setting(found),
        "peak": {
            "matrix_side": found.side,
            "flops_per_second": plain(found.peak_flops),
            "seconds": found.peak,
            "warning": found.restless,
        },
        "models": [
            {
                "label": subject.label,
                "name": subject.name,
                "size": subject.size,
                "parameters": subject.parameters,
                "macs": subject.macs,
            }
            for subject in found.subjects
        ],
        "measurements": [describe(found, key) for key in found.seconds],
        "missing": [asdict(missing) for missing in found.missing],
    }
    if scaling:
        record["scaling"] = [
            {
                "model": growth.label,
                "runtime": growth.runtime,
                "exponent": plain(growth.latency),
                "memory_exponent": plain(growth.memory),
            }
            for growth in growths(found)
        ]
    return (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode()


def describe_machine(found: Bench) -> dict[str, Any]:
    """Where and with what it was measured."""
    about = environment()
    versions = about["versions"]
    for package in ("onnxruntime",):
        try:
            versions[package] = __import__(package).__version__
        except ImportError:
            versions[package] = None
    return {**about, "threads": found.setting.threads}


def describe_setting(found: Bench) -> dict[str, Any]:
    """How it was measured."""
    return {
        **asdict(found.setting),
        "device": str(found.setting.device),
        "rounds_measured": len(found.peak),
        "interrupted": bool(found.interrupted),
        "reference": found.reference,
    }


def describe(found: Bench, key: Key) -> dict[str, Any]:
    """One measurement."""
    ratio = found.ratio(key)
    return {
        "model": key.label,
        "size": key.size,
        "runtime": key.runtime,
        "batch": key.batch,
        "milliseconds": plain(found.milliseconds(key)),
        "images_per_second": plain(found.images_per_second(key)),
        "memory_bytes": found.memory.get(key),
        "fraction_of_peak": plain(found.fraction(key)),
        "time_ratio": plain(ratio),
        "seconds_until_ready": found.making[key],
        "seconds": found.seconds[key],
    }


def plain(value: Spread | None) -> dict[str, float | None] | None:
    """A median and its interval; an end that is not known is null."""
    if value is None:
        return None
    return {name: number if math.isfinite(number) else None for name, number in value._asdict().items()}
