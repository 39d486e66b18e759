"""Measurements. Nothing here is a test: no result fails a build."""
