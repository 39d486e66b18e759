"""Tests of what ``make lint`` and ``make docs`` run."""
