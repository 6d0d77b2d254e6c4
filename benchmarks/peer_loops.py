"""What users would run instead: loops as the peers' documentation shows them. Nothing of Nearsight is imported.

Run by `benchmarks/peers.py` in an environment of its own, one loop a process:

    python benchmarks/peer_loops.py {timm,transformers,fastai,predict} FOLDER --epochs 1 --model ... --size 128
"""

import argparse
import csv
import sys
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

MEAN, STD = timm.data.IMAGENET_DEFAULT_MEAN, timm.data.IMAGENET_DEFAULT_STD
RATE, DECAY, SMOOTHING, EMA = 1e-3, 0.05, 0.1, 0.999


def make_model(given: argparse.Namespace, classes: int) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(given.model, num_classes=classes, img_size=given.size)


def views(size: int) -> Any:
    from torchvision import transforms as T

    cut = T.RandomResizedCrop(size, interpolation=T.InterpolationMode.BICUBIC)
    return T.Compose([cut, T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)])


def train_timm(given: argparse.Namespace) -> None:
    from timm.data import ImageDataset, create_loader
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import create_scheduler_v2
    from timm.utils import ModelEmaV3

    data = ImageDataset(str(given.folder / "train"))
    loader = create_loader(
        data,
        input_size=(3, given.size, given.size),
        batch_size=given.batch,
        is_training=True,
        use_prefetcher=False,
        scale=(0.08, 1.0),
        hflip=0.5,
        color_jitter=0,
        interpolation="bicubic",
        num_workers=given.workers,
        device=torch.device("cpu"),
    )
    model = make_model(given, len(data.reader.class_to_idx))
    optimizer = create_optimizer_v2(model, opt="adamw", lr=RATE, weight_decay=DECAY)
    scheduler, _ = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=given.epochs, step_on_epochs=False, updates_per_epoch=len(loader)
    )
    ema, loss_of, step = ModelEmaV3(model, decay=EMA), LabelSmoothingCrossEntropy(SMOOTHING), 0
    model.train()
    for _ in range(given.epochs):
        for images, labels in loader:
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model, step=step)
            step += 1
            scheduler.step_update(step)


class WithLoss(nn.Module):
    """A model as transformers' Trainer wants it: it gives its loss."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.model(pixel_values)
        loss = nn.functional.cross_entropy(logits, labels, label_smoothing=SMOOTHING)
        return {"loss": loss, "logits": logits}


def train_transformers(given: argparse.Namespace) -> None:
    """Trainer has no EMA, so it does a little less."""
    from torchvision.datasets import ImageFolder
    from transformers import Trainer, TrainingArguments

    data = ImageFolder(str(given.folder / "train"), views(given.size))

    def collate(items: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
        images, labels = zip(*items, strict=True)
        return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}

    settings = TrainingArguments(
        output_dir=str(given.folder / "transformers"),
        per_device_train_batch_size=given.batch,
        num_train_epochs=given.epochs,
        learning_rate=RATE,
        weight_decay=DECAY,
        lr_scheduler_type="cosine",
        dataloader_num_workers=given.workers,
        dataloader_drop_last=True,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    model = WithLoss(make_model(given, len(data.classes)))
    Trainer(model=model, args=settings, train_dataset=data, data_collator=collate).train()


def train_fastai(given: argparse.Namespace) -> None:
    """No EMA either; flips are done in batches, as its documentation shows."""
    from fastai.data.transforms import Normalize
    from fastai.optimizer import OptimWrapper
    from fastai.vision.all import ImageDataLoaders, Learner, RandomResizedCrop, aug_transforms

    loaders = ImageDataLoaders.from_folder(
        given.folder,
        train="train",
        valid="val",
        item_tfms=RandomResizedCrop(given.size, min_scale=0.08),
        batch_tfms=[
            *aug_transforms(max_rotate=0, max_zoom=1, max_lighting=0, max_warp=0),
            Normalize.from_stats(MEAN, STD),
        ],
        bs=given.batch,
        num_workers=given.workers,
        device=torch.device("cpu"),
    )
    learner = Learner(
        loaders,
        make_model(given, loaders.c),
        loss_func=nn.CrossEntropyLoss(label_smoothing=SMOOTHING),
        opt_func=partial(OptimWrapper, opt=torch.optim.AdamW),
        wd=DECAY,
    )
    learner.validate = lambda *_, **__: None
    learner._do_epoch_validate = lambda *_, **__: None  # training alone is compared
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(given.epochs, RATE)


@torch.inference_mode()
def predict(given: argparse.Namespace) -> None:
    """A plain script: torchvision's folder and transforms, timm's model, a table at the end."""
    from safetensors.torch import load_file
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms as T
    from torchvision.io import ImageReadMode, decode_image

    paths = sorted(path for path in given.folder.rglob("*.jpg"))
    shown = T.Compose(
        [
            T.Resize(given.size, interpolation=T.InterpolationMode.BICUBIC),
            T.CenterCrop(given.size),
            T.ConvertImageDtype(torch.float32),
            T.Normalize(MEAN, STD),
        ]
    )

    class Images(Dataset):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> torch.Tensor:
            return shown(decode_image(str(paths[index]), ImageReadMode.RGB))

    weights = load_file(given.weights)
    model = make_model(given, len(weights["head.bias"])).eval()
    model.load_state_dict(weights)
    with open(given.folder / "plain.csv", "w", newline="") as file:
        writer, number = csv.writer(file), 0
        for images in DataLoader(Images(), batch_size=given.batch, num_workers=given.workers):
            probabilities, classes = model(images).softmax(dim=1).topk(5)
            for row, chosen in zip(probabilities.tolist(), classes.tolist(), strict=True):
                writer.writerow([paths[number], *(value for pair in zip(chosen, row, strict=True) for value in pair)])
                number += 1


def main() -> None:
    loops = {"timm": train_timm, "transformers": train_transformers, "fastai": train_fastai, "predict": predict}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loop", choices=loops)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", help="safetensors of the model, to predict with")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    loops[given.loop](given)


if __name__ == "__main__":
    sys.exit(main())
