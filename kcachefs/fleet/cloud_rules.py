"""What an administrator sets up around a bucket: the rule that deletes old objects, and the least rights for each role.

This module only writes texts: nothing here talks to a cloud. Readers list and read; publishers also write; nobody
needs to delete.
"""

from __future__ import annotations

import json
import shlex
from typing import Any, NamedTuple

from kcachefs.fleet import bucket_urls
from kcachefs.fleet.bucket_layout import OBJECTS

_INCOMPLETE_DAYS = 1
"""After how many days an interrupted upload is cleared away."""


class Rule(NamedTuple):
    """One thing to set up."""

    title: str
    content: str
    """The content of a file, or the whole command if `command` is empty."""
    command: str = ""
    """The command to run on that file, in which FILE stands for its path."""


def rules(url: str, days: int) -> list[Rule]:
    """What to set up for a bucket that keeps objects for this many days unless somebody renews them."""
    where = bucket_urls.parse(url)
    prefix = where.path.strip("/")
    inside = f"{prefix}/" if prefix else ""
    return _BY_SCHEME[where.scheme](where.bucket, inside, where.path, days)


def _s3(bucket: str, inside: str, path: str, days: int) -> list[Rule]:
    lifecycle = {
        "Rules": [
            {
                "ID": "kcachefs",
                "Status": "Enabled",
                "Filter": {"Prefix": f"{inside}{OBJECTS}"},
                "Expiration": {"Days": days},
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": _INCOMPLETE_DAYS},
            }
        ]
    }
    arn = f"arn:aws:s3:::{bucket}"
    listing: dict[str, Any] = {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": arn}
    if inside:
        listing["Condition"] = {"StringLike": {"s3:prefix": f"{inside}*"}}

    def policy(*actions: str) -> str:
        allowed = {"Effect": "Allow", "Action": list(actions), "Resource": f"{arn}/{inside}*"}
        return _json({"Version": "2012-10-17", "Statement": [listing, allowed]})

    put = f"aws s3api put-bucket-lifecycle-configuration --bucket {bucket} --lifecycle-configuration file://FILE"
    return [
        Rule("lifecycle rule (replaces those that the bucket has: merge it into them)", _json(lifecycle), put),
        Rule("policy for readers", policy("s3:GetObject")),
        Rule("policy for publishers", policy("s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload")),
    ]


def _gs(bucket: str, inside: str, path: str, days: int) -> list[Rule]:
    lifecycle = {
        "rule": [
            {"action": {"type": "Delete"}, "condition": {"age": days, "matchesPrefix": [f"{inside}{OBJECTS}"]}},
            {
                "action": {"type": "AbortIncompleteMultipartUpload"},
                "condition": {"age": _INCOMPLETE_DAYS, "matchesPrefix": [f"{inside}{OBJECTS}"]},
            },
        ]
    }
    grant = f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=MEMBER --role=roles/storage."
    return [
        Rule(
            "lifecycle rule (replaces those that the bucket has: merge it into them)",
            _json(lifecycle),
            f"gcloud storage buckets update gs://{bucket} --lifecycle-file=FILE",
        ),
        Rule("rights of readers", f"{grant}objectViewer"),
        Rule("rights of publishers", f"{grant}objectViewer\n{grant}objectCreator"),
    ]


def _az(container: str, inside: str, path: str, days: int) -> list[Rule]:
    policy = {
        "rules": [
            {
                "name": "kcachefs",
                "enabled": True,
                "type": "Lifecycle",
                "definition": {
                    "filters": {"blobTypes": ["blockBlob"], "prefixMatch": [f"{container}/{inside}{OBJECTS}"]},
                    "actions": {"baseBlob": {"delete": {"daysAfterModificationGreaterThan": days}}},
                },
            }
        ]
    }
    actions = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/"
    writer = {
        "Name": "kcachefs publisher",
        "Actions": [],
        "DataActions": [f"{actions}read", f"{actions}write", f"{actions}add/action"],
        "AssignableScopes": ["/subscriptions/SUBSCRIPTION"],
    }
    scope = f"--scope .../storageAccounts/ACCOUNT/blobServices/default/containers/{container}"
    assign = f"az role assignment create --assignee ID {scope} --role"
    return [
        Rule(
            "lifecycle rule (replaces those that the account has: merge it into them)",
            _json(policy),
            "az storage account management-policy create --account-name ACCOUNT --resource-group GROUP --policy @FILE",
        ),
        Rule("rights of readers", f"{assign} 'Storage Blob Data Reader'"),
        Rule(
            "role of publishers",
            _json(writer),
            f"az role definition create --role-definition FILE\n{assign} 'kcachefs publisher'",
        ),
    ]


def _file(host: str, inside: str, path: str, days: int) -> list[Rule]:
    folder = shlex.quote(path.rstrip("/") or "/")
    return [
        Rule(
            "rule that deletes what is old, for cron",
            f"0 4 * * * find {folder}/{OBJECTS} -type f -mtime +{days} -delete",
        ),
        Rule("rights of readers", f"chmod -R o+rX {folder}"),
        # Whatever is made later gets the group and the rights of the folder itself.
        Rule("rights of publishers", f"chgrp -R GROUP {folder} && chmod -R g+rwX {folder} && chmod g+s {folder}"),
    ]


def _json(value: object) -> str:
    return json.dumps(value, indent=2)


_BY_SCHEME = {"s3": _s3, "gs": _gs, "az": _az, "file": _file}
