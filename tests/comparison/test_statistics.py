"""Intervals that hold what they promise, in worlds whose truth is known."""

import numpy as np
import pytest
from scipy import stats

from nearsight.comparison.statistics import correct_for_many, estimate, estimate_difference, estimate_score, judge
from nearsight.tasks.evaluator import pseudo_values


def draw_world(generator: np.random.Generator, seeds: int, images: int, seed_spread: float, image_spread: float):
    """Answers of a model whose seeds differ and whose images differ in difficulty; true accuracy 0.6."""
    chance = (
        0.6 + seed_spread * generator.normal(size=(seeds, 1)) + image_spread * generator.choice([-1, 1], (1, images))
    )
    return generator.random((seeds, images)) < chance


@pytest.mark.parametrize(
    ("seed_spread", "image_spread"), [(0.0, 0.0), (0.0, 0.35), (0.015, 0.3), (0.03, 0.0), (0.03, 0.35)]
)
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_interval_holds_the_truth_in_at_least_95_of_100_worlds(
    seeds: int, seed_spread: float, image_spread: float
) -> None:
    generator = np.random.default_rng(seeds)
    worlds = 1000
    held = 0
    for _ in range(worlds):
        found = estimate_score(draw_world(generator, seeds, 400, seed_spread, image_spread))
        held += found.low <= 0.6 <= found.high
    print(f"{seeds} seeds, spread {seed_spread} and {image_spread}: {held / worlds:.1%}")
    assert held / worlds > 0.95 - 3 * (0.95 * 0.05 / worlds) ** 0.5


@pytest.mark.parametrize(("seeds", "promised"), [(2, 0.85), (3, 0.90), (5, 0.93)])
def test_few_seeds_that_differ_by_many_points_make_the_interval_a_little_short(seeds: int, promised: float) -> None:
    generator = np.random.default_rng(seeds)
    found = [estimate(draw_world(generator, seeds, 400, 0.08, 0.2).astype(float)) for _ in range(1000)]
    assert promised < np.mean([low <= 0.6 <= high for _, low, high, *_ in found]) < 0.96


@pytest.mark.parametrize("seeds", [1, 3])
def test_equal_models_are_called_different_in_at_most_5_of_100_worlds(seeds: int) -> None:
    generator = np.random.default_rng(0)
    worlds, called = 1000, 0
    spread = 0.03 if seeds > 1 else 0.0  # one seed can't show what another would do
    for _ in range(worlds):
        one, other = (draw_world(generator, seeds, 300, spread, 0.3) for _ in range(2))
        found = estimate_difference(one, other)
        called += judge(found.mean, found.p) != "no difference shown"
    assert called / worlds < 0.05 + 3 * (0.95 * 0.05 / worlds) ** 0.5


def test_a_difference_is_found_on_paired_images_where_unpaired_intervals_overlap() -> None:
    generator = np.random.default_rng(0)
    easy = generator.random(500) < 0.7
    baseline = np.tile(easy, (3, 1))
    model = baseline.copy()
    model[:, np.flatnonzero(~easy)[:20]] = True
    found = estimate_difference(model, baseline)
    assert found.mean == pytest.approx(20 / 500)
    assert judge(found.mean, found.p) == "better"
    assert estimate_score(baseline).high > estimate_score(model).low


def test_one_seed_gives_the_interval_of_a_binomial_fraction() -> None:
    right = np.arange(1000) < 640
    found = estimate_score(right[None])
    assert found.seed_error is None
    assert found.high - found.mean == pytest.approx(1.96 * (0.64 * 0.36 / 1000) ** 0.5, rel=0.01)


def test_with_many_images_only_the_seeds_count_as_in_a_t_test() -> None:
    generator = np.random.default_rng(1)
    fractions = generator.normal(0.0, 0.1, size=(4, 1))
    values = np.tile(fractions, (1, 2_000_000))
    found = estimate(values)
    expected = stats.ttest_1samp(fractions[:, 0], 0.0)
    assert found.p == pytest.approx(expected.pvalue, rel=0.01)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)), rel=0.01)


def test_all_right_is_not_taken_for_certainty() -> None:
    found = estimate_score(np.ones((3, 100), dtype=bool))
    assert found.mean == found.high == 1.0
    assert 0.95 < found.low < 0.995


def test_holm_lets_a_small_p_stand_and_never_reorders() -> None:
    given = [0.04, 0.001, 0.02, 0.5]
    corrected = correct_for_many(given)
    assert corrected == pytest.approx([0.08, 0.004, 0.06, 0.5])
    assert np.argsort(corrected).tolist() == np.argsort(given).tolist()
    assert correct_for_many([]) == []


def test_what_can_not_be_paired_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Scores \(3, 5\) can't be paired with \(2, 5\); use the same seeds"):
        estimate_difference(np.ones((3, 5), dtype=bool), np.ones((2, 5), dtype=bool))
    with pytest.raises(ValueError, match="There are no predictions to compare"):
        estimate(np.ones((0, 5)))


def test_pseudo_values_of_a_mean_are_the_means_of_the_groups() -> None:
    groups = np.random.default_rng(0).random((12, 5))
    without = [np.delete(groups, number, axis=0).mean() for number in range(12)]
    assert pseudo_values(groups.mean(), without) == pytest.approx(groups.mean(axis=1))


def test_pseudo_values_hold_the_truth_of_a_ratio_in_95_of_100_worlds() -> None:
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(400):  # a ratio of sums, as mIoU is
        common = generator.gamma(2.0, size=(20, 10))
        union = common + generator.gamma(2.0, size=(20, 10))
        without = [np.delete(common, g, 0).sum() / np.delete(union, g, 0).sum() for g in range(20)]
        found = estimate_score(pseudo_values(common.sum() / union.sum(), without)[None], counted=False)
        held += found.low <= 0.5 <= found.high
    assert 0.92 <= held / 400 <= 0.98
