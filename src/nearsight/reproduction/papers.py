"""What each row of the five papers describes, as a recipe: their own models, those they quote, their transplants."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import timm
import torch
from timm.models.resnet import Bottleneck
from torch import nn

from ..lattice import Grid
from ..models import MODELS
from ..models.counting import count_macs
from ..models.hosts import t2t
from ..models.lightvit import lightvit
from ..models.registry import create_from_spec
from ..models.spec import BackboneSpec
from ..parts import BiGate, ConcatMerge, DepthWise, Global, LinearQkv, LocalityFfn, TokensToToken, Window
from ..parts.slots import Site
from ..retrofit import localize
from .published import PublishedRow, published_rows
from .recipes import (
    NOT_SHIPPED,
    BuildRecipe,
    DenseRecipe,
    Derived,
    NotBuilt,
    lightvit_formula,
    measure,
    plan_dense,
    recipe,
)


def as_beside_hrnet(resnet: nn.Module) -> nn.Module:  # tables show its name
    """A ResNet of basic blocks as HRNet's authors compare with: two strided 3x3 convolutions for the 7x7 one and the
    pooling, and a bottleneck from 512 to 2048 channels at the end (appendix B of their paper, arXiv 1908.07919)."""
    model: Any = resnet
    first, second = nn.Conv2d(3, 64, 3, 2, 1, bias=False), nn.Conv2d(64, 64, 3, 2, 1, bias=False)
    model.conv1 = nn.Sequential(first, nn.BatchNorm2d(64), nn.ReLU(), second)
    model.maxpool = nn.Identity()
    shortcut = nn.Sequential(nn.Conv2d(512, 2048, 1, bias=False), nn.BatchNorm2d(2048))
    model.layer4.append(Bottleneck(512, 512, downsample=shortcut))
    model.fc = nn.Linear(2048, 1000)
    return model


def two_convolutions(*blocks: int) -> BuildRecipe:
    """Such a ResNet: with the stem, the bottleneck and the classifier the blocks make 38, 72 and 106 layers."""
    return replace(recipe("resnet34", layers=blocks), change=as_beside_hrnet)


QUOTED: dict[str, BuildRecipe | NotBuilt] = {
    # Convolutional networks
    "ResNet-18": recipe("resnet18"),
    "ResNet-50": recipe("resnet50"),
    "ResNet-101": recipe("resnet101"),
    "ResNet-152": recipe("resnet152"),
    "ResNet-38 (two 3x3)": two_convolutions(3, 4, 6, 3),
    "ResNet-72 (two 3x3)": two_convolutions(3, 4, 23, 3),
    "ResNet-106 (two 3x3)": two_convolutions(3, 8, 36, 3),
    "HRNet-W18": recipe("hrnet_w18"),
    "HRNet-W32": recipe("hrnet_w32"),
    "HRNet-W48": recipe("hrnet_w48"),
    "DenseNet-169": recipe("densenet169"),
    "RegNet-4GF": recipe("regnety_040"),
    "RegNetY-800M": recipe("regnety_008"),
    "RegNetY-1.6G": recipe("regnety_016"),
    "RegNetY-4G": recipe("regnety_040"),
    "MobileNetV1": recipe("mobilenetv1_100"),
    "MobileNetV2 (1.4)": recipe("mobilenetv2_140"),
    "EfficientNet-B0": recipe("efficientnet_b0"),
    "EfficientNet-B4": recipe("efficientnet_b4", 380),
    # MLPs
    "Mixer-B/16": recipe("mixer_b16_224"),
    "Mixer-L/16": recipe("mixer_l16_224"),
    "ResMLP-12": recipe("resmlp_12_224"),
    "ResMLP-24": recipe("resmlp_24_224"),
    "ResMLP-36": recipe("resmlp_36_224"),
    "gMLP-Ti": recipe("gmlp_ti16_224"),
    "gMLP-S": recipe("gmlp_s16_224"),
    "gMLP-B": recipe("gmlp_b16_224"),
    # Transformers that are hosts here
    "DeiT-T": recipe("deit_tiny"),
    "DeiT-Ti": recipe("deit_tiny"),
    "DeiT-S": recipe("deit_small"),
    "DeiT-B": recipe("deit_base"),
    "DeiT-T (distilled)": recipe("deit_tiny_distilled"),
    "DeiT-S (distilled)": recipe("deit_small_distilled"),
    "T2T-ViT-7": recipe("t2t_vit_7"),
    "TNT-T": recipe("tnt_tiny"),
    "PVT-T": recipe("pvt_tiny"),
    "PVT-Ti": recipe("pvt_tiny"),
    "PVT-S": recipe("pvt_small"),
    "PVT-M": recipe("pvt_medium"),
    "PVT-L": recipe("pvt_large"),
    "Swin-T": recipe("swin_tiny"),
    "Swin-Ti": recipe("swin_tiny"),
    "Swin-S": recipe("swin_small"),
    "Swin-B": recipe("swin_base"),
    "CvT-21": recipe("cvt_21", num_classes=100),
    # Transformers of timm
    "ViT-B/16": recipe("vit_base_patch16_384", 384),
    "ViT-L/16": recipe("vit_large_patch16_384", 384),
    "PVTv2-B0": recipe("pvt_v2_b0"),
    "PVTv2-B1": recipe("pvt_v2_b1"),
    "PVTv2-B2": recipe("pvt_v2_b2"),
    "PVT-v2": recipe("pvt_v2_b2"),
    "MobileViT-XS": recipe("mobilevit_xs", 256),
    "MobileViT-S": recipe("mobilevit_s", 256),
    "Twins-PCPVT": recipe("twins_pcpvt_small"),
    "Twins-PCPVT-S": recipe("twins_pcpvt_small"),
    "Twins-SVT": recipe("twins_svt_small"),
    "SVT-S": recipe("twins_svt_small"),
    "CoaT-Lite": recipe("coat_lite_small"),
    "CoaT": recipe("coat_small"),
    "VOLO-d1": recipe("volo_d1_224"),
    # Models without a maintained implementation
    "SimViT-Micro": NOT_SHIPPED,
    "LVT": NOT_SHIPPED,
    "ResT-Small": NOT_SHIPPED,
    "ResT-Base": NOT_SHIPPED,
    "Shuffle Transformer": NOT_SHIPPED,
}


@dataclass(frozen=True)
class Transplant:
    """A row of a paper that puts its part into another network.

    Attributes:
        paper: Key of the paper.
        table: Where it is printed.
        row: Name of the row.
        host: Model of ours or of timm that the part goes into.
        parts: What `localize` is given; it is called without `preserve`, for the paper's exact form.
        options: What the host is built with.
        spec: The host itself, where the paper changed its width for the part.
    """

    paper: str
    table: str
    row: str
    host: str
    parts: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    spec: BackboneSpec | None = None

    def build(self, **options: Any) -> nn.Module:
        """The host with the part in it."""
        make = partial(create_from_spec, self.host, self.spec) if self.spec else partial(timm.create_model, self.host)
        host = make(**self.options, **options)
        return localize(host, **self.parts, preserve=False, inplace=True)


def reduced(gamma: float, *reductions: int | None) -> tuple[LocalityFfn, ...]:
    """LocalViT's feed-forward part of each stage, with its reduction of the channel gate."""
    return tuple(LocalityFfn(gamma=gamma, se_reduction=reduction) for reduction in reductions)


HUNDRED = {"num_classes": 100}  # LIFE's Table 1
TOKEN_FFN = LocalityFfn(gamma=1, channel_attention=None)
TRANSPLANTS = (
    Transplant("lit", "Table 4", "PVT-S + DTM", "pvt_small", {"merge": "deformable"}),
    Transplant("lit", "Table 4", "Swin-Ti + DTM", "swin_tiny", {"merge": "deformable"}),
    Transplant("dwconv", "Table 13", "VOLO (Local SA)-d1", "volo_d1_224", {"mixer": Window(heads=6)}),
    Transplant("dwconv", "Table 13", "DW Conv.-d1", "volo_d1_224", {"mixer": DepthWise()}),
    Transplant("dwconv", "Table 13", "DW Conv.-S", "twins_svt_small", {"mixer": DepthWise()}),
    Transplant("dwconv", "Table 15", "Swin + SE", "swin_tiny", {"mixer": "squeezed"}),
    Transplant("dwconv", "Table 15", "DW Conv. + SE", "dwnet_tiny", {"mixer": "squeezed"}),
    Transplant("life", "Table 1", "DeiT-T-LIFE", "deit_tiny", {"qkv": "life"}, HUNDRED),
    Transplant("life", "Table 1", "DeiT-S-LIFE", "deit_small", {"qkv": "life"}, HUNDRED),
    Transplant("life", "Table 1", "T2T-ViT-12-LIFE", "t2t_vit_12", {"qkv": "life"}, HUNDRED, t2t(252, 4, 12, 2)),
    Transplant("life", "Table 1", "Swinv2-T-LIFE", "swinv2_tiny", {"qkv": "life"}, HUNDRED),
    Transplant("localvit", "Table 5", "LocalViT-T", "deit_tiny", {"ffn": LocalityFfn()}),
    Transplant(
        "localvit",
        "Table 5",
        "LocalViT-T2T",
        "t2t_vit_7",
        {"ffn": LocalityFfn(gamma=2)},
        {"embed": TokensToToken(ffn=TOKEN_FFN)},
    ),
    Transplant("localvit", "Table 5", "LocalViT-TNT", "tnt_tiny", {"ffn": LocalityFfn()}),
    Transplant(
        "localvit", "Table 5", "LocalViT-PVT", "pvt_tiny", {"ffn": reduced(8, 64, 128)[:2] + reduced(4, None, None)}
    ),
    Transplant("localvit", "Table 5", "LocalViT-S", "deit_small", {"ffn": LocalityFfn()}),
    Transplant("localvit", "release", "LocalViT-Swin", "swin_tiny", {"ffn": reduced(4, 24, 48, 96, 192)}),
)


def with_window_attention(volo: nn.Module) -> nn.Module:  # tables show its name
    """VOLO with 7x7 window attention instead of its outlook attention; the heads stay."""
    return localize(volo, mixer=Window(heads=6), preserve=False, inplace=True)


def with_depthwise(model: nn.Module) -> nn.Module:
    """VOLO or Twins-SVT with 7x7 depth-wise convolution instead of the local attention."""
    return localize(model, mixer=DepthWise(), preserve=False, inplace=True)


Plan = BuildRecipe | DenseRecipe | Derived | NotBuilt
HEADS = (3, 6, 12, 24)
ACTIVATIONS = {"relu6": "relu6", "h-swish": "hswish"}


def plan(row: PublishedRow) -> Plan:
    """How the figures of a row are obtained."""
    if row.dense:
        return plan_dense(row)
    return PAPER_PLANS[row.paper](row)


@dataclass(frozen=True)
class PublishedAccuracy:
    """What a paper prints for a model on ImageNet-1K.

    Attributes:
        where: Paper, table and row.
        top1: In percent, as printed.
        top5: The same; None where there is none.
    """

    where: str
    top1: str
    top5: str | None = None

    def printed(self, name: str) -> str | None:
        """The figure called `top-1` or `top-5`."""
        return self.top1 if name == "top-1" else self.top5


def published_accuracy(model: str) -> PublishedAccuracy | None:
    """The accuracy on ImageNet-1K, trained on it alone, that the papers print for one of our models as it is.

    A paper's own row comes before one that it quotes.

    Example:
        >>> found = published_accuracy("localvit_tiny")
        >>> found.where, found.top1, found.top5
        ('localvit, Table 5, LocalViT-T', '74.8', '92.6')
        >>> published_accuracy("localvit_nano") is None
        True
    """
    rows = [row for row in published_rows() if not row.dense and row.setting.get("init") in (None, "random")]
    for row in sorted(rows, key=lambda row: not row.own):
        on_imagenet = str(row.setting.get("dataset", "")).startswith("ImageNet-1K")
        top1 = row.printed.get("top1_im1k") or (row.printed.get("top1") if on_imagenet else None)
        if top1 in (None, "-", "–"):
            continue
        planned, top5 = plan(row), row.printed.get("top5")
        if not isinstance(planned, BuildRecipe) or planned.change or planned.spec:
            continue
        if planned.model == model and {name for name, _ in planned.options} <= {"num_classes"}:
            where = f"{row.paper}, {row.table}, {row.name}"
            return PublishedAccuracy(where, str(top1), None if top5 in ("-", "–") else top5)
    return None


# LocalViT


def plan_localvit(row: PublishedRow) -> Plan:
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
        act=ACTIVATIONS[setting["activation"]],  # type: ignore[arg-type]
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


def plan_lightvit(row: PublishedRow) -> Plan:
    """The tables of LightViT's section 4; the paper's FLOPs come from its release's formula."""
    if row.name in QUOTED:
        return QUOTED[row.name]
    if row.name == "w/ 4 stages":
        return replace(recipe("lightvit_tiny"), spec=FOUR_STAGES, formula=lightvit_formula)
    return replace(lightvit_variant(row), formula=lightvit_formula)


def lightvit_variant(row: PublishedRow) -> BuildRecipe:
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


def attention_ablation(setting: Any) -> BuildRecipe:
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


def plan_lit(row: PublishedRow) -> Plan:
    """Tables 1 to 5 and the text of LIT."""
    if row.table == "Text 1":
        return Derived("Global(heads=3) on 56x56 tokens of width 96", msa_layer)
    if row.table == "Table 5":
        return removed_attention(row.setting)
    return LIT.get(row.name) or QUOTED[row.name]


def removed_attention(setting: Any) -> BuildRecipe:
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


def plan_dwconv(row: PublishedRow) -> Plan:
    """Classification tables and text of the dwconv paper."""
    if row.table == "Table 4":
        return shared_weights(row.setting)
    if row.table == "Table 12":
        return recipe("swin_tiny" if row.name.startswith("Swin") else "dwnet_tiny", norm=NORMS[row.setting["norm"]])
    if row.table == "Table 14":  # fine-tuned at 384 pixels with windows or kernels of 7 or 12
        window = row.setting["window"]
        if row.name.startswith("Swin"):
            return recipe("swin_tiny", 384, img_size=384, window=window)
        return recipe("dwnet_tiny", 384, img_size=384, kernel=window)
    if row.name == "DeiT-B" and row.setting["image_size"] == 384:
        return recipe("deit_base", 384, img_size=384)
    named = DWCONV.get((row.table, row.name)) or DWCONV.get(("", row.name.replace("-Conv.", " Conv.")))
    return named or QUOTED[row.name]


def shared_weights(setting: Any) -> BuildRecipe:
    """A row of Table 4: weights shared over channels, over positions, or both."""
    channels, positions = setting["share_channels"], setting["share_positions"]
    if setting["family"] == "Local MLP":
        return recipe("local_mlp_tiny", share_channels=channels, share_positions=positions)
    shared = (DepthWise(heads=heads, share_channels=channels, share_positions=positions) for heads in HEADS)
    return recipe("dwnet_tiny", mixer=tuple(shared))


def reduction(ours: str, host: str) -> dict[str, float]:
    """Percent that a model has less than its host."""
    small, large = measure(recipe(ours)).cost, measure(recipe(host)).cost
    return {
        "params_reduction_pct": 100 * (1 - small.parameters / large.parameters),
        "flops_reduction_pct": 100 * (1 - small.macs / large.macs),
    }


def depthwise_fraction() -> dict[str, float]:
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
        "depth-wise convolutions of dwnet_tiny", depthwise_fraction
    ),
}

# LIFE


def plan_life(row: PublishedRow) -> Plan:
    """Tables 1, 4 and 5 and the text of LIFE; its parameter columns have 100 classes."""
    if row.table == "Table 4":
        qkv = {"none": "linear", "3": "life_one_scale", "1,3,5": "life"}[row.setting["kernels"]]
        return recipe("deit_tiny", 32, img_size=32, patch_size=4, qkv=qkv, num_classes=100)
    if row.table == "Text A.3.1":
        return recipe("deit_tiny_life", scale_width=row.setting["channels_per_scale"])
    return LIFE.get(row.name) or QUOTED[row.name]


def hundred_classes(model: str, image_size: int = 224) -> BuildRecipe:
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

PAPER_PLANS: dict[str, Callable[[PublishedRow], Plan]] = {
    "localvit": plan_localvit,
    "lightvit": plan_lightvit,
    "lit": plan_lit,
    "dwconv": plan_dwconv,
    "life": plan_life,
}
