"""Recorded operators that ONNX's library of translations lacks, written in those that it knows."""

import math
import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

aten = torch.ops.aten
UNREAD = {aten._assert_tensor_metadata.default, aten.promote_types.default}
IN_PLACE = {  # what overwrites its input, and what does the same without
    aten.add_.Tensor: aten.add.Tensor,
    aten.relu_.default: aten.relu.default,
    aten.gelu_.default: aten.gelu.default,
    aten.hardswish_.default: aten.hardswish.default,
    aten.hardtanh_.default: aten.hardtanh.default,
}
ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")  # arguments in their order
FUSED_RANK = 4  # of the one layout in which attention is translated whole


def plainly(program: ExportedProgram) -> None:
    """Write casts, work in place, batch norms, and attention over windows beside heads in operators that are known."""
    for node in reversed(list(program.graph.nodes)):
        if node.target in UNREAD and not node.users:
            program.graph.erase_node(node)
        elif node.target is aten.to.dtype:
            node.target = aten._to_copy.default
            node.args, node.kwargs = node.args[:1], {"dtype": node.args[1]}
        elif node.target in IN_PLACE and is_fresh(node.args[0]):
            node.target = IN_PLACE[node.target]
        elif node.target is aten.batch_norm.default:
            write_batch_norm(program.graph, node)
        elif node.target is aten.scaled_dot_product_attention.default:
            write_attention(program.graph, node)
    program.graph_module.recompile()


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
