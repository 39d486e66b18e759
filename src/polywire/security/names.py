"""What users and groups may be called."""

from typing import Final

MAX_NAME: Final = 255
"""In characters: more than any name a person or a certificate authority gives."""

TOKEN_USER: Final = "token"  # noqa: S105 - a user's name, not a secret
"""The user name under which a password is a token; no user of a file is called so."""


def name_problem(name: str) -> str | None:
    """Why a client can't go by this name, however it is proven, or None where it can."""
    if not name:
        return "a name is not empty"
    if len(name) > MAX_NAME:
        return f"a name has at most {MAX_NAME} characters, this one has {len(name)}"
    if not name.isprintable():
        return "a name has printable characters only"
    if name != name.strip():
        return "a name neither begins nor ends with a space"
    return None


def user_name_problem(name: str) -> str | None:
    """Why a user of a file can't have this name, or None where it can."""
    problem = name_problem(name)
    if problem is not None:
        return problem
    for character in name:
        if character in "/*+#:,":
            return f"a user's name has none of / * + # : , in it, {name!r} has {character!r}"
    if name.startswith("$"):
        return f"a user's name does not begin with '$', {name!r} does"
    if name == TOKEN_USER:
        return f"{TOKEN_USER!r} is the name under which clients send a token as password; choose another"
    return None


def group_name_problem(name: str) -> str | None:
    """Why a group can't have this name, or None where it can."""
    problem = name_problem(name)
    if problem is not None:
        return problem.replace("a name", "a group's name")
    for character in name:
        if character in ":,":
            return f"a group's name has neither ':' nor ',' in it, {name!r} has"
    return None
