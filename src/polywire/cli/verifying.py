"""``polywire journal verify``: read everything, and say what is not as it should be."""

import json
from dataclasses import asdict

import typer

from polywire.cli.progress import progress
from polywire.cli.scanning import open_place
from polywire.journal.verify import Verified, verify_storage


def print_verification(place: str, token: str | None, *, as_json: bool) -> bool:
    """Print what was found, as JSON a line for each segment. Returns whether no row is damaged or lost."""
    storage = open_place(place, token).storage
    checked: list[Verified] = []
    octets = 0
    with progress("verifying", sum(storage.sizes().values())) as advance:
        for segment in verify_storage(storage):
            checked.append(segment)
            octets += segment.octets
            advance(octets, segment.name)
            if as_json:
                typer.echo(json.dumps({**asdict(segment), "sound": segment.sound, "lost_rows": segment.lost_rows}))
            else:
                for finding in segment.findings:
                    typer.echo(f"{segment.name}: {finding}")
    damaged = sum(not segment.sound for segment in checked)
    if not as_json:
        rows = sum(segment.rows for segment in checked)
        lost = sum(segment.lost_rows for segment in checked)
        words = f"{damaged} of them damaged, {lost} rows lost" if damaged else "nothing is damaged or missing"
        typer.echo(f"{place}: {rows} rows in {len(checked)} segments, {words}")
    return not damaged
