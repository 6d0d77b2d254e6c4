"""Rebuild every row that the five papers print, and say where the figures agree.

Example:
    >>> from nearsight.reproduce import judge, rows_of
    >>> verdict = judge(rows_of("localvit")[0])
    >>> verdict.row.name, verdict.built, verdict.status
    ('DeiT-T', 'deit_tiny, ratio=4', 'match')
"""

from .published import PAPERS, Row, rows_of
from .recipes import lightvit_formula
from .verdicts import Verdict, judge, reproduce

__all__ = ["PAPERS", "Row", "Verdict", "judge", "lightvit_formula", "reproduce", "rows_of"]
