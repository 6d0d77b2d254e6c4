"""When a number counts as printed, and what the register demands of an explanation."""

from dataclasses import replace

import pytest
from timm.models.twins import LocallyGroupedAttn
from timm.models.volo import OutlookAttention

from nearsight.models import MODELS
from nearsight.reproduction import judge, lightvit_formula, rows_of
from nearsight.reproduction.papers import plan
from nearsight.reproduction.published import PublishedRow
from nearsight.reproduction.recipes import BuildRecipe, recipe
from nearsight.reproduction.register import (
    REGISTER,
    Figure,
    agrees,
    between,
    explain,
    rounds_twice,
    rounds_up,
    truncates,
)
from nearsight.retrofit.into_timm import OnTokens


def find(paper: str, table: str, name: str) -> PublishedRow:
    return next(row for row in rows_of(paper) if (row.table, row.name) == (table, name))


@pytest.mark.parametrize(
    ("value", "fits"), [(5.6499, False), (5.65, True), (5.7, True), (5.7499, True), (5.7501, False), (57.0, False)]
)
def test_a_figure_matches_what_rounds_to_it(value: float, fits: bool) -> None:
    assert agrees("5.7", value) is fits


def test_a_zero_behind_the_point_is_a_digit() -> None:
    assert agrees("4", 4.04) and not agrees("4.00", 4.04)


def test_other_ways_to_print() -> None:
    assert truncates("19", 19.886) and not agrees("19", 19.886)
    assert rounds_up("29", 28.288) and not rounds_up("29", 29.001)
    assert rounds_twice("25", 24.486) and not rounds_twice("25", 24.449)
    assert between("3.8", 3.727, 3.77) and not between("3.8", 3.727, 3.749)


def test_the_formula_of_lightvit_gives_its_printed_figures() -> None:
    printed = {"lightvit_tiny": 0.733, "lightvit_small": 1.743, "lightvit_base": 3.923}  # from the release
    assert {name: round(lightvit_formula(MODELS[name]) / 1e9, 3) for name in printed} == printed


def test_lightvit_shows_formula_and_true_count() -> None:
    verdict = judge(find("lightvit", "Table 3", "LightViT-T"))
    assert verdict.status == "explained" and verdict.measured
    assert (verdict.measured.formula, verdict.measured.cost.macs) == (
        lightvit_formula(MODELS["lightvit_tiny"]),
        772_183_808,
    )


def test_a_wrong_figure_is_not_explained_away() -> None:
    row = find("lit", "Table 2", "LIT-Ti")
    assert judge(row).status == "explained"
    changed = replace(row, printed={**row.printed, "params_m": "23"})
    assert judge(changed).status == "differs"


def test_a_change_of_the_model_is_noticed() -> None:
    row = find("localvit", "Table 5", "PVT-T")
    figure = Figure(row, "flops_g", row.printed["flops_g"], 3.8, recipe("pvt_small"))
    assert explain(figure) is None


def test_keys_that_are_not_reduced_explain_the_flops_of_pvt() -> None:
    verdict = judge(find("localvit", "Table 5", "PVT-T"))
    assert [entry.number for entry in verdict.entries if entry] == [2]


def test_reductions_in_percent_come_from_rounded_figures() -> None:
    verdict = judge(find("dwconv", "Text 3.3", "DW-Conv.-T vs Swin-T"))
    assert {figure.key: round(figure.ours, 1) for figure in verdict.figures} == {
        "params_reduction_pct": 14.5,
        "flops_reduction_pct": 17.0,
    }
    assert verdict.status == "explained"


def test_figures_of_the_text() -> None:
    assert judge(find("localvit", "Text 4.3", "h-swish + ECA (added parameters)")).figures[0].ours == 60
    assert judge(find("lit", "Text 1", "one MSA layer on a 56x56x96 map")).status == "match"
    fraction = judge(find("dwconv", "Text G", "share of depth-wise conv in total computation"))
    assert fraction.status == "match" and 1.5 < fraction.figures[0].ours < 2.5


def test_an_architecture_table_is_compared_with_the_stages() -> None:
    row = find("dwconv", "Table 8", "DW Conv. (tiny)")
    assert judge(row).status == "match"
    assert judge(replace(row, setting={**row.setting, "blocks": [2, 2, 18, 2]})).status == "no figures"


@pytest.mark.parametrize(("name", "blocks"), [("DW Conv.-S", 9), ("DW Conv.-d1", 4), ("VOLO (Local SA)-d1", 4)])
def test_every_local_attention_of_twins_and_volo_is_replaced(name: str, blocks: int) -> None:
    built = plan(find("dwconv", "Table 13", name))
    assert isinstance(built, BuildRecipe)
    modules = list(built.build().modules())
    assert sum(isinstance(module, OnTokens) for module in modules) == blocks
    assert not any(isinstance(module, (OutlookAttention, LocallyGroupedAttn)) for module in modules)


def test_numbers_without_a_known_cause_say_what_was_tried() -> None:
    assert all(entry.cause or len(entry.text) > 100 for entry in REGISTER)
