"""The pipeline for ``spark-submit``: what follows this file's name are its arguments.

spark-submit --master spark://host:7077 spark_submit.py run --once --journal s3://logs/journal --lake /data/lake
"""

from polywire.cli.pipeline import app

if __name__ == "__main__":
    app(prog_name="spark_submit.py")
