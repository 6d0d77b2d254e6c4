"""Rebuild every row that the five papers print, and say where the figures agree.

Example:
    >>> from nearsight.reproduction import judge, rows_of
    >>> verdict = judge(rows_of("localvit")[0])
    >>> verdict.row.name, verdict.built, verdict.status
    ('DeiT-T', 'deit_tiny, ratio=4', 'match')
"""

from .published import PAPERS, PublishedRow, rows_of
from .recipes import lightvit_formula
from .verdicts import RowVerdict, judge, reproduce

__all__ = ["PAPERS", "PublishedRow", "RowVerdict", "judge", "lightvit_formula", "reproduce", "rows_of"]
