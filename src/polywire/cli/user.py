"""``polywire user``: add, remove, list and check the users of a file.

What hashes passwords is imported by the commands themselves, so that the others start quickly.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from polywire.cli.options import fail

DEFAULT_FILE = Path("polywire.users")

app = typer.Typer(
    name="user",
    help="Add, remove, list and check users.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

Name = Annotated[str, typer.Argument(help="The user's name.", show_default=False)]
File = Annotated[Path, typer.Option("--file", "-f", help="The file of users.", dir_okay=False)]
FromStdin = Annotated[bool, typer.Option("--password-stdin", help="Read the password from standard input.")]


@app.command()
def add(
    name: Name,
    file: File = DEFAULT_FILE,
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", help="A group the user is in; may be repeated.")
    ] = None,
    password_stdin: FromStdin = False,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="No password: identified by certificate or listener only.")
    ] = False,
) -> None:
    """Add a user, or give one a new password and new groups.

    The password is asked for twice, or read from standard input. A running hub takes the change with `polywire reload`.

    Examples:
    * `polywire user add anna`

    * `polywire user add sensor-7 --group sensors --file /etc/polywire/users`

    * `pass show hub/anna | polywire user add anna --password-stdin`
    """
    from polywire.security.users import UserFileError, make_user, put_user  # noqa: PLC0415 - see above

    if no_password and password_stdin:
        fail("user", "--no-password and --password-stdin exclude each other", code=2)
    try:
        # A wrong name is reported before a password is typed.
        user = make_user(name, None, tuple(group or ()))
        if not no_password:
            user = make_user(name, ask_password(twice=True, from_stdin=password_stdin), user.groups)
        replaced = put_user(file, user)
    except UserFileError as error:
        fail("user", str(error))
    typer.echo(f"{'changed' if replaced else 'added'} {name} in {file}")


@app.command()
def remove(name: Name, file: File = DEFAULT_FILE) -> None:
    """Remove a user.

    Example: `polywire user remove anna`
    """
    from polywire.security.users import UserFileError, remove_user  # noqa: PLC0415 - see above

    try:
        removed = remove_user(file, name)
    except UserFileError as error:
        fail("user", str(error))
    if not removed:
        fail("user", f"{file}: there is no user {name!r}; 'polywire user list' shows the users")
    typer.echo(f"removed {name} from {file}")


@app.command("list")
def list_users(file: File = DEFAULT_FILE) -> None:
    """List the users: name, groups, remarks. Tab-separated where the output is not a terminal.

    Example: `polywire user list --file /etc/polywire/users`
    """
    from rich.console import Console  # noqa: PLC0415 - see above
    from rich.table import Table  # noqa: PLC0415 - see above

    from polywire.security.users import (  # noqa: PLC0415 - see above
        NO_PASSWORD,
        UserFileError,
        load_users,
        permission_problem,
    )

    try:
        users = load_users(file)
        outdated = set(users.outdated())
        wide = permission_problem(file)
    except UserFileError as error:
        fail("user", str(error))
    rows = []
    for user in users.by_name.values():
        remark = "no password" if user.hash == NO_PASSWORD else "outdated hash" if user.name in outdated else ""
        rows.append((user.name, ",".join(user.groups), remark))
    if sys.stdout.isatty():
        table = Table("user", "groups", "remarks")
        for row in rows:
            table.add_row(*row)
        Console(markup=False, highlight=False).print(table)
    else:
        for row in rows:
            typer.echo("\t".join(row))
    if wide is not None:
        typer.echo(f"warning: {wide}", err=True)


@app.command()
def check(name: Name, file: File = DEFAULT_FILE, password_stdin: FromStdin = False) -> None:
    """Check a user's password: exit code 0 where it is right, 1 where it is not.

    Example: `polywire user check anna`
    """
    from polywire.security.users import UserFileError, load_users  # noqa: PLC0415 - see above

    try:
        users = load_users(file)
    except UserFileError as error:
        fail("user", str(error))
    identity = users.verify(name, ask_password(twice=False, from_stdin=password_stdin))
    if identity is None:
        fail("user", f"{name}: no such user, or wrong password")
    typer.echo(f"{name}: the password is correct")
    if name in users.outdated():
        typer.echo(
            f"warning: the hash of {name} was made with outdated parameters; "
            f"'polywire user add {name}' makes a new one",
            err=True,
        )


def ask_password(*, twice: bool, from_stdin: bool) -> str | bytes:
    """The password: the first line of standard input, byte by byte, or what is typed without being shown."""
    from polywire.security.users import MAX_PASSWORD  # noqa: PLC0415 - see above

    if from_stdin:
        return typer.get_binary_stream("stdin").readline(MAX_PASSWORD + 3).rstrip(b"\r\n")
    if not sys.stdin.isatty():
        fail("user", "standard input is not a terminal, so no password can be typed; use --password-stdin", code=2)
    password: str = typer.prompt("Password", hide_input=True, confirmation_prompt=twice)
    return password


if __name__ == "__main__":
    app(prog_name="polywire user")
