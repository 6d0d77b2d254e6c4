"""A localized model answers exactly as before, and everything new in it learns."""

import copy

import pytest
import torch
import torch.nn.functional as F
from small_hosts import fresh, host, named, pictures
from torch import Tensor, nn

from nearsight import localize
from tools.hosts import EXAMPLES, Example

PARTS = [
    ("ffn", "localvit"),
    ("ffn", "bigate"),
    ("qkv", "life"),
    ("mixer", "depthwise"),
    ("mixer", "dynamic_depthwise"),
    ("mixer", "gather_broadcast"),
    ("mixer", "squeezed"),
    ("merge", "deformable"),
]
PYRAMIDS = {"Swin", "Swin v2", "PVT v2", "Twins-SVT", "VOLO", "Swin (ours)"}
NO_QKV = {"TNT", "PVT v2"}


def fits(family: str, slot: str) -> bool:
    """What the architectures themselves say: merges are between stages, LIFE needs Q, K and V of one map."""
    return family in PYRAMIDS if slot == "merge" else slot != "qkv" or family not in NO_QKV


CELLS = [(e, slot, part) for e in EXAMPLES for slot, part in PARTS if fits(e.family, slot)]
REFUSED = [(e, slot, part) for e in EXAMPLES for slot, part in PARTS if not fits(e.family, slot)]
over_cells = pytest.mark.parametrize(
    ("example", "slot", "part"), CELLS, ids=[f"{e.family}-{part}" for e, _, part in CELLS]
)


def at_size(example: Example, size: tuple[int, int]) -> nn.Module:
    """The host for another size; its weights may differ, and it is compared with itself."""
    if example.resize == "build":
        return host(example, size)
    if size == example.size:
        return host(example)
    model = fresh(example)
    if example.resize == "set" and not example.ours and hasattr(model, "set_input_size"):
        model.set_input_size(size)
    return model


@over_cells
def test_outputs_are_the_same_to_the_last_bit(example: Example, slot: str, part: str) -> None:
    for size in (example.size, example.other):
        model = at_size(example, size)
        local = localize(model, **{slot: part})
        assert local is not model and local.localized.new
        for batch in (1, 3):
            images = pictures(batch, size)
            with torch.no_grad():
                assert torch.equal(local(images), model(images))


@over_cells
def test_every_new_parameter_learns_by_the_second_step(example: Example, slot: str, part: str) -> None:
    local = localize(host(example), **{slot: part}).train()
    before = {name: p.detach().clone() for name, p in local.named_parameters()}
    optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        logits = local(pictures(4, example.size, seed=step))
        logits = logits[0] if isinstance(logits, tuple) else logits
        F.cross_entropy(logits, torch.tensor([0, 1, 2, 3])).backward()
        if step == 0:
            optimizer.step()
    dead = [name for name, p in local.named_parameters() if name in local.localized.new and not moved(p)]
    assert dead == []
    assert any(not torch.equal(p, before[name]) for name, p in local.named_parameters())


def moved(parameter: Tensor) -> bool:
    return parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)


@pytest.mark.parametrize(("example", "slot", "part"), REFUSED, ids=[f"{e.family}-{part}" for e, _, part in REFUSED])
def test_a_host_without_the_slot_says_what_is_missing(example: Example, slot: str, part: str) -> None:
    what = "nothing merges" if slot == "merge" else "queries, keys and values"
    for preserve in (True, False):
        with pytest.raises(ValueError, match=what):
            localize(example.build(), **{slot: part}, preserve=preserve)


def test_all_parts_together_preserve() -> None:
    for family in ("ViT with registers", "EVA (DINOv3)", "Swin v2", "Swin (ours)"):
        example = named(family)
        merge = {"merge": "deformable"} if family in PYRAMIDS else {}
        model = host(example)
        local = localize(model, ffn="localvit", qkv="life", mixer="depthwise", **merge)
        images = pictures(2, example.size)
        assert torch.equal(local(images), model(images))


def test_the_host_is_left_alone_unless_inplace(example: Example) -> None:
    model = fresh(example)
    names = [name for name, _ in model.named_parameters()]
    tensors = copy.deepcopy(model.state_dict())
    hooks = sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())
    localize(model, ffn="localvit", mixer="depthwise")
    assert names == [name for name, _ in model.named_parameters()]
    assert all(torch.equal(tensors[name], tensor) for name, tensor in model.state_dict().items())
    assert hooks == sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())
    same = localize(model, ffn="localvit", inplace=True)
    assert same is model and model.localized.new


def test_what_is_refused_in_place_leaves_the_model_whole() -> None:
    model = fresh(named("TNT"))
    names = [name for name, _ in model.named_modules()]
    with pytest.raises(ValueError, match="queries, keys and values"):
        localize(model, ffn="localvit", qkv="life", inplace=True)
    assert names == [name for name, _ in model.named_modules()]


def test_pretrained_weights_keep_their_names() -> None:
    model = host(named("ViT"))
    local = localize(model, ffn="localvit", qkv="life", mixer="gather_broadcast")
    assert model.state_dict().keys() < local.state_dict().keys()
    missing, unexpected = local.load_state_dict(model.state_dict(), strict=False)
    assert unexpected == [] and {name for name in missing if name in dict(local.named_parameters())} == set(
        local.localized.new
    )


def test_layers_are_counted_from_one() -> None:
    model = host(named("ViT"))
    assert localize(model, qkv="life", layers="low").localized.layers == {"qkv": (1,)}
    assert localize(model, qkv="life", layers=[3, 1]).localized.layers == {"qkv": (1, 3)}
    assert localize(model, qkv="life", layers="2-3").localized.layers == {"qkv": (2, 3)}
    for wrong in ([0], [4], "0-1"):
        with pytest.raises(ValueError, match="layers 1 to 3"):
            localize(model, ffn="localvit", layers=wrong)
    for wrong in ("high", [True], []):
        with pytest.raises(ValueError, match="layers"):
            localize(model, ffn="localvit", layers=wrong)


def test_a_part_for_patches_that_nothing_reads_is_left_out() -> None:
    """Behind the last layer a class token is read; its patches' new weights could never learn."""
    model = host(named("ViT"))
    assert localize(model, ffn="localvit").localized.layers == {"ffn": (1, 2)}
    assert localize(model, ffn="localvit", preserve=False).localized.layers == {"ffn": (1, 2, 3)}  # as in the paper
    with pytest.raises(ValueError, match="head reads the class token"):
        localize(model, ffn="localvit", layers=[3])
    assert localize(host(named("SigLIP")), ffn="localvit").localized.layers == {"ffn": (1, 2, 3)}


def test_a_model_is_not_localized_twice() -> None:
    local = localize(host(named("ViT")), ffn="localvit")
    with pytest.raises(ValueError, match="localized already"):
        localize(local, qkv="life")


def test_other_models_and_parts_are_refused_in_a_sentence() -> None:
    import timm

    from nearsight.parts import Life, LocalityFfn, Mlp

    with pytest.raises(ValueError, match="ResNet has no blocks"):
        localize(timm.create_model("resnet18"), ffn="localvit")
    with pytest.raises(ValueError, match="patch_drop_rate=0"):
        localize(timm.create_model("vit_tiny_patch16_224", patch_drop_rate=0.5), ffn="localvit")
    vit = host(named("ViT"))
    with pytest.raises(ValueError, match="no part"):
        localize(vit)
    with pytest.raises(ValueError, match="Did you mean 'localvit'"):
        localize(vit, ffn="localvt")
    with pytest.raises(ValueError, match="it knows LocalityFfn"):
        localize(vit, ffn=Mlp())
    with pytest.raises(ValueError, match="begin with 1"):
        localize(vit, qkv=Life(kernels=(3,)))
    with pytest.raises(ValueError, match="depthwise_first"):
        localize(vit, ffn=LocalityFfn(depthwise_first=True))


SLIM = {"patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
VARIANTS = [
    ("eva02_tiny_patch14_224", SLIM),  # SwiGLU, biases of queries and values
    ("eva02_base_patch14_224", SLIM),  # separate layers for queries, keys and values
    ("vit_giant_patch14_dinov2", SLIM),  # packed SwiGLU
    ("vit_tiny_r_s16_p8_224", {"embed_dim": 48, "depth": 2, "num_heads": 3}),  # a ConvNet in front
    ("vit_base_patch16_clip_224", SLIM),  # a norm in front of the blocks
    ("swin_s3_tiny_224", {"embed_dim": 24, "depths": (1, 1), "num_heads": (2, 4), "window_size": (4, 2)}),
    ("twins_pcpvt_small", {"embed_dims": (16, 32), "depths": (1, 1), "num_heads": (1, 2), "sr_ratios": (2, 1)}),
    ("pvt_v2_b2_li", {"embed_dims": (16, 32), "depths": (1, 1), "num_heads": (1, 2)}),  # pooled keys
]


@pytest.mark.parametrize(("name", "small"), VARIANTS, ids=[name for name, _ in VARIANTS])
def test_variants_of_the_families(name: str, small: dict[str, object]) -> None:
    import timm

    sized = {} if name.startswith("pvt") else {"img_size": 64}
    model = timm.create_model(name, num_classes=3, **small, **sized).eval()
    qkv = {} if name.startswith(("pvt", "twins_pc", "eva02_base")) else {"qkv": "life"}
    local = localize(model, ffn="localvit", mixer="depthwise", **qkv)
    images = pictures(2, (64, 64))
    with torch.no_grad():
        assert torch.equal(local(images), model(images))


def test_blocks_without_the_usual_layers_are_refused() -> None:
    """Blocks that run attention and MLP side by side through one layer have no place of their own for a part."""
    from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer

    model = VisionTransformer(img_size=32, **SLIM, block_fn=ParallelScalingBlock)
    with pytest.raises(ValueError, match="has no blocks that a local part fits into"):
        localize(model, ffn="localvit")


def test_batches_in_half_precision_and_training_mode_stay() -> None:
    model = fresh(named("ViT")).to(torch.bfloat16).train()
    local = localize(model, ffn="localvit", mixer="depthwise")
    assert {p.dtype for p in local.parameters()} == {torch.bfloat16}
    assert all(module.training for module in local.modules())
    model.eval()
    local.eval()
    images = pictures(2, (32, 32)).to(torch.bfloat16)
    assert torch.equal(local(images), model(images))


def test_a_start_gives_only_what_is_new_and_zero_small_weights() -> None:
    example = next(one for one in EXAMPLES if one.family == "ViT")
    model = host(example)
    still = dict(localize(model, ffn="localvit", qkv="life").named_parameters())
    moved = localize(model, ffn="localvit", qkv="life", start=0.02)
    assert moved.localized.as_json()["start"] == 0.02
    changed = [name for name, found in moved.named_parameters() if not torch.equal(found, still[name])]
    zero = {name for name in moved.localized.new if not still[name].any() and not name.endswith("bias")}
    drawn = set(moved.localized.new) - zero  # what starts by chance differs from call to call anyway
    assert zero and zero <= set(changed) <= zero | drawn
    spread = torch.cat([dict(moved.named_parameters())[name].detach().flatten() for name in zero]).std()
    assert 0.015 < float(spread) < 0.025
    images = pictures(2, example.size)
    with torch.no_grad():
        before, after = model(images), moved(images)
    assert 0 < float((after - before).abs().max()) < 0.2 * float(before.abs().max())
