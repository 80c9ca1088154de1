"""The config's hub part: pushing the best model to the Hugging Face Hub. See `schema`."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from trainers.config.parts.part import Part

# huggingface_hub: utils/_validators.py, without the names that it also refuses.
_REPOSITORY = re.compile(r"(\b[\w.-]{1,96}\b/)?\b[\w.-]{1,96}\b", re.ASCII)


def refuse_model_id(text: str) -> str:
    """Returns OWNER/NAME or NAME unchanged; raises ValueError if it is not a valid name on the Hub."""
    if _REPOSITORY.fullmatch(text) is None or "--" in text or ".." in text or text.endswith(".git"):
        raise ValueError(
            "is no name on the Hub: give OWNER/NAME or NAME, each of at most 96 letters, digits, - _ and ., without "
            "-- or .., that neither begins nor ends with - or ., nor ends with .git"
        )
    return text


class HubPart(Part):
    """Pushing the best model to the Hugging Face Hub, with the token of HF_TOKEN or of a login."""

    push: bool = Field(
        False,
        description="Push the best model when the run has its result. Token, rights and name are checked before "
        "training; a push that fails ends no run, and `rayscribe push` does it later.",
    )
    model_id: Annotated[str, AfterValidator(refuse_model_id)] | None = Field(
        None,
        description="Repository, as OWNER/NAME; NAME alone is one of the token's account. null: run.name, of that "
        "account. One that is not there is made.",
    )
    private: bool | None = Field(
        None,
        description="Whether a repository that is made is private; one that is there stays as it is. null: as the Hub "
        "has it by default, which is public unless an organization says otherwise.",
    )
    license: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")] | None = Field(
        None,
        description="License of the model, as the Hub writes it in a model card, e.g. apache-2.0. null: that of the "
        "weights that the run began with, where their own card names one.",
    )
