"""What a round costs more with PostgreSQL and S3 than with SQLite and a folder: idle rounds over each in turn."""

import os
import statistics
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedwright.benchmarks.harness.engines import BUCKET, PostgresServer, S3Server, running_postgres
from fedwright.benchmarks.harness.idle_rounds import Stores, measure, sqlite_and_folder
from fedwright.protocol.blobs import BlobStore
from fedwright.protocol.link.broker import Broker
from fedwright.server_runtime.object_store.bucket import Bucket
from fedwright.server_runtime.object_store.bucket_blobs import BucketBlobs
from fedwright.server_runtime.rounds.store.base import RoundStore
from fedwright.server_runtime.run_folder.folder import RunFolder
from fedwright.server_runtime.run_folder.rounds import claim_rounds

MOST_RATIO = 2.0


def overhead(*, quick: bool) -> dict[str, Any]:
    """Seconds of a round over both kinds of stores, alternately, and their ratio."""
    devices, rounds, times = (3, 5, 2) if quick else (8, 20, 3)
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as place,
        running_postgres() as database,
        S3Server(Path(place)) as s3,
        Broker() as broker,
    ):
        kinds: dict[str, Stores] = {"SQLite, folder": sqlite_and_folder, "PostgreSQL, S3": _shared(database, s3)}
        for _ in range(times):
            for kind, stores in kinds.items():
                rows.append({"stores": kind, **measure(broker, devices=devices, rounds=rounds, stores=stores)})
    near, far = (statistics.median(row["round_s"] for row in rows if row["stores"] == kind) for kind in kinds)
    ratio = round(far / near, 2)
    check = {"name": "round over PostgreSQL and S3 / SQLite and folder", "value": ratio, "target": f"<= {MOST_RATIO:g}"}
    note = "the S3 server is moto's, a test server in Python; both engines, the broker and the agents share the machine"
    return {
        "tables": {"idle rounds by stores": rows},
        "checks": [{**check, "holds": ratio <= MOST_RATIO}],
        "notes": [note],
    }


def _shared(database: PostgresServer, s3: S3Server) -> Stores:
    @contextmanager
    def stores(folder: Path) -> Iterator[tuple[RoundStore, BlobStore]]:
        run = RunFolder(folder / uuid.uuid4().hex[:12])
        run.path.mkdir()
        before = dict(os.environ)
        os.environ.update(s3.environment())
        try:
            bucket = Bucket(f"s3://{BUCKET}/{run.path.name}")
            with claim_rounds(run, database.url) as claim, closing(BucketBlobs(run.blobs, bucket)) as blobs:
                yield claim.store, blobs
        finally:
            os.environ.clear()
            os.environ.update(before)

    return stores
