"""The ``polywire`` command."""
