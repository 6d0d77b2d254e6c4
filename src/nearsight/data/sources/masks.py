"""Semantic segmentation: images beside masks, found by how folders and files are called."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...console import percent, tracked
from ...plots.overlays import IGNORE_INDEX
from ..annotations import AnnotationIssues, FileDenseSplit, spell_size
from ..file_system import FileSystem, first_words, join, split_of, stem
from ..image import is_image_name
from ..issues import AnnotationCheck, Seen
from ..label_map import (
    LabelMap,
    LabelMapFile,
    find_label_map_file,
    is_coloured,
    make_label_map,
    read_mask,
)
from ..samples import BadImage, Data, Names

IMAGE_FOLDERS = (
    *("images", "image", "imgs", "img", "img_dir", "jpegimages", "rgb", "frames", "inputs", "input"),
    *("701_stillsraw_full", "leftimg8bit"),
)
MASK_FOLDERS = (
    *("masks", "mask", "labels", "label", "annotations", "annotation", "annots", "annot", "ann_dir"),
    *("segmentationclass", "segmentations", "segmentation", "ground_truth", "groundtruth", "gt", "targets", "target"),
    *("labeledapproved_full", "gtfine", "gtcoarse"),
)
MASK_SUFFIXES = ("_labels", "_masks", "_mask", "_label", "_annotations", "_annotation", "_annot", "annot", "_gt")
MASK_END = re.compile(
    r"(_gtfine_labeltrainids|_gtfine_labelids|_labeltrainids|_labelids|_segmentation|_annotation|_groundtruth|_labels"
    r"|_label|_masks|_mask|_seg|_gt|_l|_manual1)$"
)
IMAGE_WORD = re.compile(r"image|img|photo|picture|frame|rgb")
MASK_WORD = re.compile(r"mask|label|annot|segm|truth")
IMAGE_END = re.compile(r"(_leftimg8bit|_image|_img|_sat|_rgb)$")
MANY_FOLDERS = 20  # beyond which folders are classes, not images and masks
MATCHED = 0.5  # fraction of the images that must have a mask, or the folders are something else


def speaks_of_masks(files: Collection[str], folders: Collection[str]) -> bool:
    """Whether what lies in a folder, in small letters, may be masks or folders of masks by its names.

    Example:
        >>> speaks_of_masks(["1.jpg", "1_mask.png"], []), speaks_of_masks(["1.jpg"], ["cats", "dogs"])
        (True, False)
    """
    if any(name in MASK_FOLDERS or name.endswith(MASK_SUFFIXES) or MASK_WORD.search(name) for name in folders):
        return True
    return any(MASK_END.search(name.rpartition(".")[0]) for name in files if is_image_name(name))


def find_masks(fs: FileSystem, ignore: Sequence[str] | None, background: bool | None) -> Data | None:
    """The data of images and masks; None if the layout is none that is known.

    Args:
        fs: Where to look.
        ignore: Values or classes that are not counted; None for what is usual.
        background: False: the value 0 is not counted.
    """
    data = open_cityscapes(fs) or open_voc_masks(fs, ignore, background)
    if data is not None:
        return data
    pairs = find_pairs(fs)
    if not pairs:
        return None
    if background is None and all(fs.find("training", name) is not None for name in ("images", "annotations")):
        telling = any(fs.find(name) is not None for name in ("objectInfo150.txt", "sceneCategories.txt"))
        if telling or "ade" in fs.title.rstrip("/").rpartition("/")[2].lower():
            background = False  # in ADE20K values count from 1, and 0 stands for everything else
    folders = tuple(dict.fromkeys(["", *(found.masks[0].rpartition("/")[0] for found in pairs.values())]))
    return open_masks(fs, pairs, find_label_map_file(fs, folders), ignore, background)


@dataclass
class Pairs:
    """Images of a split with their masks, in the same order, and what lacks the other."""

    images: list[str] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    issues: AnnotationIssues = field(default_factory=AnnotationIssues)


def find_pairs(fs: FileSystem) -> dict[str, Pairs]:
    """Images and masks by split; none if the layout is none of these.

    `images/` beside `masks/`, either inside folders of splits or with such folders inside; `train/` beside
    `train_labels/`; or masks beside their images, with an ending such as `_mask`.
    """
    for layout in (folders_inside_splits, folders_of_splits, splits_inside_folders, named_after, beside_images):
        found = {split: pairs for split, pairs in layout(fs).items() if pairs.images}
        if found:
            return {split: found[split] for split in ("train", "val", "test") if split in found}
    return {}


def folders_inside_splits(fs: FileSystem) -> dict[str, Pairs]:
    """`train/images/1.jpg` and `train/masks/1.png`."""
    found: dict[str, Pairs] = {}
    for name in fs.folders():
        split = split_of(name)
        both = both_folders(fs, name)
        if split is not None and both is not None:
            found[split] = match(fs.images(both[0]), fs.images(both[1]), *both)
    return found


def folders_of_splits(fs: FileSystem) -> dict[str, Pairs]:
    """`train_images/1.jpg` and `train_masks/1.png`."""
    found: dict[str, Pairs] = {}
    for split in ("train", "val", "test"):
        both = both_folders(fs, "", split)
        if both is not None:
            found[split] = match(fs.images(both[0]), fs.images(both[1]), *both)
    return found


def splits_inside_folders(fs: FileSystem) -> dict[str, Pairs]:
    """`images/train/1.jpg` and `masks/train/1.png`, or `images/1.jpg` and `masks/1.png`."""
    both = both_folders(fs, "")
    if both is None:
        return {}
    images, masks = both
    inside = {split_of(name): name for name in fs.folders(images)}
    found: dict[str, Pairs] = {}
    for split, name in inside.items():
        other = next((folder for folder in fs.folders(masks) if split is not None and split_of(folder) == split), None)
        if split is not None and other is not None:
            here, there = join(images, name), join(masks, other)
            found[split] = match(fs.images(here), fs.images(there), here, there)
    return found or {"train": match(fs.images(images), fs.images(masks), images, masks)}


def named_after(fs: FileSystem) -> dict[str, Pairs]:
    """`train/1.jpg` and `train_labels/1.png`."""
    found: dict[str, Pairs] = {}
    names = {name.casefold(): name for name in fs.folders()}
    for low, name in names.items():
        mask = next((names[low + suffix] for suffix in MASK_SUFFIXES if low + suffix in names), None)
        if mask is not None:
            pairs = match(fs.images(name), fs.images(mask), name, mask)
            if pairs.images:
                found[split_of(name) or "train"] = pairs
    return found


def beside_images(fs: FileSystem) -> dict[str, Pairs]:
    """`1.jpg` and `1_mask.png` in one folder."""
    found: dict[str, Pairs] = {}
    folders = {name: split_of(name) for name in fs.folders() if split_of(name)} or {"": "train"}
    for folder, split in folders.items():
        paths = [join(folder, name) for name in fs.files(folder) if is_image_name(name)]
        masks = [path for path in paths if MASK_END.search(path.rpartition(".")[0].casefold())]
        images = [path for path in paths if path not in set(masks)]
        if masks and split is not None:
            found[split] = match(images, masks, folder, folder)
    return found


def both_folders(fs: FileSystem, base: str, split: str | None = None) -> tuple[str, str] | None:
    """The folder of images and the folder of masks inside a folder; None if one is missing.

    Args:
        fs: Where to look.
        base: The folder.
        split: Only folders whose names speak of it; None for all.
    """
    names = [name for name in fs.folders(base) if split is None or split_of(name) == split]
    if len(names) > MANY_FOLDERS:
        return None  # these are classes
    masks = [name for name in by_likeness(names, MASK_FOLDERS, MASK_WORD) if fs.images(join(base, name))]
    images = [name for name in by_likeness(names, IMAGE_FOLDERS, IMAGE_WORD) if name not in masks[:1]]
    return (join(base, images[0]), join(base, masks[0])) if images and masks else None


def by_likeness(names: Sequence[str], usual: Sequence[str], word: re.Pattern[str]) -> list[str]:
    """Names that are the usual ones, in their order, then those with a word that speaks of the same."""
    spelled = {name.casefold(): name for name in names}
    known = [spelled[name] for name in usual if name in spelled]
    return known + [name for low, name in spelled.items() if name not in known and word.search(low)]


def match(images: Iterable[str], masks: Iterable[str], image_root: str, mask_root: str) -> Pairs:
    """Pair images with masks of the same path below their folders, or else of the same name.

    Nothing is returned if fewer than half of the images have a mask: then the folders are something else.
    """
    listed = list(images)
    by_path: dict[str, str] = {}
    by_name: dict[str, str] = {}
    for mask in masks:
        by_path.setdefault(bare(mask, mask_root), mask)
    for key, mask in list(by_path.items()):
        short = MASK_END.sub("", key)
        by_path.setdefault(short, mask)
        by_name.setdefault(short.rpartition("/")[2], mask)
    pairs = Pairs()
    for image in listed:
        key = bare(image, image_root)
        short = IMAGE_END.sub("", key)
        found = by_path.get(key) or by_path.get(short) or by_name.get(short.rpartition("/")[2])
        if found is None:
            pairs.issues.note("image without a mask", image)
        else:
            pairs.images.append(image)
            pairs.masks.append(found)
    for mask in sorted(set(by_path.values()) - set(pairs.masks)):
        pairs.issues.note("mask without an image", mask)
    return pairs if len(pairs.images) >= MATCHED * len(listed) else Pairs()


def bare(path: str, root: str) -> str:
    """A path below a folder without its suffix, in small letters."""
    return path.removeprefix(root).lstrip("/").rpartition(".")[0].casefold()


UNKNOWN = 0.5  # fraction of pixels without a meaning from which masks are not what the label map is for
UNCOUNTED = 0.2  # fraction of pixels from which nothing is learnt that has to be told
SAMPLE = 24  # masks that are looked at where a table names the classes
MANY = 500  # masks from which on looking at all of them shows progress


@dataclass(frozen=True)
class MaskPixels:
    """What a check wants to know of a mask: height and width, and how many pixels have each code."""

    size: tuple[int, ...]
    codes: dict[int, int]


class MaskSplit(FileDenseSplit):
    """Images with masks.

    Args:
        fs: Where images and masks are.
        pairs: Their paths.
        label_map: What the values of masks mean.
    """

    task = "segment"

    def __init__(self, fs: FileSystem, pairs: Pairs, label_map: LabelMap):
        super().__init__(fs, pairs.images)
        self.mask_paths, self.label_map, self.issues = Names(pairs.masks), label_map, pairs.issues
        self.labels = np.zeros(len(pairs.images), dtype=np.int64)

    def codes(self, index: int) -> NDArray[np.int64]:
        """The codes of the mask's pixels `[H, W]`, as they are in its file."""
        path = self.mask_paths[index]
        try:
            return read_mask(path, self.fs.read(path), self.label_map.colours)
        except BadImage as error:
            raise BadImage(self.name(index), f"its mask {path} can't be used: {error.reason}") from None

    def inspect(self, index: int) -> "MaskPixels | str":
        """The mask's size and codes, or why it can't be read."""
        try:
            codes = self.codes(index)
        except BadImage as error:
            return error.reason
        values, counts = np.unique(codes, return_counts=True)
        return MaskPixels(codes.shape, dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def annotation(self, index: int, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        codes, size = self.codes(index), size or self.size(index)
        if codes.shape != size:
            raise BadImage(
                self.name(index), f"its mask has {spell_size(codes.shape)} pixels, but the image has {spell_size(size)}"
            )
        return self.label_map.apply(codes)

    def check(self, name: str, seen: Seen, classes: Sequence[str], img_size: int) -> AnnotationCheck:
        """Finds masks that can't be read or don't fit, and values that are no class; counts classes and pixels."""
        report = AnnotationCheck(np.zeros(len(classes), dtype=np.int64), notes=list(self.issues.notes))
        report.issues += self.issues.listed()
        report.pixels = np.zeros(len(classes) + 1, dtype=np.int64)
        unreadable, other_size = [], []
        pixels: Counter[int] = Counter()
        masks: Counter[int] = Counter()
        for number, size, note in zip(seen.numbers.tolist(), seen.sizes.tolist(), seen.notes, strict=True):
            image = self.name(number)
            if not isinstance(note, MaskPixels):
                unreadable.append(f"{image}: {note}")
                report.unusable.append(image)
                continue
            if list(note.size) != size:
                other_size.append(f"{image}: {spell_size(size)}, its mask {spell_size(note.size)}")
                report.unusable.append(image)
                continue
            codes, counts = np.array(list(note.codes)), np.array(list(note.codes.values()))
            kinds = np.minimum(self.label_map.apply(codes).astype(np.int64), len(classes))
            np.add.at(report.pixels, kinds, counts)
            report.counts[np.unique(kinds[kinds < len(classes)])] += 1
            for code in codes[~np.isin(codes, self.label_map.codes)].tolist():
                pixels[code] += note.codes[code]
                masks[code] += 1
        report.add("mask that can't be read", unreadable, "their images are left out")
        report.add("mask of another size than the image", other_size, "their images are left out")
        report.unknown_values = {self.label_map.spell(code): (pixels[code], masks[code]) for code in pixels}
        return report


def open_masks(
    fs: FileSystem,
    pairs: Mapping[str, Pairs],
    table: LabelMapFile | None,
    ignore: Sequence[str] | None,
    background: bool | None,
) -> Data:
    """Images and masks.

    Args:
        fs: Where they are.
        pairs: Paths of images and masks by split.
        table: Names of the classes, if a table says them.
        ignore: Values or classes that are not counted; None for what is usual.
        background: False: the value 0 is not counted.
    """
    masks = [mask for found in pairs.values() for mask in found.masks]
    sample = masks[:: max(1, len(masks) // SAMPLE)][:SAMPLE]
    colours = any(is_coloured(fs, mask, table) for mask in sample)
    counts = count_codes(fs, sample if colours or table is not None else masks, colours)
    label_map = make_label_map(fs.title, table, {} if colours else counts, colours, ignore, background)
    unknown = {code: count for code, count in counts.items() if code not in set(label_map.codes.tolist())}
    fraction = sum(unknown.values()) / max(1, sum(counts.values()))
    if fraction > UNKNOWN:
        examples = sorted(unknown, key=unknown.__getitem__, reverse=True)[:3]
        listed = ", ".join(map(label_map.spell, examples))
        raise ValueError(
            f"{percent(fraction)} of the pixels of the masks in {fs.title} have values that are no class, such as "
            f"{listed}; say in {table.file if table is not None else 'classes.txt'} what they mean, or correct them."
        )
    data = assemble_masks(fs, pairs, label_map)
    ignored = {code: count for code, count in counts.items() if label_map.apply(np.array(code)) == IGNORE_INDEX}
    fraction = sum(ignored.values()) / max(1, sum(counts.values()))
    if fraction < UNCOUNTED:
        return data
    examples = sorted(ignored, key=ignored.__getitem__, reverse=True)[:3]
    return replace(
        data,
        remarks=(
            f"{percent(fraction)} of the pixels of the masks in {fs.title} are not counted, and nothing is learnt from "
            f"them: those of {', '.join(map(label_map.spell, examples))}; `nearsight data check` tells more.",
        ),
    )


def assemble_masks(fs: FileSystem, pairs: Mapping[str, Pairs], label_map: LabelMap) -> Data:
    """The data of images and masks with a known label map."""
    splits = {split: MaskSplit(fs, found, label_map) for split, found in pairs.items()}
    return Data(fs.title, "masks", label_map.classes, **splits)


def count_codes(fs: FileSystem, masks: Sequence[str], colours: bool) -> dict[int, int]:
    """Values or colours in masks, and how many pixels have them; what can't be read is left to a check."""
    counts: Counter[int] = Counter()
    listed: Iterable[str] = tracked(masks, f"Looking at {len(masks):,} masks") if len(masks) > MANY else masks
    for path in listed:
        try:
            codes = read_mask(path, fs.read(path), colours)
        except BadImage:
            continue
        values, numbers = np.unique(codes, return_counts=True)
        counts.update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
    return dict(counts)


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


def open_cityscapes(fs: FileSystem) -> Data | None:
    """`leftImg8bit/train/CITY/..._leftImg8bit.png` with `gtFine/train/CITY/..._gtFine_labelIds.png`."""
    images, masks = fs.find("leftImg8bit"), fs.find("gtFine") or fs.find("gtCoarse")
    if images is None or masks is None:
        return None
    names = {split_of(name): name for name in fs.folders(images)}
    listed = {split: fs.images(join(masks, name)) for split, name in names.items()}
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
            pairs[split] = match(fs.images(here), ours, here, there)
    values = tuple(range(len(CITY_VALUES))) if ending == CITY_FILES[0] else CITY_VALUES
    known = (*values, IGNORE_INDEX) if ending == CITY_FILES[0] else range(34)  # the other values are not evaluated
    numbers = [values.index(value) if value in values else IGNORE_INDEX for value in known]
    label_map = LabelMap(np.array(known), np.array(numbers, dtype=np.uint8), False, CITY_CLASSES)
    return assemble_masks(fs, {split: found for split, found in pairs.items() if found.images}, label_map)


def open_voc_masks(fs: FileSystem, ignore: Sequence[str] | None, background: bool | None) -> Data | None:
    """`JPEGImages` with `SegmentationClass`, divided by the lists in `ImageSets/Segmentation`."""
    images, masks = fs.find("JPEGImages"), fs.find("SegmentationClass")
    if images is None or masks is None:
        return None
    whole = match(fs.images(images), fs.images(masks), images, masks)
    if not whole.masks:  # only some of VOC's images have masks: they are found from the masks
        images_by_stem = {stem(path): path for path in fs.images(images)}
        matched = [mask for mask in fs.images(masks) if stem(mask) in images_by_stem]
        whole = Pairs([images_by_stem[stem(mask)] for mask in matched], matched)
    folder = fs.find("Segmentation", fs.find("ImageSets") or "")
    lists = [name for name in ("train", "val", "test") if folder and fs.has(join(folder, f"{name}.txt"))]
    pairs = {}
    for name in lists:
        wanted = set(first_words(fs, join(folder or "", f"{name}.txt")))
        both = [pair for pair in zip(whole.images, whole.masks, strict=True) if stem(pair[0]) in wanted]
        pairs[name] = Pairs([image for image, _ in both], [mask for _, mask in both])
    pairs = pairs or {"train": whole}
    table = find_label_map_file(fs) or LabelMapFile("VOC", VOC_CLASSES)
    return open_masks(fs, {name: found for name, found in pairs.items() if found.images}, table, ignore, background)
