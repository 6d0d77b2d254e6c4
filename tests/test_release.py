"""What a release consists of beside code: it names the same version, licence and Pythons everywhere."""

import re
from pathlib import Path

import pytest
import yaml

import nearsight

ROOT = Path(__file__).parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text()  # Python 3.10 has no reader of TOML


def test_the_citation_names_this_version_its_licence_and_the_five_papers() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == nearsight.__version__ and f'license = "{cited["license"]}"' in PROJECT
    titles = [paper["title"].casefold() for paper in cited["references"]]
    assert len(titles) == 5
    for page in ("localvit", "lightvit", "lit", "dwconv", "life"):  # as the papers' pages have them
        text = re.sub(r"[\s*]+", " ", (ROOT / "docs" / "papers" / f"{page}.md").read_text()).casefold()
        assert any(title in text for title in titles), page


@pytest.mark.parametrize("file", sorted(ROOT.glob(".github/**/*.yml")), ids=lambda path: path.name)
def test_each_workflow_and_form_is_yaml_with_a_name(file: Path) -> None:
    assert yaml.safe_load(file.read_text())["name"]


def test_the_workflow_tries_every_python_that_the_package_names() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]
    tested = jobs["linux"]["strategy"]["matrix"]["python"]
    assert tested == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert f'requires-python = ">={tested[0]}"' in PROJECT
