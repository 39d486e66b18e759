"""``polywire journal verify``: read everything, and say what can't be read."""

import json
from typing import Any

import pyarrow.compute as pc
import typer

from polywire.cli.progress import progress
from polywire.cli.scanning import open_place
from polywire.journal.kinds import GAP, KINDS


def print_verification(place: str, token: str | None, *, as_json: bool) -> bool:
    """Print what was found. Returns whether all is well."""
    found = open_place(place, token)
    segments = found.segments()
    first, rows = found.first_offset, 0
    damage: list[dict[str, Any]] = []
    with progress("verifying", found.end_offset - first) as advance:
        for batch in found.scan(on_corrupt="gap"):
            gaps = batch.filter(pc.equal(batch.column("kind"), KINDS[GAP])).to_pylist()
            damage += [{"offset": gap["offset"], **json.loads(gap["headers"])} for gap in gaps]
            rows += batch.num_rows - len(gaps)
            advance(batch.column("offset")[-1].as_py() - first, f"{rows} rows")
    if as_json:
        typer.echo(json.dumps({"good": not damage, "rows": rows, "segments": len(segments), "damage": damage}))
        return not damage
    for each in damage:
        lost = f"{each['rows']} rows" if each["rows"] is not None else "rows"
        words = (
            f"{each['segment']} at {each['position']}: {each['reason']}; lost are {lost} from offset {each['offset']}"
        )
        typer.echo(words)
    wrong = f"{len(damage)} places are damaged" if damage else "nothing is damaged"
    typer.echo(f"{place}: {rows} rows in {len(segments)} segments, {wrong}")
    return not damage
