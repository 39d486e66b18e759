"""Blocking twins of the clients, for scripts and notebooks."""
