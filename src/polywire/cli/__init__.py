"""The command ``polywire``. It contains no logic that belongs in another package."""
