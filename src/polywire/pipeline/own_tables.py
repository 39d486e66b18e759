"""Tables that a user wrote: functions with ``@table`` in a Python file."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

from polywire.pipeline.errors import PipelineError
from polywire.pipeline.table import Table


def load_tables(path: Path, known: Mapping[str, Table]) -> dict[str, Table]:
    """The tables a file defines, in its order. A name that is ``known`` already is an error."""
    from pyspark import cloudpickle  # noqa: PLC0415 - needs a second, and is an extra

    if not path.is_file():
        raise PipelineError(f"{path}: there is no such file")
    name = f"polywire_tables_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PipelineError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise PipelineError(f"{path} can't be loaded: {type(error).__name__}: {error}") from error
    # Workers have no such file: functions of it that run there are sent along.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    found = {value.name: value for value in vars(module).values() if isinstance(value, Table)}
    own = {table: value for table, value in found.items() if known.get(table) is not value}
    for table in own:
        if table in known:
            raise PipelineError(f"{path}: there is a table {table!r} already; give yours another name")
    if not own:
        raise PipelineError(f"{path} has no table: put @table before a function from DataFrame to DataFrame")
    return own
