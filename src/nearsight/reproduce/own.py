"""What each row of the five papers describes, as a recipe."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..lattice import Grid
from ..models import MODELS
from ..models.counting import count_macs
from ..models.lightvit import lightvit
from ..parts import BiGate, ConcatMerge, DepthWise, Global, LinearQkv, LocalityFfn
from ..parts.slots import Site
from .dense import DenseRecipe, plan_dense
from .formula import lightvit_formula
from .published import Row
from .quoted import QUOTED
from .recipe import Derived, NotBuilt, Recipe, measure, recipe
from .transplants import with_depthwise, with_window_attention

Plan = Recipe | DenseRecipe | Derived | NotBuilt
HEADS = (3, 6, 12, 24)
ACTIVATIONS = {"relu6": "relu6", "h-swish": "hswish"}


def plan(row: Row) -> Plan:
    """How the figures of a row are obtained."""
    if row.dense:
        return plan_dense(row)
    return PAPER_PLANS[row.paper](row)


# LocalViT


def plan_localvit(row: Row) -> Plan:
    """Tables 1 to 5 and the text of LocalViT."""
    if row.table == "Text 4.3":
        return Derived("localvit_tiny with ECA minus without", eca_parameters)
    if row.name.startswith("DeiT-T") and "gamma" in row.setting:
        return recipe("deit_tiny", ratio=row.setting["gamma"])
    if row.table == "Table 5":
        return LOCALVIT.get(row.name) or QUOTED[row.name]
    options: dict[str, Any] = {"ffn": locality(row.setting)}
    if row.table == "Table 3":
        options["local_layers"] = row.setting["layers_with_locality"]
    return recipe("localvit_tiny", **options)


def locality(setting: Any) -> LocalityFfn:
    """The feed-forward part that a row of the ablations describes."""
    return LocalityFfn(
        gamma=setting["gamma"],
        act=ACTIVATIONS[setting["activation"]],
        depthwise=setting.get("depthwise", True),
        channel_attention=setting.get("channel_attention"),
        se_reduction=setting.get("se_reduction"),
    )


def eca_parameters() -> dict[str, float]:
    """Parameters that ECA adds to LocalViT-T."""
    without = recipe("localvit_tiny", ffn=LocalityFfn(channel_attention=None))
    gated = recipe("localvit_tiny", ffn=LocalityFfn(channel_attention="eca"))
    return {"extra_params": measure(gated).cost.parameters - measure(without).cost.parameters}


LOCALVIT = {
    "LocalViT-T": recipe("localvit_tiny"),
    "LocalViT-S": recipe("localvit_small"),
    "LocalViT-T2T": recipe("localvit_t2t"),
    "LocalViT-TNT": recipe("localvit_tnt"),
    "LocalViT-PVT": recipe("localvit_pvt"),
}

# LightViT


def plan_lightvit(row: Row) -> Plan:
    """The tables of LightViT's section 4; the paper's FLOPs come from its release's formula."""
    if row.name in QUOTED:
        return QUOTED[row.name]
    if row.name == "w/ 4 stages":
        return replace(recipe("lightvit_tiny"), spec=FOUR_STAGES, formula=lightvit_formula)
    return replace(lightvit_variant(row), formula=lightvit_formula)


def lightvit_variant(row: Row) -> Recipe:
    """A size of LightViT, or an ablation of LightViT-T."""
    setting = row.setting
    if "local_attn" in setting:
        return attention_ablation(setting)
    if row.table == "Table 6":
        return recipe("lightvit_tiny", aux=setting["global_tokens"])
    if setting.get("residual_merge") is False:
        return recipe("lightvit_tiny", merge=ConcatMerge())
    if setting.get("ope_stem") is False:
        return recipe("lightvit_tiny", embed="patchify")
    return recipe({"T": "lightvit_tiny", "S": "lightvit_small", "B": "lightvit_base"}[row.name.split()[0][-1]])


def attention_ablation(setting: Any) -> Recipe:
    """A row of Table 5: window or global attention, global tokens, gates."""
    gates = BiGate(channel_gate=setting["channel_attn"], spatial_gate=setting["spatial_attn"])
    options: dict[str, Any] = {"ffn": tuple(replace(gates, ratio=ratio) for ratio in (8, 4, 4))}
    if not setting["global_attn"]:
        options["aux"] = 0
    if not setting["local_attn"]:
        options["mixer"] = tuple(Global(heads=heads, relative=True) for heads in (2, 4, 8))
    return recipe("lightvit_tiny", **options)


FOUR_STAGES = lightvit((32, 64, 128, 256), (1, 1, 6, 6), (1, 2, 4, 8), 8, ratios=(8, 8, 4, 4), patch=4)

# LIT


def plan_lit(row: Row) -> Plan:
    """Tables 1 to 5 and the text of LIT."""
    if row.table == "Text 1":
        return Derived("Global(heads=3) on 56x56 tokens of width 96", msa_layer)
    if row.table == "Table 5":
        return removed_attention(row.setting)
    return LIT.get(row.name) or QUOTED[row.name]


def removed_attention(setting: Any) -> Recipe:
    """PVT-S with spatial reduction, or with full attention that is removed in the first stages."""
    if setting["attention"] == "SRA":
        return recipe("pvt_small")
    count = 0 if setting["removed_stages"] == "0" else len(setting["removed_stages"].split(","))
    mixers = tuple(None if index < count else Global(heads=heads) for index, heads in enumerate((1, 2, 5, 8)))
    return recipe("pvt_small_msa", mixer=mixers)


def msa_layer() -> dict[str, float]:
    """One attention layer on a 56x56 map of 96 channels."""
    grid = Grid(56, 56)
    with torch.device("meta"):
        layer = Global(heads=3).build(Site(96, grid), LinearQkv())
        return {"flops_g": count_macs(layer, torch.empty(1, grid.tokens, 96), grid) / 1e9}


LIT = {
    "LIT-Ti": recipe("lit_tiny"),
    "LIT-S": recipe("lit_small"),
    "LIT-M": recipe("lit_medium"),
    "LIT-B": recipe("lit_base"),
    "LIT-Ti*": recipe("lit_tiny", merge="conv"),
    "LIT-S*": recipe("lit_small", merge="concat"),
    "PVT-S + DTM": recipe("pvt_small", merge="deformable"),
    "Swin-Ti + DTM": recipe("swin_tiny", merge="deformable"),
}

# Dynamic depth-wise convolution


def plan_dwconv(row: Row) -> Plan:
    """Classification tables and text of the dwconv paper."""
    if row.table == "Table 4":
        return shared_weights(row.setting)
    if row.table == "Table 12":
        return recipe("swin_tiny" if row.name.startswith("Swin") else "dwnet_tiny", norm=NORMS[row.setting["norm"]])
    if row.table == "Table 14":
        return at_384(row)
    if row.name == "DeiT-B" and row.setting["image_size"] == 384:
        return recipe("deit_base", 384, img_size=384)
    named = DWCONV.get((row.table, row.name)) or DWCONV.get(("", row.name.replace("-Conv.", " Conv.")))
    return named or QUOTED[row.name]


def shared_weights(setting: Any) -> Recipe:
    """A row of Table 4: weights shared over channels, over positions, or both."""
    channels, positions = setting["share_channels"], setting["share_positions"]
    if setting["family"] == "Local MLP":
        return recipe("local_mlp_tiny", share_channels=channels, share_positions=positions)
    shared = (DepthWise(heads=heads, share_channels=channels, share_positions=positions) for heads in HEADS)
    return recipe("dwnet_tiny", mixer=tuple(shared))


def at_384(row: Row) -> Recipe:
    """A row of Table 14: fine-tuned at 384 pixels with windows or kernels of 7 or 12."""
    window = row.setting["window"]
    if row.name.startswith("Swin"):
        return recipe("swin_tiny", 384, img_size=384, window=window)
    return recipe("dwnet_tiny", 384, img_size=384, kernel=window)


def reduction(ours: str, host: str) -> dict[str, float]:
    """Percent that a model has less than its host."""
    small, large = measure(recipe(ours)).cost, measure(recipe(host)).cost
    return {
        "params_reduction_pct": 100 * (1 - small.parameters / large.parameters),
        "flops_reduction_pct": 100 * (1 - small.macs / large.macs),
    }


def depthwise_share() -> dict[str, float]:
    """Percent of DW-Conv.-T's multiply-adds that its depth-wise convolutions make."""
    spec = MODELS["dwnet_tiny"]
    sides = (56, 28, 14, 7)
    parts = (49 * side**2 * stage.dim * stage.depth for side, stage in zip(sides, spec.stages, strict=True))
    return {"flops_share_pct": 100 * sum(parts) / measure(recipe("dwnet_tiny")).cost.macs}


NORMS = {"LN": "layer", "BN": "batch", "CC-BN": "calibrated_batch"}
SIZES = {"T": "tiny", "B": "base"}
SLIDING = "Local MLP w/ attention"
DWCONV: dict[tuple[str, str], Plan] = {
    **{("", f"DW Conv.-{key}"): recipe(f"dwnet_{size}") for key, size in SIZES.items()},
    **{("", f"D-DW Conv.-{key}"): recipe(f"ddwnet_{size}") for key, size in SIZES.items()},
    **{("", f"I-D-DW Conv.-{key}"): recipe(f"iddwnet_{size}") for key, size in SIZES.items()},
    **{("", f"Swin-Local MLP-{key}"): recipe(f"local_mlp_{size}") for key, size in SIZES.items()},
    ("Table 5", "Local MLP"): recipe("local_mlp_tiny"),
    ("Table 5", f"{SLIDING} (= Swin-T)"): recipe("swin_tiny"),
    ("Table 5", SLIDING): recipe("swin_tiny", mixer="sliding"),
    ("Table 5", "DW Conv."): recipe("dwnet_tiny"),
    ("Table 5", "DW Conv. w/ homo. dyna."): recipe("ddwnet_tiny"),
    ("Table 5", "DW Conv. w/ inhomo. dyna."): recipe("iddwnet_tiny"),
    ("Table 6", "I-D-DW Conv."): recipe("iddwnet_tiny"),
    ("Table 6", "I-D-DW Conv. + DW"): recipe("iddwnet_tiny_dw"),
    ("Table 8", "Swin (tiny)"): recipe("swin_tiny"),
    ("Table 8", "DW Conv. (tiny)"): recipe("dwnet_tiny"),
    ("Table 13", "VOLO (Local SA)-d1"): replace(recipe("volo_d1_224"), change=with_window_attention),
    ("Table 13", "DW Conv.-d1"): replace(recipe("volo_d1_224"), change=with_depthwise),
    ("Table 13", "DW Conv.-S"): replace(recipe("twins_svt_small"), change=with_depthwise),
    ("Table 15", "Swin"): recipe("swin_tiny"),
    ("Table 15", "Swin + SE"): recipe("swin_tiny", mixer="squeezed"),
    ("Table 15", "DW Conv."): recipe("dwnet_tiny"),
    ("Table 15", "DW Conv. + SE"): recipe("dwnet_tiny", mixer="squeezed"),
    ("Text 3.3", "DW-Conv.-T vs Swin-T"): Derived(
        "dwnet_tiny against swin_tiny", partial(reduction, "dwnet_tiny", "swin_tiny")
    ),
    ("Text 3.3", "DW-Conv.-B vs Swin-B"): Derived(
        "dwnet_base against swin_base", partial(reduction, "dwnet_base", "swin_base")
    ),
    ("Text 3.4", "Swin-T without relative position bias (quoted)"): recipe("swin_tiny", relative=False),
    ("Text G", "share of depth-wise conv in total computation"): Derived(
        "depth-wise convolutions of dwnet_tiny", depthwise_share
    ),
}

# LIFE


def plan_life(row: Row) -> Plan:
    """Tables 1, 4 and 5 and the text of LIFE; its parameter columns have 100 classes."""
    if row.table == "Table 4":
        qkv = {"none": "linear", "3": "life_one_scale", "1,3,5": "life"}[row.setting["kernels"]]
        return recipe("deit_tiny", 32, img_size=32, patch_size=4, qkv=qkv, num_classes=100)
    if row.table == "Text A.3.1":
        return recipe("deit_tiny_life", scale_width=row.setting["channels_per_scale"])
    return LIFE.get(row.name) or QUOTED[row.name]


def hundred_classes(model: str, image_size: int = 224) -> Recipe:
    """A model as in Tables 1 and 5."""
    return recipe(model, image_size, num_classes=100)


LIFE = {
    "Resnet-18": hundred_classes("resnet18", 256),
    "Resnet-50": hundred_classes("resnet50", 256),
    "DeiT-T": hundred_classes("deit_tiny"),
    "DeiT-T-LIFE": hundred_classes("deit_tiny_life"),
    "DeiT-S": hundred_classes("deit_small"),
    "DeiT-S-LIFE": hundred_classes("deit_small_life"),
    "T2T-ViT-12": hundred_classes("t2t_vit_12"),
    "T2T-ViT-12-LIFE": hundred_classes("t2t_vit_12_life"),
    "Swinv2-T": hundred_classes("swinv2_tiny", 256),
    "Swinv2-T-LIFE": hundred_classes("swinv2_tiny_life", 256),
}

PAPER_PLANS: dict[str, Callable[[Row], Plan]] = {
    "localvit": plan_localvit,
    "lightvit": plan_lightvit,
    "lit": plan_lit,
    "dwconv": plan_dwconv,
    "life": plan_life,
}
