"""``python -m polywire``: the same as the command ``polywire``."""

from polywire.cli.main import main

if __name__ == "__main__":
    main()
