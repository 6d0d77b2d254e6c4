"""Where pretrained weights come from: a folder of the user's, the caches of timm and the Hugging Face hub, a download.

Weights are those of timm's models, under timm's names: `deit_tiny_patch16_224.fb_in1k` is a model and, behind the dot,
the tag of one training of it. `find_pretrained` looks for what is at hand, `get_pretrained` fetches.
"""

import errno
import hashlib
import http.client
import json
import os
import re
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import huggingface_hub
import timm
import torch
from filelock import FileLock
from timm.models import get_arch_pretrained_cfgs

from ..arguments import checked
from ..atomic import expand_home, write_whole
from ..models import MODELS
from ..network import is_offline, refuse_offline
from ..result import Result, Results
from ..shipped import shipped_models
from .timm import check_model_name

Source = Literal["named", "folder", "cache", "download", "shipped"]
ENDINGS = (".safetensors", ".pth", ".pt", ".bin")  # the others of timm's files are pickled NumPy arrays
UNKNOWN = "unknown"
COMMERCIAL = re.compile(r"(apache-2\.0|mit|isc|unlicense|0bsd|bsd-[23]-clause|cc0-1\.0|cc-by(-sa)?-[34]\.0)")
PATIENCE = 8  # seconds without a byte
PIECE = 1 << 20

# Models of ours that are the same network as one of timm's, whose weights the readers of released files take.
SAME_NETWORK = {
    "deit_tiny": "deit_tiny_patch16_224",
    "deit_small": "deit_small_patch16_224",
    "deit_base": "deit_base_patch16_224",
    "deit_tiny_distilled": "deit_tiny_distilled_patch16_224",
    "deit_small_distilled": "deit_small_distilled_patch16_224",
    "deit_base_distilled": "deit_base_distilled_patch16_224",
    "tnt_small": "tnt_s_legacy_patch16_224",
}


@dataclass(frozen=True)
class Host:
    """Weights to start from where nobody says which.

    Attributes:
        name: Of timm, with the tag.
        licence: Of the weights.
        bytes: Size of the file, about.
        about: What speaks for it.
    """

    name: str
    licence: str
    bytes: int
    about: str


# In the order in which they are taken. The first is small enough for a CPU, and the one that is measured in the docs.
HOSTS = (
    Host("deit_tiny_patch16_224.fb_in1k", "apache-2.0", 22_883_344, "small transformer"),
    Host("deit_small_patch16_224.fb_in1k", "apache-2.0", 88_218_000, "larger transformer"),
    Host("vit_small_patch14_dinov2.lvd142m", "apache-2.0", 88_240_000, "self-supervised transformer"),
    Host("convnext_nano.in12k_ft_in1k", "apache-2.0", 62_388_000, "ConvNet, 12k classes first"),
    Host("resnet18.a1_in1k", "apache-2.0", 46_808_000, "plain ConvNet"),
    Host("resnet50.a1_in1k", "apache-2.0", 102_469_000, "larger ConvNet"),
    Host("convnext_atto.d2_in1k", "apache-2.0", 14_794_000, "small ConvNet"),
    Host("mobilenetv3_small_100.lamb_in1k", "apache-2.0", 10_242_000, "smallest, fast ConvNet"),
)


@dataclass(frozen=True)
class Found:
    """A file with the weights of a model of timm that is at hand, not read yet.

    Attributes:
        model: timm's name of the model.
        tag: Of the training; None where the file's name says none.
        path: The file: safetensors, or a PyTorch checkpoint that is read with `weights_only`.
        source: Where it was found: `named` by the user, the `folder` in `$NEARSIGHT_WEIGHTS`, a `cache` of ours, timm's
            or the hub's, or a fresh `download`.
        licence: Of the weights; `unknown` where nothing tells.
    """

    model: str
    tag: str | None
    path: Path
    source: Source
    licence: str

    @property
    def name(self) -> str:
        """timm's name of the weights: the model, and the tag where it is known."""
        return full_name(self.model, self.tag)

    def measured(self) -> "Pretrained":
        """The same with size and hash."""
        size = self.path.stat().st_size
        return Pretrained(self.model, self.tag, self.path, self.source, self.licence, sha256_of(self.path), size)


@dataclass(frozen=True)
class Pretrained(Found, Result):
    """Weights of a model of timm in a file that was read.

    Attributes:
        sha256: Of the file.
        bytes: Size of the file.
    """

    sha256: str
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """What it is and where, as values that JSON knows."""
        return {"name": self.name, **asdict(self), "path": str(self.path)}

    def say(self) -> str:
        """One sentence for before a training: which weights, why, under which licence, and how to choose otherwise."""
        why = {
            "named": "as you said",
            "folder": "found in NEARSIGHT_WEIGHTS",
            "cache": "found in a cache",
            "download": "downloaded",
            "shipped": "it comes with Nearsight",
        }[self.source]
        return (
            f"Starts from the pretrained weights {self.name} ({why}: {self.path}; licence {self.licence}), since that "
            "takes fewer images and less time than from scratch; --weights none starts from scratch, --weights FILE "
            "from others."
        )


def find_pretrained(
    model: str | None = None,
    *,
    offline: bool = False,
    download: bool = False,
    ask: Callable[[str], bool] | None = None,
    any_licence: bool = False,
) -> Pretrained | None:
    """Pretrained weights of a model, or of the first host that is at hand; None where there are none.

    They are looked for in the folder `$NEARSIGHT_WEIGHTS`, then in the caches of Nearsight, of the Hugging Face hub and
    of torch, where timm keeps what it downloaded. What is not there is downloaded where that is asked for.

    Args:
        model: A model of timm (with or without a tag), or of ours; None for any of `HOSTS`.
        offline: Neither download nor ask; `HF_HUB_OFFLINE=1` says the same.
        download: Fetch what is not at hand.
        ask: Is shown a question that names model, size and licence, and says whether to download; without, nobody is
            asked.
        any_licence: Also take weights whose licence is unknown, or does not permit commercial use.

    Raises:
        ValueError: There is no such model, or a download failed.

    Example:
        >>> find_pretrained("deit_nano") is None  # nobody has pretrained it
        True
    """
    if offline and download:
        raise ValueError("--offline and --download contradict each other; leave one of them out.")
    allowed = (found for found in at_hand(model) if any_licence or permits_commercial_use(found.licence))
    if (found := next(allowed, None)) is not None:
        return found.measured()
    name = available_name(model, any_licence)
    if name is None or offline or is_offline():
        return None
    if download or (ask is not None and ask(question(name))):
        return get_pretrained(name)
    return None


def at_hand(model: str | None = None) -> Iterator[Found]:
    """Files of weights of a model, or of any host, in the order in which they are taken."""
    wanted = [split_name(host.name) for host in HOSTS] if model is None else wanted_names(model)
    for folder, source in weight_folders():
        listed, taken = list(in_folder(folder, source)), list[Found]()
        for name, tag in wanted:
            same = [found for found in listed if found.model == name and fits(found.tag, tag, name)]
            taken += sorted(same, key=lambda found: (found.tag != default_tag(name), found.tag or ""))
        yield from taken
        if model is None:  # what somebody put there is meant to be used
            yield from (found for found in listed if found not in taken)
    for name, tag in wanted:
        yield from in_caches(name, tag)


def wanted_names(model: str) -> list[tuple[str, str | None]]:
    """Model and tag of timm that a name stands for; none for a model of ours that nobody has pretrained."""
    name, tag = split_name(model)
    if name in MODELS:
        return [(SAME_NETWORK[name], tag)] if name in SAME_NETWORK else []
    check_model_name(name)
    tags = get_arch_pretrained_cfgs(name)
    if tag is not None and full_name(name, tag) not in tags:
        known = ", ".join(split_name(full)[1] or "" for full in tags) or "none"
        raise ValueError(f"{name} has no weights with the tag {tag!r}; timm knows {known}.")
    return [(name, tag)]


def weight_folders() -> list[tuple[Path, Source]]:
    """Folders in which files are named after their models: the user's, and where downloads go."""
    given = os.environ.get("NEARSIGHT_WEIGHTS", "").strip()
    folders: list[tuple[Path, Source]] = [(expand_home(given), "folder")] if given else []
    return [*folders, (cache_folder() / "weights", "cache")]


def cache_folder() -> Path:
    """Where what can be had again is kept: `NEARSIGHT_CACHE`, or a folder in the user's home."""
    return expand_home(os.environ.get("NEARSIGHT_CACHE", "").strip() or "~/.cache/nearsight")


def in_folder(folder: Path, source: Source) -> Iterator[Found]:
    """The files of a folder whose names are those of timm's models, by name."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    for file in files:
        model, tag = split_name(file.name.removesuffix(file.suffix))
        if file.suffix not in ENDINGS or model in MODELS or not timm.is_model(model) or not file.is_file():
            continue
        note = read_note(file)
        if "format" not in note:  # which a model has that Nearsight wrote
            yield Found(model, tag, file, source, note.get("licence") or licence_of(model, tag))


def read_note(file: Path) -> dict[str, str]:
    """What `NAME.json` says beside a file of weights, such as the licence; nothing where there is none to be read."""
    try:
        values = json.loads(file.with_name(f"{file.name.removesuffix(file.suffix)}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    texts = {key: value for key, value in values.items() if isinstance(value, str)}
    return texts | ({"licence": texts["license"]} if "license" in texts and "licence" not in texts else {})


def has_description(file: Path) -> bool:
    """Whether the JSON file beside weights tells their model, and is no note of where they come from."""
    return file.with_suffix(".json").is_file() and not ("format" not in (note := read_note(file)) and "licence" in note)


def identify(file: Path) -> dict[str, Any]:
    """What is known of a file of weights, for the record of a run: name, licence, hash and size."""
    cached = re.search(r"models--timm--([^/\\]+)[/\\]snapshots", str(file))
    name = cached.group(1) if cached else file.name.removesuffix(file.suffix)
    model, tag = split_name(name)
    about: dict[str, Any] = {"file": str(file), "sha256": sha256_of(file), "bytes": file.stat().st_size}
    if has_description(file) or model in MODELS or not timm.is_model(model):
        return about | ({} if (first := first_weights(file.parent)) is None else {"first": first})
    return {"name": name, "licence": read_note(file).get("licence") or licence_of(model, tag), **about}


def first_weights(folder: Path) -> dict[str, Any] | None:
    """Name, licence and hash of the pretrained weights that a run began with, itself or through the runs before it."""
    try:
        began = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["weights"]
        first = began if "name" in began else began.get("first") or first_weights(Path(began["file"]).parent)
        return None if first is None else {key: str(first[key]) for key in ("name", "licence", "sha256")}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None  # no run, one from scratch, or a record that was edited


def in_caches(model: str, tag: str | None) -> Iterator[Found]:
    """What the caches of the Hugging Face hub and of torch hold of a model, the default tag first."""
    hub, checkpoints = Path(huggingface_hub.constants.HF_HUB_CACHE), Path(torch.hub.get_dir()) / "checkpoints"
    for name, about in get_arch_pretrained_cfgs(model).items():
        own = split_name(name)[1]
        if not fits(own, tag, model):
            continue
        files: list[Path] = []
        if about.hf_hub_id:
            folder = hub / f"models--{about.hf_hub_id.replace('/', '--')}" / "snapshots"
            names = [about.hf_hub_filename] if about.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
            files += [file for one in names for file in sorted(folder.glob(f"*/{one}"))]
        if about.url:
            files.append(checkpoints / about.url.rpartition("/")[2])
        for file in files:
            if file.suffix in ENDINGS and file.is_file():
                yield Found(model, own, file, "cache", (about.license or UNKNOWN).lower())


def split_name(name: str) -> tuple[str, str | None]:
    """Model and tag of a name of timm's.

    Example:
        >>> split_name("timm/resnet18.a1_in1k"), split_name("deit_tiny")
        (('resnet18', 'a1_in1k'), ('deit_tiny', None))
    """
    model, _, tag = name.removeprefix("timm/").partition(".")
    return model, tag or None


def full_name(model: str, tag: str | None) -> str:
    """A name of timm's from model and tag."""
    return f"{model}.{tag}" if tag else model


def default_tag(model: str) -> str | None:
    """The tag that timm takes where none is given: the first."""
    return next((split_name(name)[1] for name in get_arch_pretrained_cfgs(model)), None)


def fits(held: str | None, wanted: str | None, model: str) -> bool:
    """Whether weights with a tag are the wanted ones; those without count as timm's default."""
    return wanted is None or held == wanted or (held is None and wanted == default_tag(model))


def licence_of(model: str, tag: str | None = None) -> str:
    """The licence of a model's weights, as timm has it; without a tag, that of the host, or the one all tags share.

    Example:
        >>> licence_of("deit_tiny_patch16_224"), licence_of("convnextv2_nano", "fcmae_ft_in1k")
        ('apache-2.0', 'cc-by-nc-4.0')
    """
    host = next((host for host in HOSTS if split_name(host.name)[0] == model and fits(tag, None, model)), None)
    if host is not None and tag in (None, split_name(host.name)[1]):
        return host.licence
    about = get_arch_pretrained_cfgs(model)
    licences = {(one.license or UNKNOWN).lower() for name, one in about.items() if tag in (None, split_name(name)[1])}
    return licences.pop() if len(licences) == 1 else UNKNOWN


def permits_commercial_use(licence: str) -> bool:
    """Whether a licence, by its SPDX name, permits commercial use.

    Example:
        >>> [permits_commercial_use(name) for name in ("apache-2.0", "MIT", "cc-by-nc-4.0", "unknown")]
        [True, True, False, False]
    """
    return COMMERCIAL.fullmatch(licence.strip().lower()) is not None


def available_name(model: str | None, any_licence: bool = True) -> str | None:
    """The name under which weights of a model can be downloaded; None where there are none, or none to be taken."""
    if model is None:
        return HOSTS[0].name
    for name, tag in wanted_names(model):
        for full, about in get_arch_pretrained_cfgs(name).items():
            is_there = bool(about.hf_hub_id) or str(about.url or "").endswith(ENDINGS)
            if is_there and fits(split_name(full)[1], tag, name):
                return full if any_licence or permits_commercial_use(about.license or UNKNOWN) else None
    return None


def file_size(name: str) -> int:
    """Bytes of a model's weights, from its tensors."""
    known = next((host.bytes for host in HOSTS if host.name == name), None)
    if known is not None:
        return known
    with torch.device("meta"):
        tensors = timm.create_model(split_name(name)[0]).state_dict().values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def question(name: str) -> str:
    """What to ask before a download."""
    licence = licence_of(*split_name(name))
    return f"Download the pretrained weights {name} ({megabytes(file_size(name))}, licence {licence})?"


def megabytes(size: int) -> str:
    """A size for people.

    Example:
        >>> megabytes(22_883_344)
        '22.9 MB'
    """
    return f"{size / 1e6:.1f} MB"


def missing_sentence(model: str | None = None) -> str:
    """One sentence for a training from scratch: why no weights were taken, and how to have some.

    Example:
        >>> missing_sentence("deit_nano")
        'Trains from scratch: there are no pretrained weights of deit_nano.'
    """
    return f"Trains from scratch: {why_missing(model)}"


def why_missing(model: str | None = None) -> str:
    """Why no weights of a model, or of any host, were taken, and how to have some; without a capital in front."""
    passed = next((found for found in at_hand(model) if not permits_commercial_use(found.licence)), None)
    if passed is not None:
        return (
            f"{passed.path} is passed over, since its licence is {passed.licence}, and not one that is known to permit "
            "commercial use; --weights FILE takes it all the same."
        )
    name = available_name(model)
    if name is None:
        return f"there are no pretrained weights of {model}."
    licence = licence_of(*split_name(name))
    if not permits_commercial_use(licence):
        return (
            f"the pretrained weights of {model} have the licence {licence}, which must be chosen; "
            f"`nearsight weights get {name}` fetches them, and --weights pretrained takes them."
        )
    return (
        f"no pretrained weights{f' of {model}' if model else ''} are at hand; `nearsight weights get {name}` fetches "
        f"some ({megabytes(file_size(name))}, {licence})."
    )


@dataclass(frozen=True)
class Listed(Result):
    """Weights that are at hand or can be had.

    Attributes:
        name: Of timm, with the tag where it is known.
        licence: Of the weights.
        bytes: Size of the file, about where it is not at hand.
        path: The file; None where it has to be downloaded.
        source: `folder`, `cache` or, of what comes with the package, `shipped`; None where it has to be downloaded.
        about: What speaks for it as a host.
    """

    name: str
    licence: str
    bytes: int
    path: Path | None
    source: Source | None
    about: str = ""

    @property
    def automatic(self) -> bool:
        """Whether a training starts from it where nobody names weights."""
        return self.path is not None and self.source != "shipped" and permits_commercial_use(self.licence)

    def to_dict(self) -> dict[str, Any]:
        """What it is and where, as values that JSON knows."""
        return {
            "name": self.name,
            "licence": self.licence,
            "bytes": self.bytes,
            "file": str(self.path) if self.path else None,
            "source": self.source,
            "automatic": self.automatic,
            "about": self.about,
        }


def list_pretrained() -> Results[Listed]:
    """Pretrained weights that are at hand, in the order in which they are taken, and hosts that could be had.

    Example:
        >>> "deit_tiny_patch16_224.fb_in1k" in [weights.name for weights in list_pretrained()]
        True
    """
    about = {host.name: host.about for host in HOSTS}
    listed = Results[Listed]()
    for found in at_hand():
        whole, size = full_name(found.model, found.tag or default_tag(found.model)), found.path.stat().st_size
        listed.append(Listed(found.name, found.licence, size, found.path, found.source, about.get(whole, "")))
    held = {full_name(found.model, found.tag or default_tag(found.model)) for found in at_hand()}
    for name, file in shipped_models().items():
        origin = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))["origin"]
        listed.append(Listed(name, origin["licence"], file.stat().st_size, file, "shipped", origin["about"]))
    there = (host for host in HOSTS if host.name not in held)
    listed += (Listed(host.name, host.licence, host.bytes, None, None, host.about) for host in there)
    return listed


def sha256_of(path: Path) -> str:
    """The hash of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


@checked
def get_pretrained(
    name: str, folder: str | Path | None = None, progress: Callable[[int, int], None] | None = None
) -> Pretrained:
    """Download pretrained weights, checked by their hash; what is there already is not fetched again.

    A download that broke off goes on where it ended. The file appears whole or not at all, with a note of its licence
    and origin beside it.

    Args:
        name: A model of timm (with or without a tag) or of ours.
        folder: Where to put it; without, `$NEARSIGHT_WEIGHTS`, or a cache where that is not set.
        progress: Is told the bytes that are there and the bytes of the file.

    Raises:
        ValueError: There are no such weights, or they can't be had now.

    Example:
        >>> get_pretrained("deit_nano")
        Traceback (most recent call last):
        ValueError: There are no pretrained weights of deit_nano; `nearsight weights` lists hosts to start from.
    """
    full = available_name(name)
    if full is None:
        raise ValueError(f"There are no pretrained weights of {name}; `nearsight weights` lists hosts to start from.")
    target = Path(folder) if folder is not None else weight_folders()[0][0]
    model, tag = split_name(full)

    def there() -> Pretrained | None:
        held = (found for found in in_folder(target, "folder") if (found.model, found.tag) == (model, tag))
        found = next(held, None)
        return found.measured() if found else None

    if (found := there()) is not None:
        return found
    refuse_offline(full, "leave it out, or get the file on another machine")
    remote = look_up(full)
    file = target / f"{full}{remote.ending}"
    target.mkdir(parents=True, exist_ok=True)
    part = target / f".{file.name}.{remote.version}.part"
    with FileLock(target / f".{file.name}.lock"):  # others wait, and find the file
        if (found := there()) is not None:
            return found
        fetch(remote, part, progress)
        digest = sha256_of(part)
        if not digest.startswith(remote.sha256):
            part.unlink()
            raise ValueError(
                f"{remote.url} gave other bytes than were announced (their hash is {digest[:12]}... instead of "
                f"{remote.sha256[:12]}...), and they were thrown away; try again, or ask who runs that server."
            )
        licence = licence_of(model, tag)
        note = {"name": full, "licence": licence, "origin": remote.url, "sha256": digest}
        write_whole(target / f"{full}.json", json.dumps(note, indent=1).encode())
        part.replace(file)
    return Pretrained(model, tag, file, "download", licence, digest, file.stat().st_size)


@dataclass(frozen=True)
class Remote:
    """A file to download: where, how large, and with which hash, or how that begins."""

    url: str
    size: int
    sha256: str

    @property
    def ending(self) -> str:
        """Of its name."""
        return os.path.splitext(urllib.parse.urlsplit(self.url).path)[1]

    @property
    def version(self) -> str:
        """What tells it from another file under the same address."""
        return self.sha256[:16] or str(self.size)


def look_up(name: str) -> Remote:
    """Ask the hub, or the server that timm names, for a file of weights.

    Raises:
        ValueError: It can't be had, in one sentence.
    """
    about = get_arch_pretrained_cfgs(split_name(name)[0])[name]
    if not about.hf_hub_id:
        return look_up_url(name, about.url)
    wanted, endpoint = about.hf_hub_filename or "model.safetensors", os.environ.get("HF_ENDPOINT") or None
    url = huggingface_hub.hf_hub_url(about.hf_hub_id, wanted, endpoint=endpoint)
    try:
        told = huggingface_hub.get_hf_file_metadata(url, token=False, timeout=PATIENCE)
    except Exception as error:  # each release of the hub's library has other classes, of other packages
        raise unreachable(name, url, error) from None
    if not told.size or not told.etag:
        raise ValueError(f"{url} does not say how large the file is and which hash it has; is HF_ENDPOINT right?")
    if not re.fullmatch(r"[0-9a-f]{64}", told.etag):
        raise ValueError(f"{url} does not give the file's SHA-256, so that a download could not be checked.")
    return Remote(url, told.size, told.etag)


def look_up_url(name: str, url: str) -> Remote:
    """Size of a file that is not on the hub; how its hash begins is the last part of its name."""
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            size = int(response.headers["Content-Length"] or 0)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise unreachable(name, url, error) from None
    hashed = re.search(r"-([0-9a-f]{8,64})\.\w+$", url)
    if not size or not hashed:
        raise ValueError(f"{url} can't be checked after a download, since it tells no size or no hash.")
    return Remote(url, size, hashed.group(1))


def unreachable(name: str, url: str, error: Exception) -> ValueError:
    """One sentence for why weights can't be had."""
    status = getattr(getattr(error, "response", None), "status_code", None) or getattr(error, "code", None)
    server = urllib.parse.urlsplit(url).netloc
    if status in (401, 403, 404):  # the hub says 401 of what does not exist, too
        return ValueError(f"{server} has no {name} for you (HTTP {status}); `nearsight weights` lists hosts to have.")
    timed_out = "timeout" in type(error).__name__.lower() or "timed out" in str(error).lower()
    if timed_out or isinstance(error, TimeoutError):
        reason = f"no answer in {PATIENCE} seconds"
    else:
        lines = str(error).strip().splitlines()
        reason = f"HTTP {status}" if status else (lines[0].rstrip(".") if lines else type(error).__name__)
    return ValueError(
        f"{name} can't be downloaded from {server} ({reason}); try again later, or fetch it on another machine with "
        f"`nearsight weights get {name} --folder FOLDER` and set NEARSIGHT_WEIGHTS to that folder."
    )


def fetch(remote: Remote, part: Path, progress: Callable[[int, int], None] | None) -> None:
    """Download a file, from where an earlier try ended; a connection that breaks is opened again while bytes come."""
    had, tries = part.stat().st_size if part.is_file() else 0, 0
    if had > remote.size:
        part.unlink()
        had = 0
    while had < remote.size:
        before = had
        try:
            had = receive(remote, part, had, progress)
            error: Exception = OSError("the connection ended early")
        except (OSError, http.client.HTTPException) as problem:
            if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES):
                raise
            error, had = problem, part.stat().st_size if part.is_file() else 0
        tries = 0 if had > before else tries + 1
        if had < remote.size and (tries > 1 or getattr(error, "code", 500) < 500):
            raise unreachable(part.name.removeprefix(".").split(remote.ending)[0], remote.url, error)


def receive(remote: Remote, part: Path, had: int, progress: Callable[[int, int], None] | None) -> int:
    """Append what is missing to a file; returns how many bytes it has then."""
    headers = {"Range": f"bytes={had}-"} if had else {}
    with urllib.request.urlopen(urllib.request.Request(remote.url, headers=headers), timeout=PATIENCE) as response:
        if had and response.status != 206:  # the server starts over
            had = 0
        with part.open("r+b" if had else "wb") as file:
            file.seek(had)
            while had < remote.size and (piece := response.read1(PIECE)):
                file.write(piece)
                had += len(piece)
                if progress is not None:
                    progress(had, remote.size)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    return had
