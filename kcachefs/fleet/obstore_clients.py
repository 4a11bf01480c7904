"""Makes obstore's client for a bucket from its URL and the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kcachefs.fleet import bucket_urls, folder_listing
from kcachefs.fleet.bucket_urls import BucketUrl


def client(url: str, where: BucketUrl, retries: int, timeout: float) -> Any:
    """The client to call obstore's functions with. Raises obstore's errors, and ValueError."""
    from datetime import timedelta

    from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

    scheme, options = where.scheme, where.options
    if scheme == "file":
        folder_listing.check_there(url, where.path)
        return LocalStore(Path(where.path))
    endpoint = bucket_urls.endpoint(where)
    # Callers give up on their requests by themselves; this timeout ends the requests that nobody waits for any more.
    how: dict[str, Any] = {"timeout": "1h", "connect_timeout": f"{int(min(timeout, 5.0) * 1000)}ms"}
    if endpoint.startswith("http://"):
        how["allow_http"] = True
    common: dict[str, Any] = {
        "client_options": how,
        "retry_config": {"max_retries": retries, "retry_timeout": timedelta(seconds=timeout)},
    }
    if endpoint and scheme != "gs":
        common["endpoint"] = endpoint
    if scheme == "s3":
        region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return S3Store(where.bucket, region=region or "us-east-1", **common)
    if scheme == "az":
        return AzureStore(where.bucket, **common)
    return GCSStore(where.bucket, **common)
