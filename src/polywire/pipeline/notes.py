"""What a pipeline writes down beside its tables: small JSON files in the lake's folder ``_pipeline``."""

import json
import uuid
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

from pyarrow import fs

from polywire.pipeline.staging import open_location

FOLDER: Final = "_pipeline"
_SUFFIX: Final = ".json"


class Notes:
    """The notes of a lake, on a disk or any storage ``pyarrow.fs`` knows."""

    def __init__(self, lake: str) -> None:
        self._location = f"{lake.rstrip('/')}/{FOLDER}"

    def checkpoint(self, query: str) -> str:
        """Where Spark keeps how far a query is."""
        return f"{self._location}/checkpoints/{query}"

    def read(self, name: str) -> dict[str, Any] | None:
        """A note, or None where there is none."""
        files, root = open_location(self._location)
        try:
            with files.open_input_stream(f"{root}/{name}{_SUFFIX}") as stream:
                found = json.loads(stream.read())
        except FileNotFoundError:
            return None
        return found if isinstance(found, dict) else None

    def write(self, name: str, note: dict[str, Any]) -> None:
        """Write a note; whoever reads it meanwhile finds the old one or the new one, whole."""
        files, root = open_location(self._location)
        path = f"{root}/{name}{_SUFFIX}"
        files.create_dir(str(PurePosixPath(path).parent), recursive=True)
        fresh = f"{path}.{uuid.uuid4().hex}"
        with files.open_output_stream(fresh) as stream:
            stream.write(json.dumps(note, indent=1).encode())
        files.move(fresh, path)

    def names(self, folder: str) -> Iterator[str]:
        """The notes in a folder, in order."""
        files, root = open_location(self._location)
        found = files.get_file_info(fs.FileSelector(f"{root}/{folder}", allow_not_found=True))
        for name in sorted(PurePosixPath(info.path).name for info in found):
            if name.endswith(_SUFFIX):
                yield f"{folder}/{name.removesuffix(_SUFFIX)}"
