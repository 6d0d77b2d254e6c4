"""Models in OpenVINO's own format, made from an ONNX file."""

from pathlib import Path

from ..runs.runtime import need
from .program import first_line, written_whole


def write_openvino(onnx_path: Path, path: Path) -> None:
    """Convert an ONNX file to OpenVINO's format: a description (`.xml`) and the weights beside it (`.bin`).

    Weights stay in float32, and open axes stay open.

    Args:
        onnx_path: File to read.
        path: The `.xml` file to write; the `.bin` file has the same name.

    Raises:
        ValueError: OpenVINO is not installed, can't read the file, or `path` does not end in `.xml`.
        OSError: A file can't be written.
    """
    if path.suffix != ".xml":
        raise ValueError(f"{path} does not end in .xml; OpenVINO names its two files .xml and .bin.")
    if not onnx_path.is_file():
        raise FileNotFoundError(2, "there is no such ONNX file; write it first with write_onnx", str(onnx_path))
    openvino = need("openvino", "The OpenVINO format")
    weights = path.with_suffix(".bin")
    with written_whole(weights) as part_of_weights, written_whole(path) as part:
        try:
            # Not `convert_model`, which would try the formats of other frameworks on a damaged file.
            graph = openvino.Core().read_model(onnx_path)
        except RuntimeError as error:
            reason = first_line(error)
            raise ValueError(f"OpenVINO can't convert {onnx_path} ({reason}); update it.") from None
        openvino.serialize(graph, part, part_of_weights)
