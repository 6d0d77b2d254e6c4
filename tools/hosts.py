"""Small models of every family that `localize` knows, for the matrix and the tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import timm
from timm.models import volo
from torch import nn

from nearsight import create_model


@dataclass(frozen=True, eq=False)
class Example:
    """A host in a small size.

    Attributes:
        family: What the matrix calls it.
        name: Model of timm, or of ours.
        options: What makes it small.
        size: Height and width of the images.
        other: Another height and width that it takes, also by `set_input_size`.
        resize: Whether it needs `set_input_size` for them; None: another model must be built (TNT, CaiT).
        ours: Whether it is a model of Nearsight.
    """

    family: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    size: tuple[int, int] = (32, 32)
    other: tuple[int, int] = (48, 32)
    resize: str = "set"
    ours: bool = False

    def build(self, size: tuple[int, int] | None = None, num_classes: int = 5) -> nn.Module:
        """The model with random weights, in training mode."""
        if self.name == "volo":  # timm's makers of it fix the depth
            return volo.VOLO(img_size=self.size, num_classes=num_classes, **self.options)
        if self.ours:
            return create_model(self.name, img_size=self.size, num_classes=num_classes, **self.options)
        sized = {} if self.resize == "any" else {"img_size": size or self.size}
        return timm.create_model(self.name, num_classes=num_classes, **self.options, **sized)


NARROW: dict[str, Any] = {"patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3}
KNOWN = (
    Example("ViT", "vit_tiny_patch16_224", NARROW),
    Example("DeiT distilled", "deit_tiny_distilled_patch16_224", NARROW),
    Example("DeiT III", "deit3_small_patch16_224", NARROW),
    Example("ViT with registers", "vit_small_patch14_reg4_dinov2", NARROW),
    Example("SigLIP", "vit_base_patch16_siglip_224", NARROW),
    Example("EVA (DINOv3)", "vit_small_patch16_dinov3", NARROW),
    Example("CaiT", "cait_xxs24_224", NARROW, resize="build"),
    Example(
        "TNT",
        "tnt_s_legacy_patch16_224",
        {"embed_dim": 48, "depth": 3, "num_heads_outer": 3, "inner_dim": 8, "num_heads_inner": 2},
        (64, 64),
        (48, 64),
        resize="build",
    ),
    Example("XCiT", "xcit_nano_12_p16_224", {"embed_dim": 48, "depth": 3, "num_heads": 3}, (64, 64), (64, 48), "any"),
    Example(
        "Swin",
        "swin_tiny_patch4_window7_224",
        {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4, "patch_size": 2},
    ),
    Example(
        "Swin v2",
        "swinv2_tiny_window8_256",
        {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4, "patch_size": 2},
    ),
    Example(
        "PVT v2",
        "pvt_v2_b0",
        {"embed_dims": (16, 32), "depths": (2, 2), "num_heads": (1, 2), "sr_ratios": (2, 1), "mlp_ratios": (4, 4)},
        resize="any",
    ),
    Example(
        "Twins-SVT",
        "twins_svt_small",
        {
            "embed_dims": (24, 48),
            "depths": (2, 2),
            "num_heads": (2, 4),
            "mlp_ratios": (4, 4),
            "sr_ratios": (2, 1),
            "wss": (4, 4),
        },
    ),
    Example(
        "VOLO",
        "volo",
        {
            "layers": (1, 1, 1, 1),
            "embed_dims": (24, 48, 48, 48),
            "num_heads": (2, 3, 3, 3),
            "downsamples": (True, False, False, False),
            "outlook_attention": (True, False, False, False),
            "post_layers": ("ca",),
            "use_mix_token": False,
            "stem_hidden_dim": 8,
        },
        (64, 64),
        (64, 64),
    ),
    Example("DeiT (ours)", "deit_nano", ours=True),
    Example("Swin (ours)", "swin_nano", ours=True),
)
# An old timm lacks some.
EXAMPLES = tuple(one for one in KNOWN if one.ours or one.name == "volo" or timm.is_model(one.name))
