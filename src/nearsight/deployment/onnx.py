"""Models in the ONNX format, in its standard operators alone, and from there in OpenVINO's."""

import copy
import logging
import math
import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from ..console import first_line
from ..heads import graph
from ..runs.runtime import need
from ..tasks.build import channels_seen
from .graph import INPUT, Axes, Exportable, record, written_whole

MOST = 2**62  # boxes that are left at most
OPSET = 20  # the first with GELU as one operator


def write_onnx(model: nn.Module, path: Path, size: tuple[int, int]) -> Axes:
    """Write a model as an ONNX file in float32, in one file, with the input `images`.

    The output of a classifier is `logits`; a detector or segmenter names its own.

    Args:
        model: Takes images `[B, C, H, W]`, returns `[B, classes]` or has `export_outputs`; in evaluation mode,
            usually folded.
        path: File to write.
        size: Height and width of the images that it is recorded with, and the only ones where other sizes can't be.

    Returns:
        Which sides of the input the file leaves open.

    Raises:
        ValueError: A package is missing, or the model can't be exported.
        OSError: The file can't be written.

    Example:
        >>> import tempfile, nearsight
        >>> model = nearsight.create_model("dwnet_nano", num_classes=10).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_onnx(model, Path(folder) / "model.onnx", (32, 32))
        Axes(batch=True, size=True)
    """
    for package in ("onnx", "onnxscript"):
        need(package, "Writing an ONNX file")
    with written_whole(path) as part, quietly():
        exportable = Exportable(model)
        program, axes = record(exportable, size)
        with torch.no_grad():
            names = tuple(exportable.outputs(torch.zeros(1, channels_seen(model), *size)))
        translated = translate(program, names)
        tidy(translated)
        name_axes(translated.model, axes)
        translated.save(part, external_data=False)
    return axes


def translate(program: ExportedProgram, names: tuple[str, ...]) -> Any:
    """The graph in ONNX's operators, a `torch.onnx.ONNXProgram`.

    PyTorch would first trace the graph twice more, with symbols for sizes, to break up operators; that takes a minute
    for a model of middling size. The library of translations knows nearly all operators as they were recorded, so that
    is done only where one is missing.
    """
    whole = copy.copy(program)
    plainly(whole)
    whole.run_decompositions = lambda table=None: whole  # type: ignore[method-assign, assignment]
    try:
        return to_onnx(whole, names)
    except torch.onnx.OnnxExporterError:
        return to_onnx(program, names)


def to_onnx(program: ExportedProgram, names: tuple[str, ...]) -> Any:
    """PyTorch's translation, without its optimiser: runtimes fold constants faster when they load the file."""
    return torch.onnx.export(
        program,
        input_names=[INPUT],
        output_names=list(names),
        opset_version=OPSET,
        custom_translation_table=own_operators(),
        dynamo=True,
        optimize=False,
        verbose=False,
    )


def own_operators() -> dict[Any, Any]:
    """How the operators of `heads.graph` are written in ONNX."""
    import onnxscript

    op: Any = onnxscript.opset20

    def nms_keep(boxes: Any, scores: Any, iou: float, least: float) -> Any:
        # Rows of group, class (always 0) and box.
        kept = op.NonMaxSuppression(boxes, op.Unsqueeze(scores, [1]), MOST, iou, least)
        levels_of = op.Gather(kept, [0, 2], axis=1)
        none = op.ConstantOfShape(op.Shape(scores), value=boolean(False))
        return op.ScatterND(none, levels_of, op.ConstantOfShape(op.Shape(kept, start=0, end=1), value=boolean(True)))

    def pool_levels(levels: Any, boxes: Any, levels_of: Any, scales: Any, side: int, samples: int) -> Any:
        channels = op.Shape(levels[0], start=1, end=2)
        shape = op.Concat(op.Shape(boxes, start=0, end=1), channels, op.Constant(value_ints=[side, side]), axis=0)
        pooled = op.ConstantOfShape(shape)
        for number, (level, scale) in enumerate(zip(levels, scales, strict=True)):
            own = op.Transpose(op.NonZero(op.Equal(levels_of, number)))  # [k, 1]
            rows = op.Squeeze(own, [1])
            part = op.RoiAlign(
                level,
                op.Gather(boxes, rows),
                op.Mul(rows, 0),  # all of the one image
                coordinate_transformation_mode="output_half_pixel",
                spatial_scale=scale,
                output_height=side,
                output_width=side,
                sampling_ratio=samples,
            )
            pooled = op.ScatterND(pooled, own, part)
        return pooled

    return {
        graph.nms_keep._opoverload: nms_keep,
        graph.pool_levels._opoverload: pool_levels,
    }


def boolean(value: bool) -> Any:
    """One boolean as ONNX has it in attributes."""
    import onnx

    return onnx.helper.make_tensor("value", onnx.TensorProto.BOOL, [1], [value])


def tidy(translated: Any) -> None:
    """Compute once what several blocks compute alike, sizes above all, and drop what nobody reads.

    Among that is where in which source file an operation was written, with the paths of the machine that exports.
    """
    from onnx_ir.passes import common

    for step in (
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(),
        common.DeduplicateInitializersPass(),
        common.RemoveUnusedNodesPass(),
    ):
        translated.model = step(translated.model).model
    for node in translated.model.graph.all_nodes():
        node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)


def name_axes(graph: Any, axes: Axes) -> None:
    """Give the open axes the names that people look for; `graph` is a model of the package `onnx_ir`."""
    images = graph.graph.inputs[0]
    names = {str(images.shape[axis]): name for axis, name in axes.names().items()}
    for value in (*graph.graph.inputs, *graph.graph.outputs):
        for axis, side in enumerate(value.shape):
            if str(side) in names:
                value.shape[axis] = names[str(side)]


@contextmanager
def quietly() -> Iterator[None]:
    """The exporter without its remarks on missing optional packages and on names of dimensions."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


aten = torch.ops.aten
UNREAD = {aten._assert_tensor_metadata.default, aten.promote_types.default}
NOTHING = {aten.lift_fresh_copy.default, aten.detach.default, aten.detach_.default, aten.alias.default}
SAME = {  # what overwrites its input, or has an unknown name, and what does the same without
    aten.__and__.Tensor: aten.bitwise_and.Tensor,
    aten.masked_fill_.Scalar: aten.masked_fill.Scalar,
    aten.add_.Tensor: aten.add.Tensor,
    aten.relu_.default: aten.relu.default,
    aten.gelu_.default: aten.gelu.default,
    aten.hardswish_.default: aten.hardswish.default,
    aten.hardtanh_.default: aten.hardtanh.default,
}
ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")  # arguments in their order
TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
TRANSPOSED_SIDES = (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0))
FUSED_RANK = 4  # of the one layout in which attention is translated whole


def plainly(program: ExportedProgram) -> None:
    """Write casts, work in place, batch norms, and attention over windows beside heads in operators that are known."""
    for node in reversed(list(program.graph.nodes)):
        if node.target in UNREAD and not node.users:
            program.graph.erase_node(node)
        elif node.target is aten.to.dtype:
            node.target = aten._to_copy.default
            node.args, node.kwargs = node.args[:1], {"dtype": node.args[1]}
        elif node.target is aten.to.device:  # there is one device
            node.target = aten._to_copy.default
            node.args, node.kwargs = node.args[:1], {"dtype": node.args[2]}
        elif node.target in NOTHING:
            replace(program.graph, node, node.args[0])
        elif node.target in SAME and is_fresh(node.args[0]):
            node.target = SAME[node.target]
        elif node.target is aten.conv_transpose2d.input:
            given = dict(zip(TRANSPOSED, node.args, strict=False)) | node.kwargs
            sides = [pair(given.get(name, default)) for name, default in TRANSPOSED_SIDES]
            bias, groups = given.get("bias"), given.get("groups", 1)
            node.target, node.kwargs = aten.convolution.default, {}
            node.args = (given["input"], given["weight"], bias, *sides[:3], True, sides[3], groups)
        elif node.target is aten.batch_norm.default:
            write_batch_norm(program.graph, node)
        elif node.target is aten.scaled_dot_product_attention.default:
            write_attention(program.graph, node)
    program.graph_module.recompile()


def pair(value: Any) -> list[int]:
    """Height and width from one number, or a list of one or two."""
    both = [value] if isinstance(value, int) else list(value)
    return both * 2 if len(both) == 1 else both


def is_fresh(node: Any) -> bool:
    """Whether nobody else reads the numbers of a node, or those that it is a view of, and sees them overwritten."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or len(node.users) > 1:
        return False
    is_view = any(made.alias_info is not None for made in schema.returns)
    return is_fresh(node.args[0]) if is_view else True


def write_batch_norm(graph: Graph, node: Node) -> None:
    """The norm in evaluation, whose first result is what `batch_norm` returns."""
    *tensors, training, momentum, epsilon, _ = node.args
    if training:
        return
    with graph.inserting_before(node):
        normed = call(graph, aten._native_batch_norm_legit_no_training.default, *tensors, momentum, epsilon)
        replace(graph, node, call(graph, operator.getitem, normed, 0))


def write_attention(graph: Graph, node: Node) -> None:
    """Attention of another rank than four as its formula, softmax(scale * Q K^T + mask) V."""
    given: dict[str, Any] = dict(zip(ATTENTION, node.args, strict=False)) | node.kwargs
    queries, keys, values = (given[name] for name in ATTENTION[:3])
    shape = queries.meta["val"].shape
    if len(shape) == FUSED_RANK or given.get("is_causal") or given.get("enable_gqa"):
        return
    scale = given.get("scale") or 1 / math.sqrt(shape[-1])
    with graph.inserting_before(node):
        across = call(graph, aten.transpose.int, keys, -2, -1)
        scores = call(graph, aten.matmul.default, call(graph, aten.mul.Tensor, queries, scale), across)
        masked = write_mask(graph, scores, given.get("attn_mask"))
        replace(graph, node, call(graph, aten.matmul.default, call(graph, aten.softmax.int, masked, -1), values))


def write_mask(graph: Graph, scores: Node, mask: Node | None) -> Node:
    """Scores with a bias added, or with those left alone that a mask is true for."""
    if mask is None:
        return scores
    if mask.meta["val"].dtype == torch.bool:
        return call(graph, aten.masked_fill.Scalar, scores, call(graph, aten.logical_not.default, mask), -math.inf)
    return call(graph, aten.add.Tensor, scores, mask)


def call(graph: Graph, target: Any, *inputs: Any) -> Node:
    """A new node, with the shape that its result has."""
    made = graph.call_function(target, inputs)
    known = [value.meta["val"] if isinstance(value, Node) else value for value in inputs]
    made.meta["val"] = target(*known)
    return made


def replace(graph: Graph, node: Node, by: Node) -> None:
    """Let the readers of a node read another one."""
    node.replace_all_uses_with(by)
    graph.erase_node(node)


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
            raise ValueError(f"OpenVINO can't convert {onnx_path} ({first_line(error)}); update it.") from None
        openvino.serialize(graph, part, part_of_weights)
