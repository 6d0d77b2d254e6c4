"""WebDataset shards, written by the library of that name."""

import contextlib
import functools
import http.server
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import webdataset

from nearsight.data import BadImage, open_data
from nearsight.data.samples import Subset


def write_shard(path: Path, samples: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path)) as writer:
        for sample in samples:
            writer.write(sample)


@pytest.fixture
def three_shards(tmp_path: Path, png) -> Path:
    """Shards of 4, 3 and 2 images, whose red is their number and whose class is its remainder by 2."""
    number = 0
    for shard, count in enumerate((4, 3, 2)):
        samples = []
        for _ in range(count):
            samples.append({"__key__": f"{number:04d}", "png": png(number, 0), "cls": number % 2})
            number += 1
        write_shard(tmp_path / f"part-{shard:03d}.tar", samples)
    return tmp_path


def reds(split) -> list[int]:
    return [split.read(index).getpixel((0, 0))[0] for index in range(len(split))]


@pytest.mark.parametrize("source", ["", "part-*.tar", "part-{000..002}.tar", "part-{000,001,002}.tar", "part-00?.tar"])
def test_shards_by_folder_and_pattern(three_shards: Path, source: str) -> None:
    data = open_data(f"{three_shards}/{source}")
    assert (data.kind, data.classes, list(data.splits())) == ("shards", ("0", "1"), ["train"])
    assert reds(data.train) == list(range(9))
    assert data.train.labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert list(data.train.blocks()) == [4, 3, 2]
    assert data.train.name(5) == "part-001.tar/0005.png"


def test_one_shard_and_random_access_from_another_process(three_shards: Path, png) -> None:
    data = open_data(three_shards / "part-001.tar")
    assert reds(data.train) == [4, 5, 6]
    again = pickle.loads(pickle.dumps(data.train))
    assert again.content(2) == png(6, 0) and again.content(0) == png(4, 0)
    assert len(pickle.dumps(data.train)) < 3_000


def test_windows_reads_the_same(three_shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no `os.pread`."""
    monkeypatch.delattr(os, "pread")
    assert reds(open_data(three_shards).train) == list(range(9))


def test_a_subset_keeps_shards_apart(three_shards: Path) -> None:
    whole = open_data(three_shards).train
    assert list(Subset(whole, [0, 2, 3, 4, 8]).blocks()) == [3, 1, 1]


def test_shards_of_one_name_in_several_folders(tmp_path: Path, png, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("a", "b"):
        samples = [{"__key__": str(i), "png": png(i, 0), "cls": i} for i in range(2)]
        write_shard(tmp_path / f"set/{folder}/0.tar", samples)
    names = ["a/0.tar/0.png", "a/0.tar/1.png", "b/0.tar/0.png", "b/0.tar/1.png"]
    assert [open_data(tmp_path / "set").train.name(index) for index in range(4)] == names
    monkeypatch.chdir(tmp_path / "set/a")
    (tmp_path / "set/a/classes.txt").write_text("x\ny\n")
    data = open_data("0.tar")
    assert (data.train.name(0), data.classes) == ("0.tar/0.png", ("x", "y"))


def test_splits_by_folder_or_prefix(tmp_path: Path, png) -> None:
    pair = [{"__key__": key, "jpg": png(0, 0), "cls": key} for key in "ab"]
    for name in ("one/train/0.tar", "one/Validation/0.tar", "one/test/0.tar"):
        write_shard(tmp_path / name, pair)
    for name in ("two/train-0.tar", "two/train-1.tar", "two/val_0.tar", "two/test.tar"):
        write_shard(tmp_path / name, pair)
    assert list(open_data(tmp_path / "one").splits()) == ["train", "val", "test"]
    assert list(open_data(f"{tmp_path}/one/{{train,test}}/0.tar").splits()) == ["train", "test"]
    assert list(open_data(f"{tmp_path}/one/test").splits()) == ["train"]  # just these images were asked for
    data = open_data(tmp_path / "two")
    assert {name: len(split) for name, split in data.splits().items()} == {"train": 4, "val": 2, "test": 2}
    write_shard(tmp_path / "two/more.tar", pair)
    with pytest.raises(ValueError, match=r"two/more\.tar does not say which split it is for, as other shards do; name"):
        open_data(tmp_path / "two")


def test_labels_as_text_json_and_named_numbers(tmp_path: Path, png) -> None:
    write_shard(tmp_path / "a/0.tar", [{"__key__": f"x/{k}.v1", "jpg": png(0, 0), "cls": k} for k in ("dog", "cat")])
    assert open_data(tmp_path / "a").classes == ("cat", "dog")
    records = [{"label": 1, "other": [1]}, {"class": 0}]
    write_shard(
        tmp_path / "b/0.tar", [{"__key__": str(i), "jpeg": png(i, 0), "json": r} for i, r in enumerate(records)]
    )
    data = open_data(tmp_path / "b")
    assert (data.classes, data.train.labels.tolist()) == (("0", "1"), [1, 0])
    (tmp_path / "b/classes.txt").write_text("cat\ndog\nemu\n")
    assert open_data(tmp_path / "b/0.tar").classes == ("cat", "dog", "emu")
    write_shard(tmp_path / "c/train/0.tar", [{"__key__": str(i), "png": png(0, 0), "cls": i} for i in range(2)])
    (tmp_path / "c/classes.json").write_text(json.dumps(["x", "y"]))
    assert open_data(tmp_path / "c").classes == ("x", "y")


def test_shards_behind_a_url(three_shards: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in three_shards.glob("*.tar"):
        memory.pipe_file(f"/bucket/{path.name}", path.read_bytes())
    memory.pipe_file("/bucket/classes.txt", b"even\nodd\n")
    for source in ("memory://bucket/part-{000..002}.tar", "memory://bucket/part-*.tar"):
        data = open_data(source)
        assert (data.classes, reds(data.train)) == (("even", "odd"), list(range(9)))


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Sends parts of files, as every real server of data does."""

    def do_GET(self) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not asked or not path.is_file():
            return super().do_GET()
        part = path.read_bytes()[int(asked[1]) : int(asked[2]) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {asked[1]}-{asked[2]}/{path.stat().st_size}")
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serve(folder: Path, handler: type) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_shards_behind_http_are_read_in_parts(three_shards: Path) -> None:
    pytest.importorskip("aiohttp")
    with serve(three_shards, RangeHandler) as url:
        assert reds(open_data(f"{url}/part-{{000..002}}.tar").train) == list(range(9))
    with serve(three_shards, http.server.SimpleHTTPRequestHandler) as url:
        data = open_data(f"{url}/part-000.tar")
        with pytest.raises(BadImage, match=r"the server of http.*/part-000\.tar sends whole files only, not parts of"):
            data.train.read(1)


def test_a_shard_that_was_cut_off_later(three_shards: Path) -> None:
    data = open_data(three_shards)
    whole = (three_shards / "part-002.tar").read_bytes()
    (three_shards / "part-002.tar").write_bytes(whole[:700])
    (three_shards / "part-001.tar").unlink()
    with pytest.raises(
        BadImage, match=r"^part-002\.tar/0008\.png can't be read as an image: .*part-002.tar is cut off"
    ):
        data.train.read(8)
    with pytest.raises(BadImage, match=r"^part-001\.tar/0004\.png can't be read as an image: its shard can't be read"):
        data.train.read(4)


def refused(source: object) -> str:
    with pytest.raises(ValueError) as caught:
        open_data(str(source))
    return str(caught.value)


def test_sentences(tmp_path: Path, png, three_shards: Path) -> None:
    assert refused(f"{tmp_path}/part-{{000..003}}.tar") == (
        f"There is no shard {tmp_path}/part-003.tar, which {tmp_path}/part-{{000..003}}.tar stands for."
    )
    assert refused(f"{tmp_path}/none-*.tar") == (
        f"{tmp_path}/none-*.tar stands for no .tar files; give a file, a folder of them, or a pattern."
    )
    write_shard(tmp_path / "bare/0.tar", [{"__key__": "7", "png": png(0, 0)}])
    assert refused(tmp_path / "bare") == (
        f"7.png in {tmp_path}/bare/0.tar has no label; put a .cls file, or a .json file with the key label, beside it."
    )
    write_shard(tmp_path / "blind/0.tar", [{"__key__": "7", "cls": 1}])
    assert refused(tmp_path / "blind") == f"{tmp_path}/blind/0.tar has no images with a .cls or .json file beside them."
    write_shard(tmp_path / "odd/0.tar", [{"__key__": "7", "png": png(0, 0), "json": b"{"}])
    assert refused(tmp_path / "odd").startswith(f"7.json in {tmp_path}/odd/0.tar can't be read: ")
    write_shard(tmp_path / "null/0.tar", [{"__key__": "7", "png": png(0, 0), "json": {"label": None}}])
    assert refused(tmp_path / "null").startswith(f"7.png in {tmp_path}/null/0.tar has no label; ")
    (tmp_path / "zipped.tar").write_bytes(b"\x1f\x8b" + b"0" * 600)
    assert refused(tmp_path / "zipped.tar").startswith(
        f"{tmp_path}/zipped.tar can't be read as a tar archive that is not compressed: "
    )
    (tmp_path / "classes.json").write_text("{}")
    assert refused(tmp_path / "part-000.tar") == (
        f"{tmp_path}/classes.json holds no list; it has to name the classes in the order of their numbers."
    )
    (tmp_path / "classes.json").write_text("[")
    assert refused(tmp_path / "part-000.tar").startswith(f"{tmp_path}/classes.json can't be read: ")
    (tmp_path / "classes.json").unlink()
    (tmp_path / "twice").mkdir()
    with tarfile.open(tmp_path / "twice/0.tar", "w") as archive:
        for name in ("a.png", "a.cls", "b.png", "b.cls", "a.png", "a.cls"):
            content = b"1" if name.endswith("cls") else png(0, 0)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    assert refused(tmp_path / "twice") == f"{tmp_path}/twice/0.tar has two images of the same name; give each its own."


@pytest.mark.usefixtures("online")
def test_urls_that_lead_nowhere(three_shards: Path) -> None:
    with pytest.raises(OSError, match=r"^nosuch://bucket/0\.tar can't be read: Protocol not known: nosuch\.$"):
        open_data("nosuch://bucket/0.tar")
    with pytest.raises(OSError, match=r"^memory://nowhere/0\.tar can't be read: .+\.$"):
        open_data("memory://nowhere/0.tar")
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/gone/0.tar", (three_shards / "part-000.tar").read_bytes())
    data = open_data("memory://gone/0.tar")
    memory.rm("/gone/0.tar")
    with pytest.raises(BadImage, match=r"^0\.tar/0000\.png can't be read as an image: its shard can't be read \(mem"):
        data.train.read(0)
    write_shard(three_shards / "bare.tar", [{"__key__": "7", "png": data.train.name(0).encode()}])
    memory.pipe_file("/bare/0.tar", (three_shards / "bare.tar").read_bytes())
    assert refused("memory://bare/0.tar").startswith("7.png in memory://bare/0.tar has no label; ")


MILLION = """
import resource, sys
from nearsight.data import open_data
from nearsight.data.loader import Batches

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before, split = peak(), open_data(sys.argv[1]).train
opened, seen, read = peak(), 0, 0
for draws in Batches(split, batch=256, epochs=1, repeats=1, seed=0, start=0, parts=1, mine=range(1)):
    seen += len(draws)
    if seen <= 20_000:
        read += sum(split.read(draw.image).width for draw in draws)
print(len(split), seen, read, opened - before, peak() - before, len(split._open))
"""


@pytest.mark.drill
def test_a_million_samples_are_indexed_and_drawn_in_bounded_memory(tmp_path: Path, png) -> None:
    samples = [
        {"__key__": f"{number:06d}", "png": png(number % 256, 0), "cls": number % 10} for number in range(10_000)
    ]
    write_shard(tmp_path / "part-0000.tar", samples)
    for shard in range(1, 100):  # the same content under another name: 20 MB instead of 2 GB
        (tmp_path / f"part-{shard:04d}.tar").hardlink_to(tmp_path / "part-0000.tar")
    done = subprocess.run([sys.executable, "-c", MILLION, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, seen, read, opened, whole, files = map(int, done.stdout.split())
    assert count == 1_000_000 and seen == count // 256 * 256 and read > 0 and files <= 64
    assert opened < 500 * count  # bytes of a sample: names, offsets and labels, not contents
    assert whole < 1000 * count
