"""A family of our own: the parts of the five papers in one model. The filling is provisional.

No search has been run for it yet. It follows from reasoning over docs/results: LightViT's stem made the largest step at
equal arithmetic, LocalViT's feed-forward part is worth most where maps are large, early attention costs time and gives
little (LIT), and attention fed by LIFE stands in the last stages, where maps are small (in `near_micro` by a linear
layer: it has no time for more); the head reads by sequence pooling. `near_nano` takes no more time than
`localvit_nano`, `near_micro` no more than timm's `test_resnet`, for one image and for 32 of 32 pixels; whether they
learn better is not known. So these specs are not registered, have no page of results, and will change when
`nearsight search` has run:

    >>> from nearsight import create_model
    >>> create_model(spec=SPECS["near_nano"], num_classes=10).img_size
    (32, 32)
"""

from ..parts import ConvMerge, ConvStem, Global, Life, LinearQkv, LocalityFfn
from ..parts.slots import Qkv
from .spec import BackboneSpec, Stage

HEAD = 16  # channels of a head
LIFE = Life()


def near(
    widths: tuple[int, ...],
    depths: tuple[int, ...],
    *,
    gamma: float,
    attending: int,
    patch: int,
    img_size: int,
    qkv: Qkv = LIFE,
) -> BackboneSpec:
    """A model of this family; the last `attending` stages attend, those before have their feed-forward parts alone."""
    stages = []
    for index, (dim, depth) in enumerate(zip(widths, depths, strict=True)):
        attends = index >= len(widths) - attending
        stages.append(
            Stage(
                dim,
                depth,
                Global(heads=dim // HEAD) if attends else None,
                LocalityFfn(gamma=gamma),
                qkv if attends else LinearQkv(),
                ConvMerge() if index else None,
            )
        )
    return BackboneSpec(ConvStem(patch=patch), tuple(stages), "near", pool="sequence", img_size=img_size)


SPECS = {
    "near_micro": near((32, 96), (1, 1), gamma=2, attending=1, patch=2, img_size=32, qkv=LinearQkv()),
    "near_nano": near((48, 96, 192), (1, 2, 2), gamma=3, attending=1, patch=2, img_size=32),
    "near_tiny": near((48, 96, 192, 384), (1, 2, 4, 2), gamma=3, attending=2, patch=4, img_size=224),
    "near_small": near((64, 128, 256, 512), (2, 2, 6, 2), gamma=4, attending=2, patch=4, img_size=224),
}
