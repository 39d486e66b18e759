"""SQL over a lake: every table that has anything is a view of its name."""

from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

from polywire.pipeline.errors import PipelineError
from polywire.pipeline.lake import Lake
from polywire.pipeline.table import Table


def create_views(spark: SparkSession, lake: str, tables: Mapping[str, Table]) -> list[str]:
    """Make the tables of a lake known to a session; their names."""
    found = Lake(lake, tables)
    names = found.tables()
    for name in names:
        found.read(name, spark).createOrReplaceTempView(name)
    return names


def ask(
    spark: SparkSession, lake: str, tables: Mapping[str, Table], sql: str, limit: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The answer to a question: its columns and, up to ``limit``, its rows."""
    names = create_views(spark, lake, tables)
    if not names:
        raise PipelineError(f"{lake}: there are no tables yet; 'polywire pipeline run --once' makes them")
    try:
        answer = spark.sql(sql)
        return answer.columns, [tuple(row) for row in answer.limit(limit).collect()]
    except (AnalysisException, ParseException) as error:
        told = str(error).strip().partition("\n")[0]
        raise PipelineError(f"{told} (tables: {', '.join(names)})") from None
