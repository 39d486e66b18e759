"""The command ``polywire``: what people type. It holds no logic that another room should own."""
