"""Order and draws of training: functions of the seed, the epoch and the image, whoever does the work."""

import os
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from nearsight.config.recipe import Augment
from nearsight.data.loader import (
    Batches,
    Draw,
    TrainImages,
    default_workers,
    divide,
    eval_loader,
    scramble,
    shuffle_blocks,
    train_loader,
)
from nearsight.data.samples import BadImage
from nearsight.data.sources.npz import Arrays
from nearsight.data.transforms import Augmentation, Preprocessing

STRONG = Augment(crop="resized", flip=0.5, rand_augment="rand-m9-mstd0.5-inc1", erase=0.5)
INPUT = Preprocessing((12, 16))


class Spoiled(Arrays):
    """Images of which some can't be read."""

    bad: frozenset[int] = frozenset()

    def read(self, index: int, enough: int | None = None) -> Image.Image:
        if index in self.bad:
            raise BadImage(self.name(index), "the file is cut off")
        return super().read(index, enough)


class Sharded(Arrays):
    """Images in shards."""

    sizes: tuple[int, ...] = ()

    def blocks(self) -> tuple[int, ...]:
        return self.sizes


def some_images(count: int, bad: tuple[int, ...] = ()) -> Spoiled:
    generator = np.random.default_rng(0)
    split = Spoiled("x", generator.integers(0, 256, (count, 20, 24, 3), dtype=np.uint8), np.arange(count) % 3)
    split.bad = frozenset(bad)
    return split


def make_batches(
    split: Arrays, batch: int = 8, seed: int = 1, start: int = 0, parts: int = 1, mine: range | None = None, **more: int
) -> Batches:
    settings = {"epochs": 3, "repeats": 1} | more
    mine = range(parts) if mine is None else mine
    return Batches(split, batch=batch, seed=seed, start=start, parts=parts, mine=mine, **settings)


def pixels(split: Arrays, workers: int = 0, **settings: object) -> dict[Draw, torch.Tensor]:
    """What each draw of a whole training looks like."""
    batches = make_batches(split, **settings)  # type: ignore[arg-type]
    loader = train_loader(TrainImages(split, Augmentation(STRONG, INPUT), seed=1), batches, workers)
    drawn = [draw for draws in batches for draw in draws]
    shown = torch.cat([batch.images for batch in loader])
    return dict(zip(drawn, shown, strict=True))


def test_an_epoch_is_a_permutation_that_follows_from_seed_and_epoch() -> None:
    split = some_images(30)
    orders = {
        (seed, epoch): [draw.image for draw in make_batches(split, seed=seed).order(epoch)]
        for seed in (1, 2)
        for epoch in (0, 1)
    }
    assert all(sorted(order) == list(range(30)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 4
    again = make_batches(some_images(30), batch=5, start=4, parts=5)
    assert [draw.image for draw in again.order(1)] == orders[1, 1]


def test_a_start_in_the_middle_yields_the_rest() -> None:
    split = some_images(30)
    whole = list(make_batches(split))
    assert len(whole) == 3 * (30 // 8) == len(make_batches(split))
    for start in range(len(whole) + 1):
        rest = make_batches(split, start=start)
        assert list(rest) == whole[start:]
        assert len(rest) == len(whole) - start


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_and_parts_together_draw_what_one_draws(processes: int) -> None:
    split, accumulate = some_images(30), 2
    whole = list(make_batches(split))
    shared = [
        list(make_batches(split, parts=processes * accumulate, mine=range(r * accumulate, (r + 1) * accumulate)))
        for r in range(processes)
    ]
    for step, draws in enumerate(whole):
        parts = [own[step * accumulate + k] for own in shared for k in range(accumulate)]
        assert {len(part) for part in parts} == {8 // (processes * accumulate)}
        assert Counter(draw for part in parts for draw in part) == Counter(draws)


@pytest.mark.parametrize(("size", "parts"), [(8, 1), (8, 2), (8, 4), (12, 3), (6, 2), (9, 3), (10, 2), (4, 4)])
def test_parts_are_a_partition_that_keeps_the_pairs_of_mixup(size: int, parts: int) -> None:
    batch = [Draw(0, index, 0) for index in range(size)]
    pieces = [divide(batch, parts, part) for part in range(parts)]
    assert sorted(draw for piece in pieces for draw in piece) == batch
    assert {len(piece) for piece in pieces} == {size // parts}
    if (size // parts) % 2 == 0:  # mixup mixes an image with the one at the mirrored place
        partner = dict(zip(batch, batch[::-1], strict=True))
        for piece in pieces:
            assert [partner[draw] for draw in piece] == piece[::-1]


def test_draws_depend_on_nothing_but_seed_epoch_and_image() -> None:
    split = some_images(16)
    plain = pixels(split, epochs=2)
    for other in (
        pixels(split, epochs=2, workers=2),
        pixels(split, epochs=2, start=1),
        pixels(split, epochs=2, batch=4, parts=2),
    ):
        assert other.keys() <= plain.keys()
        assert all(torch.equal(shown, plain[draw]) for draw, shown in other.items())
    first, second = ([plain[Draw(epoch, image, 0)] for image in range(16)] for epoch in (0, 1))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_copies_of_an_image_are_drawn_apart() -> None:
    split = some_images(12)
    draws = make_batches(split, batch=4, repeats=3).order(0)
    assert len(draws) == 12
    assert Counter(draw.copy for draw in draws) == {0: 4, 1: 4, 2: 4}
    assert set(Counter(draw.image for draw in draws).values()) == {3}
    shown = pixels(split, batch=4, repeats=3, epochs=1)
    one = draws[0].image
    copies = [shown[Draw(0, one, copy)] for copy in range(3)]
    assert not torch.equal(copies[0], copies[1]) and not torch.equal(copies[1], copies[2])


def test_shards_are_shuffled_in_groups_that_are_read_together() -> None:
    sizes = np.full(20, 7)
    order = shuffle_blocks(sizes, np.random.default_rng(0))
    assert sorted(order.tolist()) == list(range(140))
    shards = order // 7
    group = 8 * 7
    assert [len(set(shards[first : first + group])) for first in (0, group, 2 * group)] == [8, 8, 4]
    assert len(set(shards[:7])) > 1  # mixed within a group
    split = Sharded("x", np.zeros((140, 4, 4), np.uint8), np.zeros(140, np.int64))
    split.sizes = tuple(sizes)
    assert sorted(draw.image for draw in make_batches(split).order(0)) == list(range(140))


def test_a_bad_image_is_passed_over_for_the_next_and_named() -> None:
    split = some_images(8, bad=(2, 3, 7))
    images = TrainImages(split, Augmentation(Augment(crop="none", flip=0), Preprocessing((20, 24))), seed=0)
    for wanted, taken, named in ((2, 4, {"x[2]", "x[3]"}), (7, 0, {"x[7]"}), (5, 5, set())):
        shown, label, index, _, name, bad = images[Draw(0, wanted, 0)]
        assert (index, label, name, set(bad)) == (taken, taken % 3, f"x[{taken}]", named)
        assert np.array_equal(shown.permute(1, 2, 0).numpy(), split.pixels[taken])
    (batch,) = train_loader(images, make_batches(split, epochs=1), workers=0)
    assert batch.bad == dict.fromkeys(["x[2]", "x[3]", "x[7]"], "the file is cut off")
    assert len(batch.images) == 8


def test_images_none_of_which_can_be_read_are_refused() -> None:
    split = some_images(3, bad=(0, 1, 2))
    images = TrainImages(split, Augmentation(Augment(crop="none"), INPUT), seed=0)
    with pytest.raises(ValueError, match=r"None of the 3 training images can be read; the first: \('x\[1\]'"):
        images[Draw(0, 1, 0)]


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_keeps_the_order_and_leaves_bad_images_out(workers: int) -> None:
    split = some_images(10, bad=(0, 4, 5, 6))
    batches = list(eval_loader(split, Preprocessing((20, 24)), batch=3, workers=workers))
    assert [batch.indices.tolist() for batch in batches] == [[1, 2], [3], [7, 8], [9]]
    assert [sorted(batch.bad) for batch in batches] == [["x[0]"], ["x[4]", "x[5]"], ["x[6]"], []]
    for batch in batches:
        assert batch.targets.tolist() == [index % 3 for index in batch.indices.tolist()]
        assert np.array_equal(batch.images.permute(0, 2, 3, 1).numpy(), split.pixels[batch.indices.numpy()])


def test_evaluation_of_some_images_and_of_a_batch_of_bad_ones() -> None:
    split = some_images(10, bad=(1, 3))
    batches = list(eval_loader(split, INPUT, batch=2, workers=0, indices=range(1, 10, 2)))
    assert [batch.indices.tolist() for batch in batches] == [[], [5, 7], [9]]
    assert len(batches[0].images) == 0


@pytest.mark.posix
def test_workers_leave_signals_to_the_process_that_reads() -> None:
    loader = eval_loader(some_images(40), INPUT, batch=2, workers=1)
    batches = iter(loader)
    first = next(batches)
    for worker in batches._workers:  # type: ignore[attr-defined]
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(worker.pid, number)
    assert len(first.targets) + sum(len(batch.targets) for batch in batches) == 40


def test_scrambled_numbers_differ_with_place_and_number() -> None:
    keys = [(a, b, c) for a in range(8) for b in range(8) for c in range(8)] + [
        (a, b) for a in range(8) for b in range(8)
    ]
    values = {scramble(*key) for key in keys}
    assert len(values) == len(keys)
    assert all(0 <= value < 2**64 for value in values)
    assert abs(np.mean([value >> 63 for value in values]) - 0.5) < 0.1  # the high bit is as good as a coin


def test_arrays_need_no_workers() -> None:
    assert default_workers("digits", torch.device("cpu")) == 0
    assert default_workers("folder", torch.device("cpu")) <= 2


@pytest.mark.slow
def test_a_program_ends_although_somebody_still_holds_its_batches() -> None:
    """As an error does, whose trace knows all variables: the readers ignore SIGTERM, and Python would wait for them."""
    program = """
import sys
from nearsight.data import open_data
from nearsight.data.transforms import Preprocessing
from nearsight.data.loader import eval_loader
sys.held = iter(eval_loader(open_data("digits").test, Preprocessing((32, 32)), batch=4, workers=1))
next(sys.held)
sys.exit(3)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 3


@pytest.mark.parametrize("training", [True, False])
def test_readers_that_are_started_anew_read_the_same(training: bool) -> None:
    """As Windows and macOS start processes: nothing is inherited, and all that they need is pickled."""
    held = some_images(8)
    split = Arrays("x", held.pixels, held.labels)
    found = []
    for context in (None, "spawn"):
        workers = int(context is not None)
        if training:
            images = TrainImages(split, Augmentation(STRONG, INPUT), seed=1)
            loader = train_loader(images, make_batches(split, epochs=1), workers)
        else:
            loader = eval_loader(split, INPUT, 4, workers)
        loader.multiprocessing_context = context
        found.append(torch.cat([batch.images for batch in loader]))
    assert torch.equal(*found)
