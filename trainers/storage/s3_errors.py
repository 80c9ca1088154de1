"""Explains the errors of boto3, and how to fix them."""

from dataclasses import replace

from boto3.exceptions import Boto3Error, RetriesExceededError, S3UploadFailedError
from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError

from trainers.errors import FullDiskError, NoAccessError, NoBucketError
from trainers.storage.full_disk import FIX, NUMBERS, full_disk
from trainers.storage.retry import TRANSIENT_STATUSES, Explanation

# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html. The response to a HEAD request has no body,
# so its code is the HTTP status.
_TRANSIENT_CODES = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestTimeout"}
_TRANSIENT_CODES |= {"IncompleteBody", "InternalError", "ServiceUnavailable"}
# Two conditional writes at the same time.
_TRANSIENT_CODES |= {"ConditionalRequestConflict", "OperationAborted"}

_SET_KEYS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE or run.s3_profile, or give the node a role; for a "
    "public bucket set run.s3_anonymous"
)
_ALLOW = "allow {actions} on its objects and s3:ListBucket on the bucket {bucket!r}"
_TO_READ, _TO_WRITE = "s3:GetObject", "s3:GetObject, s3:PutObject and s3:DeleteObject"
_READING = ("GetObject", "HeadObject", "HeadBucket", "ListObjectsV2")
_SERVICE_ERRORS = (
    (
        {"NoSuchBucket"},
        Explanation(
            "the bucket {bucket!r} does not exist",
            "create it or correct the storage path (endpoint: {endpoint})",
            kind=NoBucketError,
        ),
    ),
    (
        {"NoSuchKey", "NotFound", "404"},
        Explanation("there is no such object", "check the key, and that {endpoint} is an S3 service"),
    ),
    (
        {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "401"},
        Explanation("the credentials are refused ({code})", _SET_KEYS + ", for {endpoint}"),
    ),
    (
        {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"},
        Explanation(
            "the credentials are out of date ({code})", "renew them: set a new AWS_SESSION_TOKEN or sign in again"
        ),
    ),
    (
        {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"},
        Explanation(
            "the bucket {bucket!r} is in another region ({code})", "set run.s3_region or AWS_REGION to its region"
        ),
    ),
    (
        {"AccessDenied", "AllAccessDisabled", "AccountProblem"},
        Explanation("permission denied ({code})", _ALLOW, kind=NoAccessError),
    ),
    # For a HEAD request, which does not distinguish wrong keys from missing permissions.
    (
        {"403"},
        Explanation(
            "permission denied, or the credentials are wrong ({code})",
            "check that they are those of {endpoint}, and " + _ALLOW,
            kind=NoAccessError,
        ),
    ),
)
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
)
_BROKEN = (boto.HTTPClientError, boto.IncompleteReadError, boto.ResponseStreamingError, RetriesExceededError)
_NO_CONNECTION = "cannot connect to endpoint {endpoint} ({message})"
# The first that matches.
_CLIENT_ERRORS = (
    (
        boto.ProfileNotFound,
        Explanation("{message}", "correct run.s3_profile or AWS_PROFILE, or write it to this node's ~/.aws/config"),
    ),
    (_NO_CREDENTIALS, Explanation("no credentials ({message})", _SET_KEYS)),
    (
        boto.NoRegionError,
        Explanation("no region is set", "set run.s3_region or AWS_REGION to the region of the bucket"),
    ),
    (
        boto.SSLError,
        Explanation(
            _NO_CONNECTION, "check that it speaks https; for a private certificate set AWS_CA_BUNDLE", transient=True
        ),
    ),
    (
        (boto.EndpointConnectionError, boto.ConnectTimeoutError),
        Explanation(_NO_CONNECTION, "check the network, s3_endpoint_url and AWS_ENDPOINT_URL", transient=True),
    ),
    (
        (*_BROKEN, ConnectionError, TimeoutError),
        Explanation(
            "the connection to endpoint {endpoint} broke ({message})",
            "check the network and the service",
            transient=True,
        ),
    ),
    # The local side of an upload or a download.
    (OSError, Explanation("{message}", "check the local file and its disk")),
    (
        (BotoCoreError, Boto3Error),
        Explanation("{message}", "check the storage path, s3_endpoint_url and the AWS_ variables"),
    ),
)


def explain_s3_error(error: BaseException, *, bucket: str, endpoint: str) -> Explanation | None:
    """Returns the meaning of an exception from a call to a bucket; None if it is from neither boto3 nor the system."""
    if isinstance(error, S3UploadFailedError) and isinstance(error.__context__, ClientError):
        # boto3 converts S3's response into text; the response itself is in the context.
        error = error.__context__
    if isinstance(error, ClientError):
        return _explain_response(error, bucket, endpoint)
    message = str(error).partition("\n")[0] or type(error).__name__
    if isinstance(error, OSError) and error.errno in NUMBERS:
        return Explanation(full_disk(message), FIX, kind=FullDiskError)
    for exceptions, explanation in _CLIENT_ERRORS:
        if isinstance(error, exceptions):
            return _filled_in(explanation, message=message, endpoint=endpoint)
    return None


def _explain_response(error: ClientError, bucket: str, endpoint: str) -> Explanation:
    code = error_code(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _TRANSIENT_CODES or status in TRANSIENT_STATUSES:
        return Explanation(
            f"the service responds with {status} {code}", f"check the service at {endpoint}", transient=True
        )
    for codes, explanation in _SERVICE_ERRORS:
        if code in codes:
            actions = _TO_READ if error.operation_name in _READING else _TO_WRITE
            return _filled_in(explanation, bucket=bucket, endpoint=endpoint, code=code, actions=actions)
    message = error.response.get("Error", {}).get("Message", "no message")
    return Explanation(
        f"the service responds with {status} {code}: {message}", "check the storage path and the service"
    )


def _filled_in(explanation: Explanation, **names: str) -> Explanation:
    return replace(explanation, cause=explanation.cause.format(**names), fix=explanation.fix.format(**names))


def error_code(error: ClientError) -> str:
    """Returns S3's name of the error, or the HTTP status if the response had no body."""
    return error.response.get("Error", {}).get("Code", "no code")
