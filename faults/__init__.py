"""Faults on purpose: a hub that is killed, starved, attacked and lied to, and a checker of what it promised.

``python -m faults kills``, ``attacks`` and ``soak``; CONTRIBUTING.md says how to repeat a failure.
"""
