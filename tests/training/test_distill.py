"""Distillation: a teacher that is a former run, a student with or without DeiT's token."""

import hashlib
import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from nearsight import create_model, distill
from nearsight.checkpoints.format import save_model
from nearsight.cli.train import distill as command_distill
from nearsight.config.recipe import Distillation, ModelChoice
from nearsight.data import open_data
from nearsight.data.transforms import Preprocessing
from nearsight.data.unlabelled import add_unlabelled
from nearsight.models import MODELS
from nearsight.models.backbone import Backbone
from nearsight.models.hosts import distilled
from nearsight.runs.predictor import load, save_trained
from nearsight.tasks.build import build
from nearsight.tasks.classify import CrossEntropy, Taught
from nearsight.tasks.multilabel import LabelLoss
from nearsight.training import load_recipe, loop, resume_training, run_training
from nearsight.training import teacher as teacher_module
from nearsight.training.teacher import Teacher
from tests.rounding import assert_rounded

CPU = torch.device("cpu")
FOUR = ("0", "1", "2", "3")


@pytest.fixture
def teacher_run(tmp_path: Path) -> Path:
    """A small ConvNet that was trained on images of 24 pixels."""
    built = build(ModelChoice(name="resnet10t", img_size=24), classes=4)
    return save_trained(built, "classify", FOUR, tmp_path / "teacher" / "model.safetensors").parent


@pytest.fixture
def with_token(tmp_path: Path) -> Path:
    """A nano DeiT with a distillation token, as a file."""
    torch.manual_seed(0)
    model = Backbone(distilled(MODELS["deit_nano"]), img_size=(16, 16), in_chans=3, num_classes=4)
    return save_model(model, tmp_path / "student.safetensors")


def test_a_teacher_sees_images_as_it_was_trained_on(teacher_run: Path) -> None:
    teacher = Teacher(Distillation(teacher="resnet10t", weights=str(teacher_run)), FOUR, Preprocessing((16, 16)), CPU)
    assert teacher.input.size == (24, 24)
    images = torch.rand(5, 3, 24, 24)
    expected = load(teacher_run).model(teacher.input.normalise(images)).argmax(dim=1)
    assert torch.equal(teacher.look(images).logits.argmax(dim=1), expected)
    assert teacher.look(torch.rand(2, 3, 16, 16)).logits.shape == (2, 4)
    assert not any(parameter.requires_grad for parameter in teacher.model.parameters())


def test_a_plain_file_is_a_teacher(tmp_path: Path) -> None:
    model = timm.create_model("resnet10t", num_classes=4)
    save_file(model.state_dict(), tmp_path / "plain.safetensors")
    settings = Distillation(teacher="timm/resnet10t", weights=str(tmp_path / "plain.safetensors"))
    teacher = Teacher(settings, FOUR, Preprocessing((32, 32)), CPU)
    images = torch.rand(3, 3, 32, 32)
    assert torch.equal(
        teacher.look(images).logits.argmax(dim=1), model.eval()(teacher.input.normalise(images)).argmax(dim=1)
    )


def test_a_converted_file_is_a_teacher(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = create_model("deit_nano", img_size=24, patch_size=4, num_classes=4).eval()
    path = save_model(model, tmp_path / "converted.safetensors")
    teacher = Teacher(Distillation(teacher="deit_nano", weights=str(path)), FOUR, Preprocessing((16, 16)), CPU)
    assert teacher.input.size == (24, 24)
    images = torch.rand(3, 3, 24, 24)
    assert torch.equal(teacher.look(images).logits.argmax(dim=1), model(teacher.input.normalise(images)).argmax(dim=1))


def test_a_teacher_that_does_not_fit_is_refused(teacher_run: Path, tmp_path: Path) -> None:
    run = str(teacher_run)
    cases = {
        "The teacher resnet10t predicts 4 classes, but the data have 5; train it on": ("resnet10t", run, "01234"),
        r"knows other classes than the data \(its number 2 is 2, that of the data 3\)": ("resnet10t", run, "0132"),
        "holds a resnet10t, not the teacher resnet18": ("resnet18", run, FOUR),
        "timm has no model 'resnet0' to be a teacher": ("resnet0", None, FOUR),
        "There are no weights at": ("resnet18", str(tmp_path / "absent"), FOUR),
    }
    for sentence, (name, weights, classes) in cases.items():
        with pytest.raises(ValueError, match=sentence):
            Teacher(Distillation(teacher=name, weights=weights), classes, Preprocessing((16, 16)), CPU)


def test_a_teacher_with_other_patches_than_the_registered_model_keeps_its_name(tmp_path: Path) -> None:
    built = build(ModelChoice(name="deit_nano", img_size=16, patch_size=2), classes=4)
    run = str(save_trained(built, "classify", FOUR, tmp_path / "model.safetensors"))
    teacher = Teacher(Distillation(teacher="deit_nano", weights=run), FOUR, Preprocessing((16, 16)), CPU)
    assert teacher.input == built.preprocessing
    with pytest.raises(ValueError, match="holds a deit_nano, not the teacher lit_nano"):
        Teacher(Distillation(teacher="lit_nano", weights=run), FOUR, Preprocessing((16, 16)), CPU)


@pytest.mark.usefixtures("no_page")
def test_the_token_learns_from_the_teacher_and_the_other_head_from_the_labels(
    teacher_run: Path, with_token: Path, colours: str, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    start = load_file(with_token)
    for fraction, still, moving in ((1.0, "head.weight", "head_dist.weight"), (0.0, "head_dist.weight", "head.weight")):
        changes = {
            "model.name": None,
            "model.weights": str(with_token),
            "model.img_size": None,
            "model.patch_size": None,
            "distill": {"teacher": "resnet10t", "weights": str(teacher_run), "weight": fraction},
            "optimizer.weight_decay": 0.0,
            "epochs": 1,
        }
        folder = tmp_path / f"share {fraction}"
        run_training(colours, tiny(changes), folder, quiet=True)
        trained = load_file(folder / "model.safetensors")
        assert torch.equal(trained[still], start[still])
        assert not torch.equal(trained[moving], start[moving])
        assert load(folder).model(torch.zeros(1, 3, 16, 16)).shape == (1, 4)  # both heads, as a mean


@pytest.mark.usefixtures("no_page")
def test_a_student_without_a_token_is_taught_too(
    teacher_run: Path, colours: str, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    teach = {"distill": {"teacher": "resnet10t", "weights": str(teacher_run)}, "epochs": 1, "ema": 0.9}
    assert run_training(colours, tiny(teach), tmp_path / "run", quiet=True).steps == 3


SOFT = {"kind": "soft", "temperature": 2.0, "weight": 0.8}


@pytest.fixture
def more(tmp_path: Path, colours: str) -> str:
    """The 24 training images of `colours`, and 10 others."""
    with np.load(colours) as arrays:
        pixels = np.concatenate([arrays["x_train"], 255 - arrays["x_train"][:10]])
        np.savez(tmp_path / "more.npz", x_train=pixels, y_train=np.arange(34) % 3)
    return str(tmp_path / "more.npz")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bytes]]:
    """Hashes of the images that the teacher was shown and that the student was shown."""
    found: dict[str, list[bytes]] = {"teacher": [], "student": []}

    def note(who: str, images: torch.Tensor) -> None:
        found[who] += [hashlib.sha256(image.numpy().tobytes()).digest() for image in images]

    look, loss = Teacher.look, CrossEntropy.loss

    def watched_look(self: Teacher, images: torch.Tensor) -> Any:
        note("teacher", images)
        return look(self, images)

    def watched_loss(self: CrossEntropy, model: Any, images: torch.Tensor, *rest: Any) -> Any:
        note("student", images)
        return loss(self, model, images, *rest)

    monkeypatch.setattr(Teacher, "look", watched_look)
    monkeypatch.setattr(CrossEntropy, "loss", watched_loss)
    return found


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(("views", "mixup"), [(None, 0.0), (None, 0.5), (2, 0.0)])
def test_student_and_teacher_see_the_same_views(
    views: int | None,
    mixup: float,
    teacher_run: Path,
    colours: str,
    more: str,
    tiny: Callable[..., Any],
    tmp_path: Path,
    seen: dict[str, list[bytes]],
) -> None:
    settings = {"teacher": str(teacher_run), "views": views, "unlabelled": [more], **SOFT}
    recipe = tiny({"distill": settings, "augment.mixup": mixup, "epochs": 4, "batch": 17 + 17 * (mixup > 0)})
    run_training(colours, recipe, tmp_path / "run", quiet=True)
    assert set(seen["student"]) == set(seen["teacher"])
    if views is None:
        assert seen["student"] == seen["teacher"]
        assert len(set(seen["student"])) > 100
    else:  # the four epochs show two views in turn, each of which the teacher predicts once (and some to take the time)
        assert len(seen["student"]) == 4 * 34 and len(seen["teacher"]) == 2 * 34 + 2 * 32
        assert sorted(seen["student"][:68]) == sorted(seen["student"][68:])


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("features", [0.0, 0.5])
def test_what_is_kept_is_what_the_teacher_would_say(
    features: float,
    teacher_run: Path,
    colours: str,
    tiny: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"teacher": str(teacher_run), "views": 2, "features": features, **SOFT}
    prepare, compared = CrossEntropy.prepare, []

    def both(self: CrossEntropy, batch: Any, epoch: int, step: int) -> Any:
        images, labels, taught = prepare(self, batch, epoch, step)
        asked = self.learnt(self.teacher.look(images))  # type: ignore[union-attr]
        for kept, said in zip(taught, asked, strict=True):
            assert (kept is None) == (said is None)
            if said is not None:
                assert_rounded(kept, said, sums=1, dtype=torch.float16)  # kept in half precision
        compared.append(step)
        return images, labels, taught

    monkeypatch.setattr(CrossEntropy, "prepare", both)
    outcome = run_training(colours, tiny({"distill": settings, "epochs": 3}), tmp_path / "run", quiet=True)
    assert len(compared) == outcome.steps == 9
    assert "teacher_projection.weight" not in load_file(tmp_path / "run" / "model.safetensors")
    assert outcome.parameters == sum(p.numel() for p in load(tmp_path / "run").model.parameters())


@pytest.mark.usefixtures("no_page")
def test_a_run_that_is_killed_goes_on_with_the_same_bits(
    teacher_run: Path,
    colours: str,
    more: str,
    tiny: Callable[..., Any],
    tmp_path: Path,
    state_of: Callable[[Path], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"teacher": str(teacher_run), "views": 2, "features": 0.5, "unlabelled": [more], **SOFT}
    recipe = tiny({"distill": settings, "epochs": 3, "augment.mixup": 0.4, "ema": 0.9})
    monkeypatch.setattr(teacher_module, "CHUNK", 10)
    run_training(colours, recipe, tmp_path / "whole", quiet=True)
    write, train_epoch = Teacher.write, loop.train_epoch

    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    def killed_after_three(self: Teacher, view: int, first: int, opinions: Any) -> None:
        if (view, first) == (0, 30):
            killed()
        write(self, view, first, opinions)

    def killed_in_the_last(session: Any, *rest: Any) -> bool:
        if session.progress.epoch == 2:
            killed()
        return train_epoch(session, *rest)

    for place, name, kill in ((Teacher, "write", killed_after_three), (loop, "train_epoch", killed_in_the_last)):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, kill)
            with pytest.raises(KeyboardInterrupt):
                run_training(colours, recipe, tmp_path / "killed", quiet=True)
    resume_training(tmp_path / "killed", quiet=True)
    assert state_of(tmp_path / "killed") == state_of(tmp_path / "whole")


@pytest.mark.usefixtures("no_page")
def test_a_cut_off_or_foreign_file_of_predictions_is_noticed_and_predicted_again(
    teacher_run: Path, colours: str, tiny: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tiny({"distill": {"teacher": str(teacher_run), "views": 2, **SOFT}, "epochs": 2})
    run_training(colours, recipe, tmp_path / "run")
    first, second = sorted((tmp_path / "run" / "teacher").iterdir())
    assert "The teacher predicts 48 views (2 of each of 24 images) in about " in capsys.readouterr().err
    whole = {path: path.read_bytes() for path in (first, second)}
    first.write_bytes(whole[first][:-5])
    save_file({"logits": torch.zeros(24, 4, dtype=torch.float16)}, second, {"fingerprint": "of another teacher"})
    for path in (tmp_path / "run" / "outcome.json", *(tmp_path / "run" / "checkpoints").iterdir()):
        path.unlink() if path.is_file() else shutil.rmtree(path)
    resume_training(tmp_path / "run")
    assert f"2 files of {tmp_path / 'run' / 'teacher'} are cut off, or of another teacher" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (first, second)} == whole


def test_unlabelled_images_are_those_that_the_data_have_not(colours: str, more: str, tmp_path: Path) -> None:
    data, record = add_unlabelled(open_data(colours), [more])
    assert data.train is not None and record["count"] == 10
    assert [data.train.target(index) for index in (0, 1, 23, 24, 33)] == [0, 1, 3, -1, -1]
    for number in range(3):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(tmp_path / f"{number}.png")
    data, record = add_unlabelled(open_data(colours), [more, str(tmp_path)])
    assert data.train is not None and record["count"] == 13
    assert data.train.name(34) == f"unlabelled 2: {tmp_path / '0.png'}"
    assert data.train.read(36).getpixel((0, 0)) == (2, 0, 0)
    with pytest.raises(ValueError, match=r"All 24 images of .*colours.npz are among those of .*colours.npz already"):
        add_unlabelled(open_data(colours), [colours])


def test_views_are_as_large_as_the_teacher_wants_where_the_images_are(tmp_path: Path) -> None:
    labels = [[index % 2, 1 - index % 2] for index in range(12)]
    rows = []
    for index, row in enumerate(labels):
        Image.effect_noise((60, 60), 50).save(tmp_path / f"{index}.png")
        rows.append(f"{index}.png,{row[0]},{row[1]},{('train', 'val')[index >= 8]}")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["path,cat,dog,split", *rows]))
    built = build(ModelChoice(name="deit_nano", img_size=48, patch_size=8), classes=2)
    teacher = save_trained(built, "multilabel", ("cat", "dog"), tmp_path / "teacher" / "model.safetensors").parent
    shown: list[tuple[int, ...]] = []
    for views in (0, 2):
        with pytest.MonkeyPatch.context() as patch:
            prepare = LabelLoss.prepare

            def note(self: LabelLoss, *given: Any, prepare: Any = prepare) -> Any:
                prepared = prepare(self, *given)
                shown.append(tuple(prepared[0].shape))
                return prepared

            patch.setattr(LabelLoss, "prepare", note)
            patch.setattr("nearsight.training.summary.write_summary", lambda folder: None)
            settings = {"img_size": 16, "patch_size": 4, "epochs": 2, "batch": 4, "views": views, "quiet": True}
            settings["precision"] = "float32"  # a trial of others would show images of its own
            outcome = distill(
                teacher, table, into="deit_nano", task="multilabel", out=tmp_path / f"run {views}", **settings
            )
    assert set(shown) == {(4, 3, 48, 48)}
    assert outcome.metric == "mAP" and load(tmp_path / "run 2").preprocessing.size == (16, 16)


def test_several_soft_labels_are_learnt_by_their_divergences() -> None:
    teacher = SimpleNamespace(settings=Distillation(teacher="fixed", kind="soft", temperature=2.0, weight=0.6))
    recipe = load_recipe("small-multilabel", {"loss.smoothing": 0.0, "loss.kind": "bce"})
    labels = torch.tensor([[1.0, 0, 1], [-1, -1, -1]])
    split = SimpleNamespace(labels=np.array([0, -1]))
    objective = LabelLoss(recipe, split, 3, Preprocessing((2, 2)), CPU, teacher)  # type: ignore[arg-type]
    said, answered = torch.randn(2, 3), torch.randn(2, 3)
    soft = (said / 2).sigmoid()
    model = torch.nn.Linear(1, 1)
    model.forward = lambda images: answered  # type: ignore[method-assign]
    found = objective.loss(model, torch.zeros(2, 3, 2, 2), labels, Taught(soft, None))
    p, q = torch.distributions.Bernoulli(soft), torch.distributions.Bernoulli((answered / 2).sigmoid())
    distance = 4 * torch.distributions.kl_divergence(p, q)
    cross = torch.nn.functional.binary_cross_entropy_with_logits(answered[0], labels[0], reduction="none")
    expected = (0.4 * cross.sum() + 0.6 * distance[0].sum() + distance[1].sum()) / 6
    torch.testing.assert_close(found, expected)


def test_python_distils_with_the_options_of_the_command_line() -> None:
    command, verb = (inspect.signature(one).parameters for one in (command_distill, distill))
    assert list(command) == list(verb)
    plain = ("into", "temperature", "weight", "features", "views", "kind")
    assert {name: command[name].default for name in plain} == {name: verb[name].default for name in plain}


def test_what_can_not_be_distilled_gets_one_sentence(teacher_run: Path, colours: str, tmp_path: Path) -> None:
    teacher, out = str(teacher_run), tmp_path / "run"
    built = build(ModelChoice(name="resnet10t", img_size=24), 4)
    several = save_trained(built, "multilabel", FOUR, tmp_path / "several" / "model.safetensors").parent
    cases: dict[str, tuple[str, str, dict[str, Any]]] = {
        "A teacher gives classes to whole images, but shapes is there to detect; use": (teacher, "shapes", {}),
        "There is no teacher at runs/absent; give the folder of a run": ("runs/absent", colours, {}),
        "timm has no model 'nobody' to be a teacher": ("nobody", colours, {}),
        "was trained to multilabel; this takes one that was trained to classify": (str(several), colours, {}),
        "predicts 4 classes, but the data have 10": (teacher, "digits", {}),
        "distill.temperature belongs to distill.kind soft": (teacher, colours, {"kind": "hard", "temperature": 2.0}),
        "distill.kind = 'warm' won't do; it takes one of hard, soft": (teacher, colours, {"kind": "warm"}),
        "shows one view of an image in an epoch, but augment.repeats is 2": (
            teacher,
            colours,
            {"changes": {"augment.repeats": 2}},
        ),
        "There is no file or folder .*absent": (teacher, colours, {"unlabelled": tmp_path / "absent"}),
        "are among those of .* already; give others as unlabelled images": (teacher, colours, {"unlabelled": colours}),
    }
    for sentence, (given, data, options) in cases.items():
        with pytest.raises(ValueError, match=sentence):
            distill(given, data, into="deit_nano", img_size=16, patch_size=4, batch=8, out=out, quiet=True, **options)
        assert not (out / "data.json").exists()
