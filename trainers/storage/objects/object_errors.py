"""What the errors of obstore mean. It has few types of its own, and tells the rest in words."""

import re
from enum import Enum

from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, PreconditionError

from trainers.storage.retry import TRANSIENT_STATUSES


class ErrorKind(Enum):
    """What a service, or the way to it, has said."""

    MISSING = "there is no such object"
    NO_BUCKET = "there is no such bucket"
    EXISTS = "the object is there already"
    BEYOND_END = "the object ends before the part that was asked for"
    ODD_NAME = "the name of an object in a listing is no path"
    DENIED = "permission denied"
    REFUSED = "the credentials are refused"
    NO_CREDENTIALS = "no credentials"
    NO_IDENTITY_SERVICE = "no credentials from the service that a cloud's machines ask"
    UNREACHABLE = "the service cannot be reached"
    BROKEN = "the connection broke"
    BUSY = "the service could not respond"
    OTHER = "another error"


class ObjectError(Exception):
    """An error of a service in a form that can be sent to another process."""

    def __init__(self, kind: ErrorKind, message: str):
        super().__init__(kind, message)
        self.kind, self.message = kind, message


_NO_BUCKET = ("ContainerNotFound", "NoSuchBucket", "specified container does not exist")
# https://learn.microsoft.com/en-us/rest/api/storageservices/common-rest-api-error-codes, and Azurite's.
_REFUSED = ("AuthenticationFailed", "AuthorizationFailure", "InvalidAuthenticationInfo")
_NO_CREDENTIALS = ("credential error", "service account file", "pem file", "Invalid Access Key")
_STATUS = re.compile(r"status code: (\d{3})([^:]*)")
_CODE, _MESSAGE = re.compile(r"<Code>([^<]+)</Code>"), re.compile(r"<Message>([^<]+)</Message>")
_QUERY, _PREFIX = re.compile(r"\?\S*"), re.compile(r"^Generic \w+ error: ")


def error_of(error: Exception) -> ObjectError | None:
    """What an exception of obstore means; None where it is another's."""
    if not isinstance(error, BaseError | FileNotFoundError | ValueError):
        return None
    text, _, details = str(error).partition("\n\nDebug source:")
    found = _STATUS.search(text)
    status = int(found[1]) if found else None
    return ObjectError(_kind_of(error, text, details, status), _message_of(text))


def _kind_of(error: Exception, text: str, details: str, status: int | None) -> ErrorKind:
    is_of_token, is_busy = "token request" in text, status in TRANSIENT_STATUSES
    rules = (
        (ErrorKind.EXISTS, isinstance(error, AlreadyExistsError | PreconditionError)),
        (ErrorKind.NO_IDENTITY_SERVICE, is_of_token and (status is None or is_busy)),
        (ErrorKind.NO_CREDENTIALS, is_of_token or any(each in text for each in _NO_CREDENTIALS)),
        (ErrorKind.ODD_NAME, "object with invalid path" in text),
        (ErrorKind.NO_BUCKET, any(each in text for each in _NO_BUCKET)),
        (ErrorKind.REFUSED, any(each in text for each in _REFUSED) or status == 401),
        (ErrorKind.DENIED, isinstance(error, PermissionDeniedError) or status == 403),
        (ErrorKind.MISSING, isinstance(error, FileNotFoundError) or status == 404),
        (ErrorKind.BEYOND_END, status == 416 or "range starting at" in text),
        (ErrorKind.BUSY, is_busy),
        (ErrorKind.OTHER, status is not None),
        (ErrorKind.UNREACHABLE, "kind: Connect" in details),
        (ErrorKind.BROKEN, "HttpError" in details or "HTTP error" in text),
    )
    return next((kind for kind, holds in rules if holds), ErrorKind.OTHER)


def _message_of(text: str) -> str:
    """One line of what was said, without URLs' queries, which may hold a signature."""
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    if status is None:
        return _PREFIX.sub("", _QUERY.sub("", text.partition("\n")[0].rpartition(" - ")[2]))
    parts = [status[1], code[1] if code is not None else status[2].strip()]
    said = message[1].partition("\n")[0].strip() if message is not None else ""
    return " ".join(parts) + (f": {said}" if said else "")
