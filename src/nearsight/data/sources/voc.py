"""PASCAL VOC's xml files, one for each image, in its own layout or beside the images."""

import math
from collections.abc import Sequence
from xml.etree import ElementTree
from xml.parsers import expat

from ..annotations import InstanceList
from ..file_system import FileSystem, by_stem, first_words, join, split_of, stem
from ..image import is_image_name
from ..labels import natural_key, shorten
from ..samples import BadImage, Data
from .coco import FURTHEST, MOST_PIXELS, assemble

XML_FOLDERS = ("annotations", "annotation", "labels", "xmls", "xml")
IMAGE_FOLDERS = ("jpegimages", "images", "image", "img", "imgs")
MANY_FOLDERS = 20
LARGEST = 10**7  # bytes of a file


def find_voc(fs: FileSystem) -> dict[str, list[str]]:
    """Paths of the xml files by split; none if there are none.

    VOC's layout has `Annotations`, and lists in `ImageSets/Main`. Else xml files are beside the images, or in a folder
    of annotations, in the root or in the folders of splits. Several folders such as VOC2007 and VOC2012 are joined.
    """
    folders = fs.folders() if len(fs.folders()) <= MANY_FOLDERS else []  # more are classes, and long to list
    years = [name for name in folders if fs.find("ImageSets", name) and fs.find("Annotations", name)]
    found: dict[str, list[str]] = {}
    for base in years or [""]:
        for split, paths in divided(fs, base).items():
            found.setdefault(split, []).extend(paths)
    if not found:
        for name in fs.folders():
            word = split_of(name)
            paths = xml_files(fs, name) if word is not None else []
            if paths and word is not None:
                found.setdefault(word, []).extend(paths)
    return {split: found[split] for split in ("train", "val", "test") if found.get(split)}


def divided(fs: FileSystem, base: str) -> dict[str, list[str]]:
    """The xml files of a folder, divided by its lists or by the folders of splits inside."""
    paths = xml_files(fs, base)
    main = fs.find("Main", sets) if (sets := fs.find("ImageSets", base)) else None
    if main is not None and paths:
        by_name = {stem(path): path for path in paths}
        lists = {split: first_words(fs, join(main, f"{split}.txt")) for split in ("train", "val", "test")}
        if not lists["train"]:
            both = first_words(fs, join(main, "trainval.txt"))
            lists["train"] = [name for name in both if name not in set(lists["val"])]
        divided = {split: [by_name[name] for name in names if name in by_name] for split, names in lists.items()}
        if any(divided.values()):
            return divided
    splits: dict[str, list[str]] = {}
    for path in paths:
        splits.setdefault(split_of(path.removeprefix(base).rpartition("/")[0]) or "train", []).append(path)
    return splits


def xml_files(fs: FileSystem, base: str) -> list[str]:
    """Paths of the xml files directly in a folder, or below a folder of annotations inside."""
    here = [join(base, name) for name in fs.files(base) if name.lower().endswith(".xml")]
    inside = next((path for name in XML_FOLDERS if (path := fs.find(name, base)) is not None), None)
    below = [path for path in fs.below(inside) if path.lower().endswith(".xml")] if inside is not None else []
    return here or below


def open_voc(fs: FileSystem, files: dict[str, list[str]], task: str) -> Data:
    """The data of xml files.

    Raises:
        ValueError: Files can't be read, or images are missing.
    """
    images = by_stem(fs.images())
    read = {split: read_files(fs, paths, images) for split, paths in files.items()}
    names = {name for annotated in read.values() for name in annotated.names}
    return assemble(fs, "voc", read, tuple(sorted(names, key=natural_key)), task, None)


def read_files(fs: FileSystem, paths: Sequence[str], images: dict[str, str]) -> InstanceList:
    """Images and instances of some xml files."""
    annotated = InstanceList()
    lost = []
    seen: set[str] = set()
    for path in paths:
        root = parse_xml(fs, path)
        image = image_of(fs, path, root, images)
        if image is None:
            lost.append(path)
            annotated.issues.note("annotation without an image", path)
            continue
        if image in seen:
            annotated.issues.note("image listed more than once", image)
            continue
        seen.add(image)
        annotated.paths.append(image)
        annotated.sizes.append((number(root, "size/height"), number(root, "size/width")))
        if not all(annotated.sizes[-1]):
            annotated.sizes[-1] = (0, 0)
        # Whether it is of PASCAL VOC itself, which counts pixels from 1, and not of a tool that writes its format.
        one_based = "VOC" in (root.findtext("source/database") or "") or "VOC20" in (root.findtext("folder") or "")
        for entry in root.findall("object"):
            add_instance(annotated, entry, image, one_based)
    if len(lost) == len(paths):
        raise ValueError(
            f"None of the {len(paths)} xml files in {fs.title} has an image of its name: {shorten(lost, 3)}."
        )
    return annotated


def add_instance(annotated: InstanceList, entry: ElementTree.Element, image: str, one_based: bool) -> None:
    """Take an instance that has a name and a box. VOC itself counts pixels from 1, up to and with the last."""
    name = (entry.findtext("name") or "").strip()
    texts = [entry.findtext(f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
    try:
        box = [float(text or "") for text in texts]
    except ValueError:
        box = [math.nan]
    if not name:
        annotated.issues.note("instance without a name", image)
    elif not all(abs(value) <= FURTHEST for value in box):  # nan is not, either
        annotated.issues.note("box without four numbers", f"{image}: {name}")
    else:
        if one_based:
            box = [box[0] - 1, box[1] - 1, box[2], box[3]]
        difficult = (entry.findtext("difficult") or "0").strip() == "1"
        annotated.add(len(annotated.paths) - 1, box, name, difficult, math.nan)


def image_of(fs: FileSystem, path: str, root: ElementTree.Element, images: dict[str, str]) -> str | None:
    """The image that an xml file speaks of: beside it, in a folder of images, or anywhere by its name."""
    folder = path.rpartition("/")[0]
    name = (root.findtext("filename") or "").strip().replace("\\", "/").rpartition("/")[2]
    around = folder.rpartition("/")[0]
    parents = [folder, *(found for title in IMAGE_FOLDERS if (found := fs.find(title, around)) is not None)]
    for parent in parents:
        if name and is_image_name(name) and fs.has(join(parent, name)):
            return join(parent, name)
    same = images.get(stem(path))
    return same if same is not None else images.get(stem(name)) if name else None


def parse_xml(fs: FileSystem, path: str) -> ElementTree.Element:
    """An xml file without declared entities, which could grow without bounds or read other files.

    Raises:
        ValueError: It is no such file.
    """
    builder = ElementTree.TreeBuilder()
    parser = expat.ParserCreate()
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = refuse_entity
    file = join(fs.title, path)
    try:
        content = fs.read(path)
        if len(content) > LARGEST:
            raise RefusedXml(f"{file} has {len(content):,} bytes, which is no list of instances.")
        parser.Parse(content, True)
        return builder.close()
    except BadImage as error:
        raise ValueError(f"{file} can't be read: {error.reason}.") from None
    except LookupError:
        raise ValueError(f"{file} is not valid XML: it claims an encoding that is unknown; save it as UTF-8.") from None
    except (expat.ExpatError, AssertionError) as error:
        reason = expat.ErrorString(error.code) if isinstance(error, expat.ExpatError) else "it holds no element"
        where = f" in line {error.lineno}" if isinstance(error, expat.ExpatError) else ""
        raise ValueError(f"{file} is not valid XML: {reason}{where}.") from None
    except ValueError as error:
        if isinstance(error, RefusedXml):
            raise
        raise ValueError(f"{file} is not valid XML: its encoding can't be read; save it as UTF-8.") from None


class RefusedXml(ValueError):
    """What an xml file is refused for, beside not being valid."""


def refuse_entity(*declaration: object) -> None:
    """Refuse a declared entity."""
    raise RefusedXml(f"An xml file declares the entity {declaration[0]}, which annotations have no use for; remove it.")


def number(root: ElementTree.Element, path: str) -> int:
    """A whole number in the file, or 0."""
    try:
        return int(min(max(0, float(root.findtext(path) or 0)), MOST_PIXELS))
    except ValueError:
        return 0
