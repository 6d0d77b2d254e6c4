"""Layouts of well-known sets of regions whose values have a fixed meaning: Cityscapes, ADE20K and PASCAL VOC."""

from collections.abc import Sequence

import numpy as np

from ..file_system import Tree, join, stem
from ..samples import Data
from ..sources.masks import Pairs, assemble_masks, match, open_masks
from .label_map import NOT_COUNTED, ClassTable, Coding, find_table
from .locate import split_of

# Cityscapes: values of the 19 classes that are evaluated, in labelIds files; labelTrainIds count them from 0.
CITY_VALUES = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
CITY_CLASSES = (
    *("road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation"),
    *("terrain", "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle"),
)
CITY_FILES = ("_labeltrainids.png", "_labelids.png")  # in the order of preference

VOC_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


def open_cityscapes(tree: Tree) -> Data | None:
    """`leftImg8bit/train/CITY/..._leftImg8bit.png` with `gtFine/train/CITY/..._gtFine_labelIds.png`."""
    images, masks = tree.find("leftImg8bit"), tree.find("gtFine") or tree.find("gtCoarse")
    if images is None or masks is None:
        return None
    names = {split_of(name): name for name in tree.folders(images)}
    listed = {split: tree.images(join(masks, name)) for split, name in names.items()}
    ending = next(
        (end for end in CITY_FILES if any(p.lower().endswith(end) for ps in listed.values() for p in ps)), None
    )
    if ending is None:
        return None
    pairs = {}
    for split in ("train", "val", "test"):
        if split in names:
            here, there = join(images, names[split]), join(masks, names[split])
            ours = [path for path in listed[split] if path.lower().endswith(ending)]
            pairs[split] = match(tree.images(here), ours, here, there)
    values = tuple(range(len(CITY_VALUES))) if ending == CITY_FILES[0] else CITY_VALUES
    known = (*values, NOT_COUNTED) if ending == CITY_FILES[0] else range(34)  # the other values are not evaluated
    numbers = [values.index(value) if value in values else NOT_COUNTED for value in known]
    coding = Coding(np.array(known), np.array(numbers, dtype=np.uint8), False, CITY_CLASSES)
    return assemble_masks(tree, {split: found for split, found in pairs.items() if found.images}, coding)


def is_ade(tree: Tree) -> bool:
    """Whether the folder is ADE20K's: values count from 1, and 0 stands for everything else."""
    telling = any(tree.find(name) is not None for name in ("objectInfo150.txt", "sceneCategories.txt"))
    folders = all(tree.find("training", name) is not None for name in ("images", "annotations"))
    return folders and (telling or "ade" in tree.title.rstrip("/").rpartition("/")[2].lower())


def open_voc_regions(tree: Tree, ignore: Sequence[str] | None, background: bool | None) -> Data | None:
    """`JPEGImages` with `SegmentationClass`, divided by the lists in `ImageSets/Segmentation`."""
    images, masks = tree.find("JPEGImages"), tree.find("SegmentationClass")
    if images is None or masks is None:
        return None
    whole = match(tree.images(images), tree.images(masks), images, masks)
    if not whole.masks:  # only some of VOC's images have masks: they are found from the masks
        whole = match_all(tree.images(images), tree.images(masks))
    folder = tree.find("Segmentation", tree.find("ImageSets") or "")
    lists = {
        name: list_of(tree, join(folder, f"{name}.txt"))
        for name in ("train", "val", "test")
        if folder and tree.has(join(folder, f"{name}.txt"))
    }
    pairs = {name: chosen(whole, wanted) for name, wanted in lists.items()} or {"train": whole}
    table = find_table(tree) or ClassTable("VOC", VOC_CLASSES)
    return open_masks(tree, {name: found for name, found in pairs.items() if found.images}, table, ignore, background)


def match_all(images: Sequence[str], masks: Sequence[str]) -> Pairs:
    """Every mask with the image of its name."""
    by_stem = {stem(path): path for path in images}
    both = [(by_stem[stem(mask)], mask) for mask in masks if stem(mask) in by_stem]
    return Pairs([image for image, _ in both], [mask for _, mask in both])


def list_of(tree: Tree, path: str) -> set[str]:
    """The names that a list of images begins its lines with."""
    lines = tree.read(path).decode("utf-8", "replace").splitlines()
    return {line.split()[0] for line in lines if line.split()}


def chosen(whole: Pairs, names: set[str]) -> Pairs:
    """The pairs of some names."""
    both = [(i, m) for i, m in zip(whole.images, whole.masks, strict=True) if stem(i) in names]
    return Pairs([image for image, _ in both], [mask for _, mask in both])
