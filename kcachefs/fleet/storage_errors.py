"""Translates obstore's errors into the project's own, each with its cause in one line."""

from __future__ import annotations

import re

from kcachefs.errors import FleetError, FleetFails, FleetMissing, FleetRefused, FleetUnreachable, PackError, UsageError
from kcachefs.printable import printable

_REASON_MAX = 200
"""The most characters of a store's own words."""


def translated(error: BaseException, what: str) -> Exception:
    """The project's error for one of obstore's."""
    from obstore.exceptions import BaseError, NotSupportedError, PermissionDeniedError, UnauthenticatedError

    if isinstance(error, FleetError | PackError):
        return error
    text, reason = str(error), _reason(error)
    if isinstance(error, FileNotFoundError) or "NoSuchBucket" in text or "ContainerNotFound" in text:
        return FleetMissing(f"{what}: is not there; is the bucket's name right?")
    if "169.254.169.254" in text or "metadata.google.internal" in text:
        return FleetRefused(f"{what}: there are no credentials; set them in the environment or give the machine a role")
    if "Account must be specified" in text:
        return UsageError(f"{what}: names no account; set AZURE_STORAGE_ACCOUNT_NAME")
    denied = isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError)
    if denied or re.search(r"status code: 40[13]|AccessDenied|<Code>(Expired|Invalid)Token</Code>", text):
        return FleetRefused(f"{what}: the bucket refuses these credentials: {reason}")
    if "configured region" in text or "AuthorizationHeaderMalformed" in text:
        return FleetError(f"{what}: the bucket is in another region; set AWS_REGION, or add ?region=… to the URL")
    if isinstance(error, NotSupportedError):
        return FleetError(f"{what}: this store cannot do that: {reason}")
    if isinstance(error, BaseError) and "status code: " in text:
        return FleetFails(f"{what}: {reason}")
    if isinstance(error, BaseError | OSError):
        return FleetUnreachable(f"{what}: {reason}")
    if isinstance(error, ValueError):
        return UsageError(f"{what}: {reason}")
    return error if isinstance(error, Exception) else FleetError(f"{what}: obstore failed: {reason}")


def _reason(error: BaseException) -> str:
    """What happened, in a line that is fit for logs and terminals: the store's operator chose the words."""
    return printable(_told(error))[:_REASON_MAX]


def _told(error: BaseException) -> str:
    """The part of obstore's many lines that says what happened: the store's own words, or the last cause."""
    text = str(error)
    if (told := re.search(r"<Message>([^<]+)</Message>", text)) or (told := re.search(r"<Code>(\w+)</Code>", text)):
        return next(iter(told[1].strip().splitlines()), type(error).__name__)
    if told := re.search(r"status code: (\d{3} [\w ]+)", text):
        return told[1].strip()
    if told := re.search(r"InvalidCertificate\(([\w\s(]+)", text):
        return f"the certificate of the server is not accepted: {re.findall(r'[A-Za-z]+', told[1])[-1]}"
    if "InvalidContentType" in text:
        return "the server does not speak TLS there; is it http:// instead of https://?"
    causes: list[str] = re.findall(r'(?:message: |error: |ConnectError\(\s*)"([^"]+)"', text)
    if causes:
        return causes[-1].lower()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # "Generic S3 error: Error performing GET URL in 5ms - HTTP error: …": the cause comes after a URL of any length.
    return re.sub(r"^.*? in [\d.]+\w+ - ", "", lines[0]) if lines else type(error).__name__
