"""The protocols polywire speaks: one package each, with the same file names inside.

Each has a ``PROTOCOL`` in its ``__init__.py``, from which every list of protocols is computed (``polywire.registry``).
CONTRIBUTING.md says what else belongs to a protocol.
"""
