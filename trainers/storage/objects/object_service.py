"""A service that keeps objects: how it is reached, and what its users do about errors."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class ObjectService(ABC):
    """How buckets of one service are reached; credentials are each process's own, and no part of it.

    Attributes:
        scheme: Of its URLs.
        name: For messages.
        variables: How the names of its variables begin.
        set_credentials: What to do where there are none, or wrong ones.
        allow: What to do where something is not allowed.
        check_endpoint: What to look at where nobody answers.
        endpoint_url: Its server. None: the service's own.
    """

    scheme: ClassVar[str]
    name: ClassVar[str]
    variables: ClassVar[tuple[str, ...]]
    set_credentials: ClassVar[str]
    allow: ClassVar[str]
    check_endpoint: ClassVar[str]

    endpoint_url: str | None

    @property
    def endpoint(self) -> str:
        """The server, for messages."""
        return self.endpoint_url or self.name

    @abstractmethod
    def new_store(self, bucket: str, **options: Any) -> Any:
        """An obstore store for a bucket, with the credentials that this process finds.

        `options` are obstore's `client_options` and `retry_config`.

        Raises:
            obstore.exceptions.BaseError: they cannot be read, or do not fit together.
        """
