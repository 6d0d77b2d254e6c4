"""The report and its verdict: made from results.json alone, safe, honest, and readable on every screen."""

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nearsight.comparison.report import learning_curves, render, verdict
from nearsight.comparison.results import Comparison, Curve, Example, RunResult, read_results

Make = Callable[..., Comparison]
SCORES = {"deit_nano": 0.45, "localvit_nano": 0.6, "lit_nano": 0.58, "resnet18": 0.66}


def test_the_report_is_a_function_of_results_json(make_results: Make, tmp_path: Path) -> None:
    results = make_results(SCORES)
    results.save(tmp_path)
    assert read_results(tmp_path).to_dict() == results.to_dict()
    assert render(read_results(tmp_path)) == render(results)


def test_examples_of_version_0_1_are_read_under_their_old_names() -> None:
    old = {"label": "deit_nano", "answer": "dog", "right": 1, "seeds": 3}
    read = Example.model_validate({"name": "1.png", "truth": "cat", "picture": "", "answers": [old], "models_right": 2})
    assert (read.ground_truth, read.predictions[0].prediction) == ("cat", "dog")
    assert Example.model_validate_json(read.model_dump_json()) == read and "answer" not in read.model_dump_json()


def test_a_comparison_tells_people_and_notebooks_what_it_found(make_results: Make) -> None:
    results = make_results({"deit_nano": 0.4, "localvit_nano": 0.8})
    shown = repr(results)
    assert shown.startswith("Comparison(localvit_nano 80.") and "localvit_nano is best" in shown and len(shown) < 300
    frame = results._repr_html_()
    assert frame.startswith('<iframe srcdoc="') and "<script" not in frame
    assert html.unescape(frame).count("<!DOCTYPE html>") == 1 or "<html" in html.unescape(frame)


def test_it_asks_for_nothing_from_outside(make_results: Make) -> None:
    page = render(make_results(SCORES))
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert "http" not in page
    assert "url(" not in page


def test_texts_from_outside_are_escaped(make_results: Make) -> None:
    evil = "<script>alert(1)</script>"
    results = make_results(SCORES, source=evil)
    first = results.models[0]
    renamed = first.model_copy(update={"label": evil, "runs": [RunResult(seed=0, failure=evil)]})
    page = render(results.model_copy(update={"models": [renamed, *results.models[1:]], "baseline": evil}))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_two_dozen_models_can_be_told_apart(make_results: Make) -> None:
    page = render(make_results({f"model_{number}": 0.3 + number / 100 for number in range(24)}))
    looks = dict(re.findall(r'<span class="swatch ([^"]*)"></span>(model_\d+)</li>', page))
    assert len(looks) == 24
    for name in {name for look in looks for name in look.split()}:  # and the page says what each looks like
        assert re.search(rf"\.{name}\b[^{{]*\{{", page)


def test_loss_and_top5_have_curves_where_runs_have_them(make_results: Make) -> None:
    results = make_results(SCORES)
    assert learning_curves(results, "loss").count("<polyline") == len(SCORES)
    assert "Training loss by epoch" in learning_curves(results, "loss") and "ends at 1.000" in render(results)
    assert learning_curves(results, "val_top5") == "" and "Top-5" not in render(results)
    curve = Curve(epoch=[1, 2], seconds=[1.0, 2.0], loss=[2.0, 1.0], val_score=[0.2, 0.4], val_top5=[0.6, 0.875])
    runs = [RunResult(seed=0, score=0.5, val_score=0.4, seconds=2.0, epochs=2, curve=curve)]
    models = [results.models[0].model_copy(update={"runs": runs}), *results.models[1:]]
    shown = learning_curves(results.model_copy(update={"models": models}), "val_top5")
    assert shown.count("<polyline") == 1 and "ends at 87.5%" in shown


def test_a_single_epoch_is_seen_as_a_dot(make_results: Make) -> None:
    results = make_results(SCORES)
    assert learning_curves(results).count("<circle") == 0
    curve = Curve(epoch=[1], seconds=[1.0], loss=[2.0], val_score=[0.2])
    runs = [RunResult(seed=0, score=0.5, val_score=0.2, seconds=1.0, epochs=1, curve=curve)]
    short = [model.model_copy(update={"runs": runs}) for model in results.models]
    recipe = {**results.recipe, "epochs": dict.fromkeys(SCORES, 1)}
    results = results.model_copy(update={"models": short, "recipe": recipe})
    assert learning_curves(results).count("<circle") == len(SCORES)
    assert "1 epoch for every model and seed" in render(results)


def test_all_models_failing_still_makes_a_report(make_results: Make) -> None:
    results = make_results(SCORES)
    update = {"score": None, "difference": None, "behind_best": None, "latency": None}
    lost = [
        model.model_copy(update={**update, "runs": [RunResult(seed=0, failure="The loss is nan at step 3.")]})
        for model in results.models
    ]
    page = render(results.model_copy(update={"models": lost, "disagreements": []}))
    assert "No run finished, so there is nothing to compare." in page
    assert "The loss is nan at step 3." in page


def test_what_is_not_a_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"results\.json is not there; give the folder of a comparison"):
        read_results(tmp_path)
    for text in ("{", '{"format": "other"}', "[]", "3", '{"format": {}}', "\u0000"):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(ValueError, match=r"results\.json is not what `nearsight compare` writes"):
            read_results(tmp_path)
    for version in ("99", "null", '"1"'):
        (tmp_path / "results.json").write_text(f'{{"format": "nearsight-comparison", "version": {version}}}')
        with pytest.raises(ValueError, match=r"it is of version .*, and this Nearsight reads version 1"):
            read_results(tmp_path)


@pytest.mark.parametrize("width", [1400, 768, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it_whole(browser: Any, make_results: Make, width: int, scheme: str, tmp_path: Path) -> None:
    long = "deit_nano:qkv=life:kernels=[1,3,5]:ffn=localvit:drop_path=0.1"
    make_results({**SCORES, long: 0.5}, baseline="resnet18", convnets=("resnet18",)).save(tmp_path)
    path = tmp_path / "report.html"
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0 && i.alt)")
    assert page.evaluate("document.images.length") > 4
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) > 384) == (scheme == "light")
    page.close()


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
    assert "1 of 7 runs failed and are not in the results." in said
    assert "No ConvNet was among the models; add lcnet_050 for an honest comparison." in said


def test_without_a_finished_run_there_is_no_verdict(make_results: Make) -> None:
    results = make_results({"deit_nano": 0.4, "localvit_nano": 0.8})
    lost = [model.model_copy(update={"score": None, "runs": []}) for model in results.models]
    assert verdict(results.model_copy(update={"models": lost})) == ["No run finished, so there is nothing to compare."]
