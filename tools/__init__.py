"""What the Makefile runs that is not part of the package."""
