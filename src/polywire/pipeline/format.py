"""The Spark format ``polywire``: the journal to read from, a hub to publish to."""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from polywire.pipeline.options import SourceOptions
from polywire.pipeline.sink import BatchWriter, StreamWriter
from polywire.pipeline.source import BatchReader, StreamReader, spark_schema

NAME = "polywire"


class PolywireFormat(DataSource):
    """``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream`` with ``.format("polywire")``."""

    @classmethod
    def name(cls) -> str:
        """What it is called in ``format()``."""
        return NAME

    def schema(self) -> StructType:
        """The columns of the journal, or those the option ``columns`` names."""
        return spark_schema(SourceOptions.read(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader for batches."""
        return BatchReader(SourceOptions.read(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """To read what there is and what comes."""
        return StreamReader(SourceOptions.read(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """To publish a DataFrame."""
        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG002, N802 - as above
        """To publish a stream."""
        return StreamWriter(self.options, schema)
