"""What the workers of a group tell each other while their programs run."""

from typing import Any, Protocol


class Board(Protocol):
    """Holds one value for each topic; on Ray the coordinator does."""

    def post(self, topic: str, value: Any) -> None:
        """Sets the value of a topic, which pickles."""

    def posted(self, topic: str) -> Any | None:
        """The value of a topic; None: there is none yet, or the board does not respond."""
