"""CvT's parts give what another library's CvT gives with the same weights."""

import numpy as np
import torch

from nearsight.lattice import Grid
from nearsight.models import Backbone
from nearsight.models.hosts import cvt
from tests.checkpoints.recorded import filled, uniform

SPEC = cvt((16, 32, 48), (1, 2, 3), (1, 2, 3))
# transformers 5.23.0, CvtForImageClassification(CvtConfig(num_labels=5, embed_dim=[16, 32, 48], num_heads=[1, 2, 3],
# depth=[1, 2, 3], qkv_bias=[True] * 3, drop_path_rate=[0.0] * 3)) in evaluation, its tensors filled from their names as
# below, images of 64x96 pixels from the name `input`.
LOGITS = np.array(
    [
        [-0.9605841, 0.4041518, 0.0494213, 0.1641496, -0.8923763],
        [-3.5373081, 0.3138863, 0.9383831, -0.1105506, 0.2571375],
    ]
)
OF_BLOCKS = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "ffn.fc1": "intermediate.dense",
    "ffn.fc2": "output.dense",
    "mixer.proj": "attention.output.dense",
}
OF_QKV = {"convs": "convolution_projection_{}.convolution_projection.convolution"}
OF_QKV |= {"norms": "convolution_projection_{}.convolution_projection.normalization", "linears": "projection_{}"}


def name_there(name: str) -> str:
    """The name in transformers of one of our tensors."""
    if not name.startswith(("embed", "stages")):
        return name.replace("norm", "layernorm").replace("head", "classifier")
    stage, rest = ("0", name[6:]) if name.startswith("embed") else name[7:].split(".", 1)
    prefix = f"cvt.encoder.stages.{stage}."
    if rest == "aux_tokens":
        return f"{prefix}cls_token"
    if not rest.startswith("blocks"):
        module, kind = rest.split(".")[-2:]
        layer = "normalization" if module == "norm" else "projection"
        return f"{prefix}embedding.convolution_embeddings.{layer}.{kind}"
    _, block, rest = rest.split(".", 2)
    prefix += f"layers.{block}."
    module, kind = rest.rsplit(".", 1)
    if module in OF_BLOCKS:
        return f"{prefix}{OF_BLOCKS[module]}.{kind}"
    _, layers, index = module.split(".")
    return f"{prefix}attention.attention.{OF_QKV[layers].format(('query', 'key', 'value')[int(index)])}.{kind}"


def rule(name: str, shape: tuple[int, ...]) -> str:
    """How a tensor is filled."""
    if "cls_token" in name:
        return "E"
    if "running_var" in name:
        return "V"
    if len(shape) == 1:
        return "G" if name.endswith("weight") else "B"
    return "W"


def test_the_model_predicts_what_transformers_predicts() -> None:
    model = Backbone(SPEC, num_classes=5).eval()
    state = {}
    for name, tensor in model.state_dict().items():
        there, shape = name_there(name), tuple(tensor.shape)
        state[name] = filled(there, shape, rule(there, shape)) if shape else tensor
    model.load_state_dict(state)
    images = torch.from_numpy(uniform("input", (2, 3, 64, 96)).astype(np.float32))
    with torch.no_grad():
        torch.testing.assert_close(model(images), torch.tensor(LOGITS, dtype=torch.float32), rtol=1e-4, atol=1e-5)


def test_keys_are_a_quarter_of_the_queries_and_auxiliary_tokens_pass_by_the_convolutions() -> None:
    model = Backbone(SPEC, num_classes=5).eval()
    mixer, grid = model.stages[2].blocks[0].mixer, Grid(7, 11, 1)
    tokens = torch.randn(1, grid.tokens, 48)
    queries, keys, values = mixer.by_heads(tokens, grid)
    assert queries.shape == (1, 3, 78, 16)
    assert keys.shape == values.shape == (1, 3, 1 + 4 * 6, 16)
    first = mixer.linears[1](tokens[:, :1])
    torch.testing.assert_close(keys[:, :, 0].flatten(1), first[:, 0])
