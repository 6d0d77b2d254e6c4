import pytest
import timm
import torch

from nearsight.models import MODELS
from nearsight.models.names import EMBEDS, MIXERS, PARTS
from nearsight.models.options import apply_options
from nearsight.parts import (
    BiGate,
    DepthWise,
    DepthwiseThen,
    GatherBroadcast,
    Global,
    Life,
    LinearQkv,
    LocalityFfn,
    Mlp,
    Patchify,
    PixelTransformer,
    Sliding,
    SpatialReduction,
    Squeezed,
    Window,
)


def options(name, **given):
    spec = apply_options(name, MODELS[name], given)
    spec.check()
    return spec


def layers(spec):
    return [layer for stage in spec.stages for layer in stage.layers()]


def count(name, **given):
    with torch.device("meta"):
        return sum(p.numel() for p in timm.create_model(name, **given).parameters())


def assert_learns(name, **given):
    """The model takes images of its own and of an odd size, and every parameter gets a gradient."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=4, drop_path_rate=0.0, **given)
    # An odd size first: the last call leaves the gradients of the size that the model is made for.
    assert model(torch.randn(2, 3, 19, 26)).shape == (2, 4)
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not missing


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_goes_into_a_pyramid(mixer):
    assert_learns("swin_nano", mixer=mixer)


CARRYING = ("global", "locality_attention", "conv_projection", "spatial_reduction", "gather_broadcast", "squeezed")


@pytest.mark.parametrize("mixer", CARRYING)
def test_mixers_that_carry_auxiliary_tokens_go_into_a_model_with_a_class_token(mixer):
    assert_learns("deit_nano", mixer=mixer)


@pytest.mark.parametrize("mixer", sorted({*MIXERS} - {"none", *CARRYING}))
def test_mixers_without_a_place_for_auxiliary_tokens_say_what_to_do(mixer):
    with pytest.raises(
        ValueError, match=r"has no place for the 1 auxiliary token.*build the model with aux=0 and pool='mean'"
    ):
        timm.create_model("deit_nano", mixer=mixer)


def test_what_the_refusal_proposes_works():
    assert_learns("deit_nano", mixer="depthwise", aux=0, pool="mean")


@pytest.mark.parametrize("name", ["swin_nano", "deit_nano", "lightvit_nano"])
@pytest.mark.parametrize("ffn", PARTS["ffn"])
def test_every_feed_forward_part_goes_into_every_host(name, ffn):
    assert_learns(name, ffn=ffn)


@pytest.mark.parametrize("name", ["swin_nano", "deit_nano", "lightvit_nano"])
@pytest.mark.parametrize("qkv", PARTS["qkv"])
def test_every_qkv_part_goes_into_every_attention(name, qkv):
    assert_learns(name, qkv=qkv)


@pytest.mark.parametrize("name", ["swin_nano", "lightvit_nano"])
@pytest.mark.parametrize("merge", PARTS["merge"])
def test_every_merge_goes_into_every_pyramid(name, merge):
    assert_learns(name, merge=merge)


@pytest.mark.parametrize("embed", EMBEDS)
def test_every_embedding_goes_into_deit(embed):
    assert_learns("deit_nano", embed=embed)


@pytest.mark.parametrize("norm", ["layer", "batch", "calibrated_batch"])
@pytest.mark.parametrize("name", ["swin_nano", "dwnet_nano"])
def test_every_norm_goes_into_swin_and_dwnet(name, norm):
    assert_learns(name, norm=norm)


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("dwnet_nano", {"qkv": "life"}, "Life has no place in stage 1: DepthWise makes no queries"),
        ("pvt_tiny", {"qkv": "life"}, "Life has no place in stage 1: SpatialReduction makes no queries"),
        ("deit_nano", {"aux": 0}, "reads an auxiliary token but the model has none; use pool='mean'"),
        ("swin_nano", {"aux": 2}, "Window in stage 1 has no place for the 2 auxiliary"),
        (
            "tnt_tiny",
            {"embed": "patchify"},
            "PixelTransformer has no place in stage 1: only an embedding with pixel tokens feeds it",
        ),
        ("tnt_tiny", {"dim": 24}, "made for 4x4 pixel tokens 24 wide, but PixelEmbed makes 4x4 of 12"),
        ("deit_tiny", {"embed": "conv_stem"}, "stride 2, 4 or 8, not 16; set patch_size to one of these"),
        ("deit_nano", {"mixer": "globl"}, "mixer='globl' is not known; use one of .* Did you mean 'global'?"),
        (
            "deit_nano",
            {"ffn": "x"},
            "ffn='x' is not known; use one of mlp, localvit, bigate, depthwise_mlp, dense, or a part",
        ),
        (
            "swin_nano",
            {"mixer": ("global", "window")},
            "mixer was given 2 values, but the model has 3 stages; give 1 or 3",
        ),
        ("swin_nano", {"heads": (1, 2)}, "heads was given 2 values, but the model has 3 stages; give 1 or 3"),
        ("deit_nano", {"heads": 5}, "5 heads do not divide a width of 96"),
        ("deit_nano", {"heads": "three"}, "heads='three' does not suit Global, which takes int from 1 to 1,024 there"),
        (
            "deit_nano_life",
            {"kernels": 3},
            "kernels=3 does not suit Life, which takes a tuple of int from 1 to 255",
        ),
        ("deit_nano", {"behaviour": "original"}, "behaviour='original' is not known; use paper or released"),
        ("localvit_nano", {"local_layers": "5-9"}, "names layer 7, but the model has layers 1 to 6"),
        ("localvit_nano", {"local_layers": "a-b"}, "'a-b' is not understood; write layers counted from 1"),
        ("deit_nano", {"local_layers": "1-4"}, "there are none; give ffn='localvit' or qkv='life'"),
    ],
)
def test_what_cannot_be_built_is_refused_with_a_sentence(name, given, sentence):
    with pytest.raises(ValueError, match=sentence):
        timm.create_model(name, **given)


@pytest.mark.parametrize(
    ("name", "typo", "meant"),
    [
        ("localvit_nano", "gama", "gamma"),
        ("deit_nano", "mixr", "mixer"),
        ("deit_nano_life", "kernel", "kernels"),
        ("deit_nano", "imgsize", "img_size"),
        ("deit_nano", "drop_path", "drop_path_rate"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_known_one(name, typo, meant):
    with pytest.raises(TypeError, match=f"{name} has no option '{typo}'. Did you mean '{meant}'"):
        timm.create_model(name, **{typo: 3})


def test_named_parts_take_over_heads_window_and_width_of_the_stage():
    spec = options("swin_nano", mixer="gather_broadcast", ffn="localvit")
    assert [layer.mixer for layer in layers(spec)[::2]] == [GatherBroadcast(heads=h, window=4) for h in (1, 2, 4)]
    assert options("pvt_tiny", ffn="localvit").stages[0].ffn == LocalityFfn(gamma=8)
    assert options("pvt_tiny", ffn="bigate").stages[3].ffn == BiGate(ratio=4)
    assert options("localvit_nano", ffn="depthwise_mlp").stages[0].ffn == DepthwiseThen(then=Mlp(ratio=4))
    assert options("t2t_vit_7", qkv="linear").stages[0].qkv == LinearQkv(bias=False)


def test_a_slot_takes_a_name_a_part_or_one_of_them_per_stage():
    part = Sliding(heads=2, window=3)
    spec = options("swin_nano", mixer=("none", "depthwise", part))
    assert [stage.mixer for stage in spec.stages] == [None, DepthWise(), part]
    assert options("swin_nano", mixer=(None, "global", part)).stages[1].mixer == Global(heads=2)


def test_stages_without_a_mixer_stay_without_unless_named_one_by_one():
    assert [s.mixer is None for s in options("lit_nano", mixer="window").stages] == [True, False, False]
    assert [s.mixer is None for s in options("lit_nano", mixer=("window",) * 3).stages] == [False] * 3
    assert [type(s.qkv) for s in options("lit_nano", qkv="life").stages] == [LinearQkv, Life, Life]


def test_shifted_windows_alternate():
    mixers = options("lit_nano", mixer="shifted_window").stages[1].mixer
    assert mixers == (Window(heads=2), Window(heads=2, shifted=True))


def test_squeezed_wraps_the_mixers_that_are_there():
    spec = options("lit_nano", mixer="squeezed")
    assert layers(spec)[0].mixer is None
    assert layers(spec)[2].mixer == Squeezed(mixer=Global(heads=2, relative=True))
    assert layers(options("dwnet_nano", mixer="squeezed", kernel=3))[0].mixer.mixer.kernel == 3


def test_a_field_is_set_wherever_it_occurs_and_may_differ_between_stages():
    assert [layer.mixer.window for layer in layers(options("swin_nano", window=2))] == [2] * 6
    assert [s.ffn.ratio for s in options("swin_nano", ratio=(1, 2, 3)).stages] == [1, 2, 3]
    assert options("deit_nano_life", kernels=[1, 7]).stages[0].qkv == Life(kernels=(1, 7))
    assert options("deit_nano", patch_size=8).embed == Patchify(patch=8)


def test_the_ratio_of_the_feed_forward_part_is_not_that_of_the_reduced_keys():
    mixers = [stage.mixer for stage in options("pvt_tiny", ratio=2).stages]
    assert mixers == [SpatialReduction(1, 8), SpatialReduction(2, 4), SpatialReduction(5, 2), Global(8)]


def test_the_kernel_of_a_feed_forward_part_does_not_touch_the_merge():
    spec = options("lit_nano", ffn="localvit", kernel=5)
    assert spec.stages[1].ffn.kernel == 5 and spec.stages[1].merge == MODELS["lit_nano"].stages[1].merge


def test_none_can_be_said_in_words():
    assert options("localvit_nano", channel_attention="none").stages[0].ffn.channel_attention is None
    assert count("localvit_tiny", channel_attention="none") == 5825704  # LocalViT Table 1, gamma 4 with depth-wise


def test_the_named_patch_embedding_is_the_one_that_is_there():
    assert options("deit_nano", embed="patchify") == MODELS["deit_nano"]
    assert options("t2t_vit_7", embed="patchify").embed == Patchify(patch=16, norm=True)


@pytest.mark.parametrize("given", [{"patch_size": 8}, {"pixel_dim": 24}, {"pixel_stride": 2}])
def test_the_inner_transformer_follows_its_embedding(given):
    spec = options("tnt_tiny", **given)
    assert spec.stages[0].inner == PixelTransformer(dim=spec.embed.pixel_dim, side=spec.embed.side)
    assert spec.stages[0].inner != MODELS["tnt_tiny"].stages[0].inner


@pytest.mark.parametrize(
    ("where", "parameters"), [("9-12", 5781176), ("1-4", 5781176), ("1-8", 5844936), ("1-12", 5908696)]
)
def test_local_layers_have_the_sizes_of_localvit_table_3(where, parameters):
    assert count("localvit_tiny", local_layers=where) == parameters


@pytest.mark.parametrize("given", ["1,3,5-6", [1, 3, 5, 6], (6, 5, 3, 1)])
def test_local_layers_are_counted_from_one_and_the_others_are_plain(given):
    spec = options("localvit_nano", qkv="life", local_layers=given)
    local = [number in (1, 3, 5, 6) for number in range(1, 7)]
    assert [isinstance(layer.ffn, LocalityFfn) for layer in layers(spec)] == local
    assert [isinstance(layer.qkv, Life) for layer in layers(spec)] == local
    assert layers(spec)[1].ffn == Mlp() and layers(spec)[1].qkv == LinearQkv()


def test_local_layers_are_counted_through_all_stages():
    spec = options("swin_nano", ffn="localvit", local_layers="2-3")
    assert [isinstance(layer.ffn, LocalityFfn) for layer in layers(spec)] == [False, True, True, False, False, False]


def test_the_released_behaviour_has_48_channels_a_head_and_lifes_key():
    assert options("localvit_tiny", behaviour="released").stages[0].mixer == Global(heads=4)
    assert options("localvit_small", behaviour="released").stages[0].mixer == Global(heads=8)
    assert options("localvit_tiny", behaviour="paper") == MODELS["localvit_tiny"]
    assert options("deit_tiny_life", behaviour="released").stages[0].qkv == Life(aux_key="released")
    assert options("deit_tiny", behaviour="released") == MODELS["deit_tiny"]


@pytest.mark.parametrize("tokens", [0, 2, 16])
def test_the_number_of_global_tokens_is_an_option(tokens):
    spec = options("lightvit_nano", aux=tokens)
    assert spec.aux == tokens
    names = [n for n, _ in timm.create_model("lightvit_nano", aux=tokens).named_parameters()]
    assert any("kv_global" in n for n in names) == (tokens > 0)


def test_options_leave_the_registered_model_alone():
    before = MODELS["swin_nano"]
    options("swin_nano", mixer="global", ratio=2, norm="batch")
    assert MODELS["swin_nano"] is before and before.stages[0].norm == "layer"


def test_positions_are_taken_away_put_in_and_exchanged():
    def kinds(name, **options):
        spec = apply_options(name, MODELS[name], options)
        spec.check()
        return [type(stage.position).__name__ for stage in spec.stages]

    assert kinds("deit_nano", position="none") == ["NoneType"]
    assert kinds("t2t_vit_7", position="learned") == ["Learned"]
    assert kinds("lit_nano", position="sinusoid") == ["Sinusoid", "NoneType", "NoneType"]
    assert kinds("lit_nano", position=("learned", None, "learned")) == ["Learned", "NoneType", "Learned"]
    assert kinds("pvt_tiny", position="none") == ["NoneType"] * 4
    assert MODELS["pvt_tiny"] == apply_options("pvt_tiny", MODELS["pvt_tiny"], {"position": "learned"})
    with pytest.raises(ValueError, match="position='absolute' is not known; use one of none, learned, sinusoid"):
        kinds("deit_nano", position="absolute")
    with pytest.raises(ValueError, match="position was given 2 values, but the model has 3 stages"):
        kinds("lit_nano", position=("learned", "none"))
