"""Splits that are made, recorded and made again."""

import json

import numpy as np
import pytest

from nearsight.data.samples import Data, Subset
from nearsight.data.sources.npz import Arrays
from nearsight.data.split import complete_splits, describe_splits, limit_train, restore_splits


class NamedArrays(Arrays):
    """Images with given names."""

    def __init__(self, names: list[str], labels: np.ndarray):
        super().__init__("x", np.zeros((len(names), 1, 1), np.uint8), labels)
        self.names = names

    def name(self, index: int) -> str:
        return self.names[index]


def made(counts: list[int], *, shuffled: int | None = None, **others) -> Data:
    labels = np.repeat(np.arange(len(counts)), counts)
    names = [f"{'abcdefgh'[label]}/{number}.png" for label, count in enumerate(counts) for number in range(count)]
    if shuffled is not None:
        order = np.random.default_rng(shuffled).permutation(len(names))
        names, labels = [names[i] for i in order], labels[order]
    return Data("DATA", "folder", tuple("abcdefgh"[: len(counts)]), train=NamedArrays(names, labels), **others)


def names(split) -> set[str]:
    return {split.name(index) for index in range(len(split))}


def test_the_split_is_stratified_and_complete() -> None:
    data = made([200, 50, 9, 2, 1])
    done = complete_splits(data, val_fraction=0.1)
    assert np.bincount(done.val.labels, minlength=5).tolist() == [20, 5, 1, 1, 0]
    assert names(done.train) | names(done.val) == names(data.train)
    assert not names(done.train) & names(done.val)
    assert done.test is None
    three = complete_splits(data, val_fraction=0.2, need_test=True)
    assert np.bincount(three.test.labels, minlength=5).tolist() == [40, 10, 2, 1, 0]
    assert not names(three.test) & names(three.val) and len(three.train) + len(three.val) + len(three.test) == 262


def test_the_split_depends_on_names_and_seed_alone() -> None:
    first = names(complete_splits(made([200, 50])).val)
    assert names(complete_splits(made([200, 50], shuffled=4)).val) == first
    alone = {name for name in names(complete_splits(made([200, 90])).val) if name.startswith("a/")}
    assert alone == {name for name in first if name.startswith("a/")}
    assert names(complete_splits(made([200, 50]), seed=1).val) != first


def test_splits_that_are_there_stay() -> None:
    other = NamedArrays(["v/1", "v/2"], np.array([0, 1]))
    data = complete_splits(made([20, 20], val=other, test=other), need_test=True)
    assert data.val is other and data.test is other and len(data.train) == 40


def test_refusals_to_make_a_split() -> None:
    with pytest.raises(ValueError) as caught:
        complete_splits(made([5, 1, 1]))
    assert str(caught.value) == (
        "DATA has no val split, and none can be made: 2 of 3 classes have fewer than 2 training images (b, c); "
        "add images."
    )
    with pytest.raises(ValueError, match=r"^DATA has no training images, only: test\.$"):
        complete_splits(Data("DATA", "folder", ("a", "b"), test=NamedArrays(["1"], np.array([0]))))
    with pytest.raises(ValueError, match=r"fraction of 0.9 was asked for; it lies above 0 and is at most 0.5\.$"):
        complete_splits(made([5, 5]), val_fraction=0.9)


def test_fewer_training_images_are_nested_and_stratified() -> None:
    data = made([600, 300, 100, 3])
    sets = {count: limit_train(data, count, seed=5).train for count in (4, 10, 100, 500, 1003)}
    assert {count: len(split) for count, split in sets.items()} == {count: count for count in sets}
    for small, large in ((4, 10), (10, 100), (100, 500), (500, 1003)):
        assert names(sets[small]) < names(sets[large])
    assert np.bincount(sets[4].labels).tolist() == [1, 1, 1, 1]
    assert np.abs(np.bincount(sets[500].labels) - np.array([600, 300, 100, 3]) * 500 / 1003).max() <= 1
    assert names(limit_train(data, 100, seed=6).train) != names(sets[100])
    with pytest.raises(ValueError, match=r"^2000 training images were asked for, but DATA has 1003; ask for fewer\.$"):
        limit_train(data, 2000, seed=0)
    with pytest.raises(
        ValueError, match=r"^3 training images were asked for, but DATA has 4 classes; ask for one each"
    ):
        limit_train(data, 3, seed=0)


def test_a_record_gives_the_same_splits_again() -> None:
    data = limit_train(complete_splits(made([40, 30]), need_test=True, seed=2), 30, seed=2)
    record = json.loads(json.dumps(describe_splits(data)))
    assert (record["source"], record["kind"], record["classes"]) == ("DATA", "folder", ["a", "b"])
    assert {name: part["count"] for name, part in record["splits"].items()} == {"train": 30, "val": 7, "test": 7}
    again = restore_splits(made([40, 30], shuffled=1), record)
    for name, split in data.splits().items():
        assert [split.name(i) for i in range(len(split))] == [
            again.splits()[name].name(i) for i in range(len(again.splits()[name]))
        ]
        assert (split.labels == again.splits()[name].labels).all()
    assert describe_splits(again) == describe_splits(data)


def test_a_record_does_not_name_images_that_the_source_had_apart() -> None:
    whole = made([4, 4])
    parts = whole.with_splits(train=Subset(whole.train, np.arange(6)), val=Subset(whole.train, np.arange(6, 8)))
    assert all("names" not in part for part in describe_splits(parts)["splits"].values())


def changed(data: Data, record: dict) -> str:
    with pytest.raises(ValueError) as caught:
        restore_splits(data, record)
    return str(caught.value)


def test_data_that_changed_are_refused() -> None:
    record = describe_splits(complete_splits(made([40, 30])))
    end = "put the old data back, or start anew."
    assert changed(made([40, 30, 5]), record) == (
        f"DATA has other classes than when the split was made: a, b, c instead of a, b; {end}"
    )
    assert changed(made([42, 30]), record) == (
        f"The train split of DATA has 2 images more, 65 instead of 63, than when it was recorded; {end}"
    )
    kept = [n for n in made([40, 30]).train.names if n not in record["splits"]["val"]["names"][:2]]
    fewer = NamedArrays(kept, np.array([int(n[0] == "b") for n in kept]))
    assert changed(Data("DATA", "folder", ("a", "b"), train=fewer), record) == (
        f"2 of the 7 images of the val split are no longer in DATA, the first is "
        f"{record['splits']['val']['names'][0]}; put them back, or start anew."
    )
    swapped = made([40, 30])
    swapped.train.labels = swapped.train.labels[::-1].copy()
    assert "split of DATA still has" in changed(swapped, record)
    assert changed(made([40, 30], test=fewer), record) == (
        f"The test split of DATA has 68 images more, 68 instead of 0, than when it was recorded; {end}"
    )
    assert changed(Data("DATA", "folder", ("a", "b"), test=fewer), record) == (
        "DATA has no training images, out of which the val split was made."
    )
