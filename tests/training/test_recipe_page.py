"""docs/recipes.md lists every setting with what it takes and its default, and every recipe."""

import re
from pathlib import Path

import pytest
import yaml

from nearsight.config.files import parse, recipe_names
from nearsight.config.recipe import Recipe
from nearsight.config.validation import field_of, setting_keys, takes

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
ROWS = {row[1]: row for row in re.finditer(r"^\| `([\w.]+)` \| (.+?) \| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)}


@pytest.mark.parametrize("key", setting_keys())
def test_every_setting_is_listed_as_it_is(key: str) -> None:
    _, kind, default, meaning = ROWS[key].groups()
    field = field_of(key)
    assert kind == takes(field)
    assert meaning
    if field.is_required():
        assert default == "–"
        return
    value, listed = field.get_default(call_default_factory=True), yaml.safe_load(default.strip("`"))
    assert listed == pytest.approx(list(value), rel=1e-2) if isinstance(value, tuple) else str(listed) == str(value)


def test_every_recipe_is_listed() -> None:
    listed = re.findall(r"^\| `([\w-]+)` \| [^|]+ \| \d", PAGE, re.MULTILINE)
    assert sorted(listed) == recipe_names()


def test_the_yaml_of_the_page_is_a_recipe() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert parse(yaml.safe_load(block.replace("5e-4", "5.0e-4")), "page") != Recipe()
