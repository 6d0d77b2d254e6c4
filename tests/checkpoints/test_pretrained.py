"""Where pretrained weights come from: folders, caches, a server; under which licence; and what is refused."""

import hashlib
import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save, save_file
from torch import nn

from nearsight.checkpoints import pretrained
from nearsight.checkpoints.pretrained import (
    HOSTS,
    PATIENCE,
    SAME_NETWORK,
    at_hand,
    find_pretrained,
    get_pretrained,
    licence_of,
    list_pretrained,
    missing_sentence,
    permits_commercial_use,
    split_name,
)
from nearsight.config.files import load_recipe
from nearsight.config.recipe import ModelChoice
from nearsight.models import MODELS
from nearsight.tasks.build import build
from nearsight.tasks.dense import build_dense
from tests.checkpoints.weight_server import Hub
from tests.rounding import assert_rounded

NAME = "test_vit.r160_in1k"  # timm's smallest, made for tests


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that `NEARSIGHT_WEIGHTS` names."""
    place = tmp_path / "weights"
    place.mkdir()
    monkeypatch.setenv("NEARSIGHT_WEIGHTS", str(place))
    return place


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_vit").eval()


@pytest.fixture
def hub(vit: nn.Module, online: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The weights of timm's smallest model behind `HF_ENDPOINT`."""
    server = Hub(save(vit.state_dict()))
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    yield server
    server.close()


def test_hosts_are_models_of_timm_with_the_licence_and_the_size_that_they_have() -> None:
    for host in HOSTS:
        model, tag = split_name(host.name)
        about = timm.models.get_pretrained_cfg(host.name)
        assert about.hf_hub_id == f"timm/{host.name}" and tag is not None
        assert host.licence == about.license and permits_commercial_use(host.licence)
        with torch.device("meta"):
            tensors = timm.create_model(model).state_dict().values()
        assert host.bytes == pytest.approx(sum(t.numel() * t.element_size() for t in tensors), rel=0.01), host.name


@pytest.mark.parametrize("name", [name for name in SAME_NETWORK if "tiny" in name or "tnt" in name])
def test_a_model_of_ours_takes_the_weights_of_the_same_network_of_timm(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    host = timm.create_model(SAME_NETWORK[name], num_classes=7).eval()
    for parameter in host.parameters():  # biases and norms begin alike
        nn.init.normal_(parameter, std=0.05)
    save_file(host.state_dict(), tmp_path / f"{SAME_NETWORK[name]}.safetensors")
    ours = build(ModelChoice(name=name, weights=str(tmp_path / f"{SAME_NETWORK[name]}.safetensors")), 7).model.eval()
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        assert_rounded(ours(images), host(images), ours)


def test_weights_are_taken_from_the_folder_first_then_from_the_caches(
    folder: Path, tmp_path: Path, vit: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("NEARSIGHT_CACHE", str(tmp_path / "own"))
    assert find_pretrained("test_vit") is None
    hubs = tmp_path / "hub" / f"models--timm--{NAME}" / "snapshots" / "abc" / "model.safetensors"
    places = [hubs, tmp_path / "own" / "weights" / f"{NAME}.safetensors", folder / "test_vit.safetensors"]
    for place, source in zip(places, ("cache", "cache", "folder"), strict=True):
        place.parent.mkdir(parents=True, exist_ok=True)
        save_file(vit.state_dict(), place)
        found = find_pretrained("timm/test_vit")
        assert found is not None and (found.path, found.source) == (place, source)
        assert found.sha256 == hashlib.sha256(place.read_bytes()).hexdigest()
        for part in (found.name, str(place), "apache-2.0", "--weights none"):
            assert part in found.say()
    assert [one.path for one in at_hand(NAME)] == places[::-1]


def test_what_torch_downloaded_for_timm_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    file = tmp_path / "hub" / "checkpoints" / "deit_tiny_patch16_224-a1311bcf.pth"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    for name in (None, "deit_tiny", "deit_tiny_patch16_224.fb_in1k"):
        found = find_pretrained(name)
        assert found is not None and (found.path, found.tag) == (file, "fb_in1k")


def test_weights_without_a_licence_for_everybody_must_be_named(folder: Path) -> None:
    """convnext_nano has weights under several licences in timm; a name without a tag tells nothing."""
    file = folder / "convnextv2_nano.safetensors"
    file.write_bytes(b"weights")
    assert licence_of("convnextv2_nano", "fcmae_ft_in1k") == "cc-by-nc-4.0"
    assert find_pretrained() is None and find_pretrained("convnextv2_nano") is None
    assert f"{file} is passed over, since its licence is cc-by-nc-4.0" in missing_sentence("convnextv2_nano")
    assert f"{file} is passed over" in missing_sentence()
    named = find_pretrained("convnextv2_nano", any_licence=True)
    assert named is not None and named.path == file
    file.with_suffix(".json").write_text(json.dumps({"licence": "mit", "origin": "trained by us"}))
    bought = find_pretrained()
    assert bought is not None and (bought.path, bought.licence) == (file, "mit")
    other = folder / "resnet18.safetensors"  # a host
    other.write_bytes(b"weights")
    assert [one.path for one in at_hand()] == [other, file]


def test_a_licence_that_timm_does_not_know_is_unknown(folder: Path) -> None:
    (folder / "resnet18.fb_swsl_ig1b_ft_in1k.safetensors").write_bytes(b"weights")
    (folder / "vit_tiny_patch16_224.mine.safetensors").write_bytes(b"weights")
    (folder / "my_model.safetensors").write_bytes(b"weights")
    licences = {one.name: one.licence for one in list_pretrained() if one.source == "folder"}
    assert licences == {
        "resnet18.fb_swsl_ig1b_ft_in1k": "cc-by-nc-4.0",
        "vit_tiny_patch16_224.mine": "unknown",
    }
    assert find_pretrained("resnet18") is None and find_pretrained("vit_tiny_patch16_224") is None


def test_who_is_asked_hears_model_size_and_licence(folder: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []

    def ask(question: str) -> bool:
        questions.append(question)
        return len(questions) == 2

    assert find_pretrained("test_vit", offline=True, ask=ask) is None and questions == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_pretrained("test_vit", ask=ask) is None and questions == []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert find_pretrained("test_vit", ask=ask) is None and hub.asked == []
    found = find_pretrained("test_vit", ask=ask)
    assert found is not None and found.source == "download"
    size = f"{len(hub.content) / 1e6:.1f} MB"
    assert questions == [f"Download the pretrained weights {NAME} ({size}, licence apache-2.0)?"] * 2
    assert find_pretrained("test_vit", ask=ask) is not None and len(questions) == 2
    with pytest.raises(ValueError, match="contradict"):
        find_pretrained("test_vit", offline=True, download=True)


def test_a_download_is_whole_and_told_with_its_licence(folder: Path, hub: Hub, vit: nn.Module) -> None:
    seen: list[int] = []
    got = get_pretrained("test_vit", progress=lambda done, size: seen.append(done))
    assert got.path == folder / f"{NAME}.safetensors" and got.path.read_bytes() == hub.content
    assert seen == sorted(seen) and seen[-1] == len(hub.content)
    assert [(method, "/resolve/" in path) for method, path, _ in hub.asked] == [
        ("HEAD", True),
        ("GET", True),
        ("GET", False),
    ]
    note = json.loads((folder / f"{NAME}.json").read_text())
    assert (note["licence"], note["sha256"]) == ("apache-2.0", hub.announced)
    hub.asked.clear()
    assert get_pretrained(NAME).sha256 == hub.announced and hub.asked == []
    model = build(ModelChoice(name="test_vit", weights="auto"), classes=1000).model.eval()
    images = torch.randn(1, 3, 160, 160)
    assert torch.equal(model(images), vit(images))
    assert [file.name for file in folder.iterdir() if not file.name.startswith(".")] == [got.path.name, f"{NAME}.json"]


def test_a_slow_server_is_waited_for(folder: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "PATIENCE", 2.0)
    hub.answer = partial(hub.send_slowly, pieces=6, pause=0.4)  # all of it takes longer than the patience for a piece
    assert get_pretrained(NAME).path.read_bytes() == hub.content
    assert [path for method, path, _ in hub.asked if method == "GET"].count("/storage") == 1  # in one go


def test_a_download_that_breaks_off_goes_on_where_it_ended(folder: Path, hub: Hub) -> None:
    breaks = iter([True, True, False])
    hub.answer = lambda handler, first: next(breaks) and hub.break_off(handler, first)
    assert get_pretrained(NAME).path.read_bytes() == hub.content
    half = len(hub.content) // 2
    ranges = [wanted for _, path, wanted in hub.asked if path.startswith("/storage")]
    assert ranges == [None, f"bytes={half}-", f"bytes={half + (len(hub.content) - half) // 2}-"]


def test_a_later_try_takes_what_an_earlier_one_left(folder: Path, hub: Hub) -> None:
    hub.answer = lambda handler, first: hub.break_off(handler, first, 0.0 if first else 0.5)
    with pytest.raises(ValueError, match=f"{NAME} can't be downloaded from .*`nearsight weights get {NAME} --folder"):
        get_pretrained(NAME)
    assert list(at_hand(NAME)) == []
    hub.asked.clear()
    hub.answer = lambda handler, first: False
    assert get_pretrained(NAME).path.read_bytes() == hub.content
    assert hub.asked[-1][2] == f"bytes={len(hub.content) // 2}-"


def test_processes_that_want_the_same_file_fetch_it_once(folder: Path, hub: Hub) -> None:
    hub.answer = hub.send_slowly
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(get_pretrained, [NAME, "test_vit"]))
    assert [one.sha256 for one in both] == [hub.announced] * 2
    assert [path for method, path, _ in hub.asked if method == "GET"].count("/storage") == 1


def test_a_server_that_can_not_go_on_in_the_middle_starts_over(folder: Path, hub: Hub) -> None:
    def forgetful(handler: object, first: int) -> bool:
        return hub.break_off(handler, 0) if first == 0 and len(hub.asked) < 4 else hub.send_slowly(handler, 0, 1, 0)  # type: ignore[arg-type]

    hub.answer = forgetful
    assert get_pretrained(NAME).path.read_bytes() == hub.content


def test_other_bytes_than_were_announced_are_thrown_away(folder: Path, hub: Hub) -> None:
    hub.announced = "0" * 64
    with pytest.raises(ValueError, match="gave other bytes than were announced"):
        get_pretrained(NAME)
    assert [file for file in folder.iterdir() if not file.name.endswith(".lock")] == []


def test_what_is_not_there_is_said_in_a_sentence(folder: Path, hub: Hub) -> None:
    hub.missing = True
    with pytest.raises(ValueError, match=rf"127.0.0.1:\d+ has no {NAME} for you \(HTTP 404\)"):
        get_pretrained(NAME)
    with pytest.raises(ValueError, match="There are no pretrained weights of deit_nano"):
        get_pretrained("deit_nano")
    with pytest.raises(ValueError, match="test_vit has no weights with the tag 'x'; timm knows r160_in1k"):
        get_pretrained("test_vit.x")


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_who_never_answers_is_left_soon(method: str, folder: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2 * PATIENCE < 20  # once to look up, or two tries to receive
    monkeypatch.setattr(pretrained, "PATIENCE", 0.3)
    hub.silent = (method,)
    with pytest.raises(ValueError, match=r"can't be downloaded from 127.0.0.1:\d+ \(no answer in 0.3 seconds\)"):
        get_pretrained(NAME)


def test_who_is_not_there_is_told(folder: Path, hub: Hub) -> None:
    hub.close()
    with pytest.raises(ValueError, match=f"{NAME} can't be downloaded from 127.0.0.1.*refused"):
        get_pretrained(NAME)


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_the_backbone_of_a_segmenter_takes_them_too(name: str, folder: Path) -> None:
    torch.manual_seed(0)
    host = timm.create_model(name)
    save_file(host.state_dict(), folder / f"{name}.safetensors")
    choice = {"name": f"timm/{name}", "head": "linear", "weights": "auto", "img_size": 64}
    recipe = load_recipe("small-segment", {f"model.{key}": value for key, value in choice.items()})
    recipe = recipe.model_copy(update={"dense": recipe.dense.model_copy(update={"min_size": 64})})
    own = build_dense(recipe, classes=3, masks=False).model.state_dict()
    first = "patch_embed.proj.weight" if name == "test_vit" else "conv1.0.weight"
    (held,) = (tensor for key, tensor in own.items() if key.endswith(first))
    assert torch.equal(held, host.state_dict()[first])


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (open, ("harmed",))


def test_bad_weights_are_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vit, resnet = (save(timm.create_model(name).state_dict()) for name in ("test_vit", "test_resnet"))
    other = {name: tensor[..., :1] for name, tensor in timm.create_model("test_vit").state_dict().items()}
    files = {
        "wrong model": (resnet, "safetensors", "tensors are missing"),
        "wrong shapes": (save({k: v.contiguous() for k, v in other.items()}), "safetensors", "has the shape"),
        "truncated": (vit[: len(vit) // 2], "safetensors", "is not a whole safetensors file"),
        "code": (pickle.dumps({"model": Harmful()}, protocol=2), "pth", "was refused"),
        "empty": (b"", "pth", "is truncated or not a checkpoint"),
    }
    for case, (content, ending, sentence) in files.items():
        file = tmp_path / f"test_vit.{ending}"
        file.write_bytes(content)
        for name in ("test_vit", None):  # the file's name tells the model
            with pytest.raises(ValueError, match=sentence) as refused:
                build(ModelChoice(name=name, weights=str(file)), classes=3)
            assert str(file) in str(refused.value) and "\n" not in str(refused.value), case
    assert not (tmp_path / "harmed").exists()


def test_real_weights_give_timms_logits_also_at_another_image_size(real_weights: Path) -> None:
    file = real_weights / "deit_tiny_patch16_224.safetensors"
    if not file.is_file():
        pytest.skip(f"NEARSIGHT_WEIGHTS has no {file.name}")
    torch.manual_seed(0)
    for size in (224, 128):
        theirs = timm.create_model(
            "deit_tiny_patch16_224", pretrained=True, pretrained_cfg_overlay={"file": str(file)}, img_size=size
        ).eval()
        images = torch.randn(2, 3, size, size)
        for name in ("deit_tiny", "timm/deit_tiny_patch16_224"):
            if name in MODELS and size != 224:
                continue  # ours resizes positions as it does for images of any size, without antialiasing
            built = build(ModelChoice(name=name, weights="auto", img_size=size), classes=1000)
            with torch.no_grad():
                assert_rounded(built.model.eval()(images), theirs(images), theirs)
