"""Recognizes errors of object storage services, and explains what each means and what users can do about it.

obstore has few types of errors; the others are distinguished by their text.
"""

import re
from dataclasses import replace
from enum import Enum

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from trainers.errors import NoAccessError, NoBucketError
from trainers.storage.object_services import ObjectService
from trainers.storage.retry import TRANSIENT_STATUSES, Explanation


class ErrorKind(Enum):
    """A kind of error of a service, or of the connection to it, with its explanation; `explanation_of` fills in {…}."""

    MISSING = Explanation("there is no such object", "check the key, and that {endpoint} is the service")
    NO_BUCKET = Explanation(
        "the bucket {bucket!r} does not exist",
        "create it or correct the storage path (endpoint: {endpoint})",
        kind=NoBucketError,
    )
    EXISTS = Explanation("the object exists already ({said})", "check the service at {endpoint}")
    BEYOND_END = Explanation("the object ends before the part that was requested", "check the key")
    ODD_NAME = Explanation(
        "an object there has a name that is not a path ({said})", "move it elsewhere with the tools of the service"
    )
    DENIED = Explanation("permission denied ({said})", "{allow}", kind=NoAccessError)
    # For a HEAD request, whose response does not distinguish wrong credentials from missing permissions.
    DENIED_OR_REFUSED = Explanation(
        "permission denied, or the credentials are wrong (403)",
        "check that they are those of {endpoint}, and {allow}",
        kind=NoAccessError,
    )
    REFUSED = Explanation("the credentials are refused ({said})", "{set_credentials}, for {endpoint}")
    EXPIRED = Explanation("the credentials have expired ({said})", "renew them: sign in again, or {set_credentials}")
    NO_CREDENTIALS = Explanation("no credentials ({said})", "{set_credentials}")
    NO_IDENTITY_SERVICE = Explanation(
        "no credentials from the cloud's metadata service ({said})", "{set_credentials}", transient=True
    )
    OTHER_REGION = Explanation(
        "the bucket {bucket!r} is in another region ({said})", "set run.s3_region or AWS_REGION to its region"
    )
    NO_SERVICE = Explanation(
        "the response is not of the {name} protocol; it may be of a proxy or a login page ({said})", "{check_endpoint}"
    )
    UNTRUSTED = Explanation("the certificate of endpoint {endpoint} is not trusted", "{trust}")
    UNREACHABLE = Explanation("cannot connect to endpoint {endpoint} ({said})", "{check_endpoint}", transient=True)
    BROKEN = Explanation(
        "the connection to endpoint {endpoint} broke ({said})", "check the network and the service", transient=True
    )
    BUSY = Explanation("the service responds with {said}", "check the service at {endpoint}", transient=True)
    SETTINGS = Explanation("{said}", "check the storage path, and the variables and files of the service's settings")
    OTHER = Explanation("the service responds with {said}", "check the storage path and the service")


class ObjectError(Exception):
    """An error of a service that can be sent to another process; `reads` is True if the request was to read."""

    def __init__(self, kind: ErrorKind, message: str, reads: bool = False):
        super().__init__(kind, message, reads)
        self.kind, self.message, self.reads = kind, message, reads


# Error codes of services, and texts of obstore, by kind; the first match counts.
# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html,
# https://learn.microsoft.com/en-us/rest/api/storageservices/common-rest-api-error-codes, and Azurite's.
_WORDS = {
    # Two conditional writes at the same time cause the last two.
    ErrorKind.BUSY: (
        "Throttling",
        "RequestTimeout",
        "IncompleteBody",
        "ConditionalRequestConflict",
        "OperationAborted",
    ),
    ErrorKind.NO_CREDENTIALS: ("credential error", "service account file", "pem file", "Invalid Access Key"),
    ErrorKind.ODD_NAME: ("object with invalid path",),
    ErrorKind.NO_BUCKET: ("ContainerNotFound", "NoSuchBucket", "specified container does not exist"),
    ErrorKind.EXPIRED: ("ExpiredToken", "TokenRefreshRequired", "RequestExpired"),
    ErrorKind.REFUSED: (
        *("AuthenticationFailed", "AuthorizationFailure", "InvalidAuthenticationInfo"),
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"),
    ),
    ErrorKind.OTHER_REGION: ("AuthorizationHeaderMalformed", "IllegalLocation", "redirect without LOCATION"),
    ErrorKind.NO_SERVICE: ("Header missing", "invalid list response"),
}
_RESPONSE = "Server returned non-2xx status code"
_STATUS = re.compile(r"status code: (\d{3})([^:]*)")
_CODE, _MESSAGE = re.compile(r"<Code>([^<]+)</Code>"), re.compile(r"<Message>([^<]+)</Message>")
_QUERY, _PREFIX = re.compile(r"\?\S*"), re.compile(r"^Generic \w+ error: ")
_TO_READ = re.compile(r"Error performing (GET|HEAD) ")


def error_of(error: Exception) -> ObjectError | None:
    """Converts an exception of obstore; returns None for any other."""
    if isinstance(error, ObjectError):
        return error
    # An error when opening a local file has an errno.
    if not isinstance(error, BaseError | FileNotFoundError | ValueError) or getattr(error, "errno", None) is not None:
        return None
    return error_in(str(error), error)


def error_in(text: str, error: Exception) -> ObjectError:
    """Converts an exception; `text` has the form of obstore's messages."""
    text, _, details = text.partition("\n\nDebug source:")
    return ObjectError(_kind_of(error, text, details), _message_of(text), _TO_READ.search(text) is not None)


def explanation_of(error: ObjectError, service: ObjectService, bucket: str) -> Explanation:
    """Returns the meaning of an error for users of a service."""
    names = {
        "said": error.message,
        "bucket": bucket,
        "name": service.name,
        "endpoint": service.endpoint,
        "set_credentials": service.set_credentials,
        "check_endpoint": service.check_endpoint,
        "trust": service.trust,
        "allow": (service.allow_reading if error.reads else service.allow).format(bucket=bucket),
    }
    found: Explanation = error.kind.value
    return replace(found, cause=found.cause.format(**names), fix=found.fix.format(**names))


def _kind_of(error: Exception, text: str, details: str) -> ErrorKind:
    found = _STATUS.search(text)
    status = int(found[1]) if found else None
    # The text without the name of the object, which may contain any of the words.
    said = text.rpartition(_RESPONSE)[2]
    is_of_token, is_busy = "token request" in text, status in TRANSIENT_STATUSES
    named = next((kind for kind, words in _WORDS.items() if any(each in said for each in words)), None)
    if named is ErrorKind.BUSY:
        return named
    rules = (
        (ErrorKind.EXISTS, isinstance(error, AlreadyExistsError | PreconditionError)),
        (ErrorKind.NO_IDENTITY_SERVICE, is_of_token and (status is None or is_busy)),
        (ErrorKind.NO_CREDENTIALS, is_of_token or (isinstance(error, UnauthenticatedError) and status is None)),
        (named, named is not None),
        (ErrorKind.REFUSED, status == 401),
        (ErrorKind.DENIED_OR_REFUSED, status == 403 and "<" not in said),
        (ErrorKind.DENIED, isinstance(error, PermissionDeniedError) or status == 403),
        (ErrorKind.MISSING, isinstance(error, FileNotFoundError) or status == 404),
        (ErrorKind.BEYOND_END, status == 416 or "range starting at" in text),
        (ErrorKind.BUSY, is_busy),
        (ErrorKind.OTHER, status is not None),
        (ErrorKind.UNTRUSTED, "InvalidCertificate" in details),
        (ErrorKind.UNREACHABLE, "kind: Connect" in details),
        (ErrorKind.BROKEN, "HttpError" in details or "HTTP error" in text),
    )
    return next((kind for kind, holds in rules if kind and holds), ErrorKind.OTHER)


def _message_of(text: str) -> str:
    """Returns one line of an error's text, without URLs' queries, which may contain a signature."""
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    if status is None:
        return _PREFIX.sub("", _QUERY.sub("", text.partition("\n")[0].rpartition(" - ")[2]))
    parts = [status[1], code[1] if code is not None else status[2].strip()]
    said = message[1].partition("\n")[0].strip() if message is not None else ""
    return " ".join(parts) + (f": {said}" if said else "")
