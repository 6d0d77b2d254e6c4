"""Groups: images that belong together are on one side of every split, and names that suggest groups are noticed."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearsight.data import open_data
from nearsight.data.check import check_data
from nearsight.data.groups import assign_groups, group_keys, guess_groups
from nearsight.data.image import Files
from nearsight.data.samples import Data
from nearsight.data.split import complete_splits, describe_splits, fold_numbers, restore_splits, take_fold


def listed(names: list[str], labels: list[int]) -> Files:
    return Files("", names, np.array(labels, dtype=np.int64))


@pytest.fixture
def patients() -> Data:
    """30 patients with 2 to 9 images each, of two classes in different proportions."""
    rng = np.random.default_rng(3)
    names, labels = [], []
    for patient in range(30):
        for shot in range(int(rng.integers(2, 10))):
            names.append(f"p{patient:02d}_{shot}.png")
            labels.append(int(rng.random() < 0.2 + 0.6 * (patient % 2)))
    return Data("patients", "folder", ("ill", "well"), train=listed(names, labels))


RULE = r"pattern:^(p\d+)_"


def test_no_group_is_in_two_folds_and_every_image_is_in_one(patients: Data) -> None:
    """What scikit-learn's GroupKFold promises; classes are shared as evenly as its StratifiedGroupKFold shares them."""
    from sklearn.model_selection import StratifiedGroupKFold

    assert patients.train is not None
    keys = np.array(group_keys(patients.train, RULE))
    folds = fold_numbers(patients.train, 5, seed=0, groups=RULE)
    assert sorted(set(folds.tolist())) == [0, 1, 2, 3, 4]
    assert all(len(set(folds[keys == key].tolist())) == 1 for key in set(keys.tolist()))
    theirs = np.empty(len(keys), dtype=np.int64)
    labels = patients.train.labels
    for number, (_, test) in enumerate(StratifiedGroupKFold(5).split(keys, labels, keys)):
        theirs[test] = number

    def unevenness(numbers: np.ndarray) -> float:
        counts = np.array([np.bincount(labels[numbers == fold], minlength=2) for fold in range(5)])
        return float((counts / counts.sum(axis=0)).std(axis=0).sum())

    assert unevenness(folds) <= 1.5 * unevenness(theirs)


def test_validation_images_are_whole_groups_of_about_the_fraction(patients: Data) -> None:
    data = complete_splits(patients, val_fraction=0.2, groups=RULE)
    assert data.train is not None and data.val is not None
    train, val = (set(group_keys(split, RULE) or ()) for split in (data.train, data.val))
    assert not train & val
    assert len(train | val) == 30
    assert abs(len(data.val) / (len(data.val) + len(data.train)) - 0.2) < 0.06


def test_the_order_of_the_files_does_not_matter(patients: Data) -> None:
    assert patients.train is not None
    names = [patients.train.name(index) for index in range(len(patients.train))]
    turned = listed(names[::-1], patients.train.labels[::-1].tolist())
    first, second = (fold_numbers(split, 4, seed=1, groups=RULE) for split in (patients.train, turned))
    assert first.tolist() == second[::-1].tolist()
    assert first.tolist() != fold_numbers(patients.train, 4, seed=2, groups=RULE).tolist()


def test_folds_without_groups_share_every_class_equally() -> None:
    split = open_data("digits").train
    assert split is not None
    folds = fold_numbers(split, 5, seed=0)
    for label in range(10):
        counts = np.bincount(folds[split.labels == label], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert np.ptp(np.bincount(folds)) <= 1


def test_a_fold_is_restored_from_its_record() -> None:
    whole = open_data("digits")
    first = complete_splits(take_fold(whole, 4, 2, seed=5))
    again = restore_splits(open_data("digits"), describe_splits(first))
    for name, split in first.splits().items():
        assert [split.name(index) for index in range(len(split))] == [
            again.splits()[name].name(index) for index in range(len(split))
        ]
    assert whole.train is not None
    parts = [take_fold(whole, 4, fold, seed=5).test for fold in range(1, 5)]
    names = [part.name(index) for part in parts if part is not None for index in range(len(part))]
    assert sorted(names) == sorted(whole.train.name(index) for index in range(len(whole.train)))


def test_large_groups_still_leave_some_for_every_part() -> None:
    labels = np.zeros(50, dtype=np.int64)
    keys = ["a"] * 45 + ["b"] * 3 + ["c"] * 2
    parts = assign_groups(labels, keys, [0.9, 0.1], "")
    assert set(parts.tolist()) == {0, 1}
    assert len({(key, part) for key, part in zip(keys, parts.tolist(), strict=True)}) == 3


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("patient", "not understood"),
        ("pattern:p[0-9", "no regular expression"),
        ("pattern:(a{99999999999})", "no regular expression"),
        (f"pattern:{'(' * 5000}a{')' * 5000}", "no regular expression"),
        ("pattern:p", "no parentheses"),
        ("pattern:(x)", "does not fit"),
        ("folder", "does not fit"),
    ],
)
def test_a_rule_that_says_nothing_is_refused(patients: Data, rule: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        complete_splits(patients, groups=rule)
    with pytest.raises(ValueError, match="too few to make"):
        fold_numbers(listed(["a/1.png", "a/2.png", "b/1.png"], [0, 1, 0]), 3, 0, "folder")


def write(folder: Path, names: list[str]) -> None:
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(folder / name)


def test_names_that_suggest_groups_across_splits_are_a_problem(tmp_path: Path) -> None:
    names = [f"{split}/{kind}/patient{n}_{shot}.png" for split in ("train", "test") for kind in ("ill", "well")
             for n in range(8) for shot in ((0, 1) if split == "train" else (2,))]  # fmt: skip
    write(tmp_path, names)
    report = check_data(tmp_path, workers=0)
    assert any(
        problem.startswith("8 groups of images, by their names, in several splits") for problem in report.problems
    )
    rule = RULE.replace("^(p", "(patient")
    told = check_data(tmp_path, groups=rule, workers=0)
    assert "8 groups of images in several splits" in told.problems
    with pytest.raises(ValueError, match="8 groups of"):
        complete_splits(open_data(tmp_path), groups=rule)


def test_names_after_classes_or_numbers_suggest_nothing(tmp_path: Path) -> None:
    write(tmp_path, [f"{kind}/{kind}_{n:03d}.png" for kind in ("cat1", "dog2") for n in range(12)])
    assert guess_groups(open_data(tmp_path)) is None
    assert guess_groups(open_data("digits")) is None


def test_a_column_of_a_table_says_which_images_belong_together(tmp_path: Path) -> None:
    write(tmp_path, [f"{n}.png" for n in range(24)])
    rows = "".join(f"{n}.png,{'ab'[n % 2]},p{n // 4}\n" for n in range(24))
    (tmp_path / "t.csv").write_text("path,label,patient\n" + rows)
    data = open_data(f"{tmp_path}/t.csv?group=patient")
    assert data.source.endswith("t.csv?group=patient")  # so that a run opens it again as it was
    done = complete_splits(data, val_fraction=0.3)
    assert done.train is not None and done.val is not None
    assert not set(group_keys(done.train, None) or ()) & set(group_keys(done.val, None) or ())
    with pytest.raises(ValueError, match="no column scene"):
        open_data(f"{tmp_path}/t.csv?group=scene")
