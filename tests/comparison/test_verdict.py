"""What the verdict says, and what it does not dare to say."""

import re
from collections.abc import Callable

from nearsight.comparison.report import verdict
from nearsight.comparison.results import Comparison, RunResult

Make = Callable[..., Comparison]


def test_a_clear_winner_is_named_with_its_lead_and_its_cost(make_results: Make) -> None:
    said = verdict(make_results({"deit_nano": 0.4, "localvit_nano": 0.8}))
    assert said[0].startswith("localvit_nano is best: it gets 80.")
    assert "points more than the next, deit_nano." in said[0]
    assert re.fullmatch(
        r"localvit_nano is \d+\.\d points above the baseline deit_nano "
        r"\(95\xa0% interval \+\d+\.\d to \+\d+\.\d, p\xa0<\xa00\.001\)\.",
        said[1],
    )
    assert said[2] == "localvit_nano takes 2 × as long for an image and 2 × as long to train, compared with deit_nano."


def test_it_says_plainly_that_the_convnet_wins(make_results: Make) -> None:
    said = verdict(make_results({"deit_nano": 0.4, "resnet18": 0.8}, baseline="resnet18", convnets=("resnet18",)))
    assert said[0].startswith("The ConvNet wins: resnet18 gets 80.")


def test_noise_is_called_noise(make_results: Make) -> None:
    results = make_results({"deit_nano": 0.6, "localvit_nano": 0.6, "lit_nano": 0.6})
    said = verdict(results)
    best, last = results.ranked[0], results.ranked[-1]
    ends = [f"{100 * model.score.value:.1f}\xa0% ({model.label})" for model in (last, best)]
    assert said[0].startswith(f"No difference shown: the models lie between {ends[0]} and {ends[1]}, ")
    if best.label != "deit_nano":
        assert said[1].startswith(f"{best.label} is ") and said[1].endswith(", which shows no difference.")


def test_it_is_said_that_the_deciding_images_chose_the_epoch(make_results: Make) -> None:
    results = make_results({"deit_nano": 0.4, "localvit_nano": 0.8})
    assert not any("no test images" in sentence for sentence in verdict(results))
    assert any("no test images" in sentence for sentence in verdict(results.model_copy(update={"split": "val"})))


def test_who_can_not_be_told_apart_from_the_best_is_named_and_a_faster_one_recommended(make_results: Make) -> None:
    results = make_results({"swin_nano": 0.7, "bad_nano": 0.2, "lit_nano": 0.7}, baseline="bad_nano")
    said = verdict(results)
    best, tie = (model.label for model in results.ranked[:2])
    assert said[0].startswith(f"{best} is ahead with ")
    assert said[0].endswith(f"but {tie} can't be told apart from it.")
    if tie == "swin_nano":
        assert f"swin_nano, which can't be told apart from {best}, takes only 0.33 × as long for an image." in said


def test_one_seed_is_confessed(make_results: Make) -> None:
    said = verdict(make_results({"deit_nano": 0.4, "localvit_nano": 0.8}, seeds=1))
    assert "Only one seed was trained: how much training varies is unknown, and the intervals leave it out." in said


def test_a_missing_convnet_and_failed_runs_are_confessed(make_results: Make) -> None:
    results = make_results({"deit_nano": 0.4, "localvit_nano": 0.8}, suggestion="lcnet_050")
    first = results.models[0]
    failed = first.model_copy(update={"runs": [*first.runs, RunResult(seed=3, failure="The loss is nan.")]})
    said = verdict(results.model_copy(update={"models": [failed, results.models[1]]}))
    assert "1 of 7 runs failed and are not in the figures." in said
    assert "No ConvNet was among the models; add lcnet_050 for an honest comparison." in said


def test_without_a_finished_run_there_is_no_verdict(make_results: Make) -> None:
    results = make_results({"deit_nano": 0.4, "localvit_nano": 0.8})
    lost = [model.model_copy(update={"score": None, "runs": []}) for model in results.models]
    assert verdict(results.model_copy(update={"models": lost})) == ["No run finished, so there is nothing to compare."]
