"""The data pipeline: the journal as Spark DataFrames and tables, live and in batch, and rows published back."""
