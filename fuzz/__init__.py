"""Fuzzing of the codecs: one target each, run by ``python -m fuzz``."""
