"""What the errors of boto3 mean, and how to mend them."""

from dataclasses import dataclass

from boto3.exceptions import Boto3Error, RetriesExceededError, S3UploadFailedError
from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError

from trainers.storage.retry import Fault

# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html. A HEAD request's answer has no body,
# so its code is the HTTP status.
_TRANSIENT_CODES = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "RequestTimeout"}
_TRANSIENT_CODES |= {"IncompleteBody", "InternalError", "ServiceUnavailable"}
# Two conditional writes at once.
_TRANSIENT_CODES |= {"ConditionalRequestConflict", "OperationAborted"}
_TRANSIENT_STATUSES = {408, 429, 500, 502, 503, 504}

_SET_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the node a role"
_ALLOW = (
    "allow s3:GetObject, s3:PutObject and s3:DeleteObject on its objects and s3:ListBucket on the bucket {bucket!r}"
)
# Codes, cause, fix.
_ANSWERS = (
    (
        {"NoSuchBucket"},
        "the bucket {bucket!r} does not exist",
        "create it or correct the storage path (endpoint: {endpoint})",
    ),
    (
        {"NoSuchKey", "NotFound", "404"},
        "there is no such object",
        "check the key, and that {endpoint} is an S3 service",
    ),
    (
        {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "401"},
        "the credentials are refused ({code})",
        _SET_KEYS + ", for {endpoint}",
    ),
    (
        {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"},
        "the credentials are out of date ({code})",
        "renew them: set a new AWS_SESSION_TOKEN or sign in again",
    ),
    (
        {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"},
        "the bucket {bucket!r} is in another region ({code})",
        "set AWS_REGION to its region",
    ),
    ({"AccessDenied", "AllAccessDisabled", "AccountProblem", "403"}, "permission denied ({code})", _ALLOW),
)
# Exceptions, cause, fix, transient; the first that fits.
_FAILURES = (
    (
        (
            boto.NoCredentialsError,
            boto.PartialCredentialsError,
            boto.CredentialRetrievalError,
            boto.ProfileNotFound,
            boto.TokenRetrievalError,
            boto.UnauthorizedSSOTokenError,
        ),
        "no credentials ({words})",
        _SET_KEYS,
        False,
    ),
    (boto.NoRegionError, "no region is set", "set AWS_REGION to the region of the bucket", False),
    (
        boto.SSLError,
        "cannot connect to endpoint {endpoint} ({words})",
        "check that it speaks https; for a private certificate set AWS_CA_BUNDLE",
        True,
    ),
    (
        (boto.EndpointConnectionError, boto.ConnectTimeoutError),
        "cannot connect to endpoint {endpoint} ({words})",
        "check the network, s3_endpoint_url and AWS_ENDPOINT_URL",
        True,
    ),
    (
        (
            boto.HTTPClientError,
            boto.IncompleteReadError,
            boto.ResponseStreamingError,
            RetriesExceededError,
            ConnectionError,
            TimeoutError,
        ),
        "the connection to endpoint {endpoint} broke ({words})",
        "check the network and the service",
        True,
    ),
    # The local side of an upload or a download.
    (OSError, "{words}", "check the local file and its disk", False),
    (
        (BotoCoreError, Boto3Error),
        "{words}",
        "check the storage path, s3_endpoint_url and the AWS_ variables",
        False,
    ),
)


@dataclass(frozen=True)
class S3Faults:
    """Reads exceptions of calls to one bucket.

    Attributes:
        bucket: Its name, for the words.
        endpoint: Where its service is, for the words.
    """

    bucket: str
    endpoint: str

    def fault_of(self, error: BaseException) -> Fault | None:
        """What `error` means; None if it comes neither from boto3 nor from the operating system."""
        if isinstance(error, S3UploadFailedError) and isinstance(error.__context__, ClientError):
            # boto3 turns what S3 said into text; the answer itself is in the context.
            error = error.__context__
        if isinstance(error, ClientError):
            return self._answered(error)
        for exceptions, cause, fix, transient in _FAILURES:
            if isinstance(error, exceptions):
                words = str(error).partition("\n")[0] or type(error).__name__
                return Fault(cause.format(words=words, endpoint=self.endpoint), fix, transient)
        return None

    def _answered(self, error: ClientError) -> Fault:
        code = error_code(error)
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _TRANSIENT_CODES or status in _TRANSIENT_STATUSES:
            fix = f"see whether the service at {self.endpoint} is well"
            return Fault(f"the service answers {status} {code}", fix, transient=True)
        for codes, cause, fix in _ANSWERS:
            if code in codes:
                names = {"bucket": self.bucket, "endpoint": self.endpoint, "code": code}
                return Fault(cause.format(**names), fix.format(**names))
        words = error.response.get("Error", {}).get("Message", "no message")
        return Fault(f"the service answers {status} {code}: {words}", "check the storage path and the service")


def error_code(error: ClientError) -> str:
    """What S3 calls the error: a word, or the HTTP status where the answer had no body."""
    return error.response.get("Error", {}).get("Code", "no code")
