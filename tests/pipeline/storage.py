"""An S3 server on this machine, with a bucket."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyarrow import fs

BUCKET = "lakes"


@contextmanager
def object_storage() -> Iterator[dict[str, str]]:
    """The options to reach it."""
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:  # noqa: S603
        assert process.stderr is not None
        reader = threading.Thread(target=process.stderr.read)
        try:
            found = None
            while found is None and (line := process.stderr.readline()):
                found = re.search(r"(http://127\.0\.0\.1:\d+)", line)
            assert found is not None, "moto did not start"
            # It logs each request, and would wait for ever for somebody to read that.
            reader.start()
            options = {"aws_access_key_id": "x", "aws_secret_access_key": "y", "aws_region": "us-east-1"}
            storage = fs.S3FileSystem(
                access_key="x",
                secret_key="y",
                region="us-east-1",
                scheme="http",
                endpoint_override=found[1].removeprefix("http://"),
                allow_bucket_creation=True,
            )
            storage.create_dir(BUCKET)
            yield {**options, "aws_endpoint_url": found[1]}
        finally:
            process.kill()
            if reader.is_alive():
                reader.join()
