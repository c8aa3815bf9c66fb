"""The report of recorded traces: one self-contained page, and its figures as PNG."""

from adaverify.lab.report.report import Report

__all__ = ["Report"]
