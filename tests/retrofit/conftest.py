"""Lets the tests of this folder import the models that they share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tools.hosts import EXAMPLES, Example


@pytest.fixture(params=EXAMPLES, ids=lambda example: example.family)
def example(request: pytest.FixtureRequest) -> Example:
    return request.param
