"""The config's run part: name, storage and failures. See `schema`."""

from pydantic import Field, field_validator

from trainers.config.parts.part import MAX_INTEGER, Location, Part, refuse_unsupported
from trainers.config.storage_location import StorageOptions

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
PREPARED, EVALUATIONS = FOLDERS_BESIDE_RUNS = ("prepared", "evaluations")


class RunPart(Part):
    """What the run is called, where it is kept and how it survives failures."""

    name: str | None = Field(
        None,
        pattern=NAME,
        max_length=100,
        description="Name of the run and of its folder. null: made from the recipe's name and the time, new each time.",
    )
    storage_path: Location | None = Field(
        None,
        description="Folder or s3:// URL under which the run folder is made. null: Ray's own default, ~/ray_results.",
    )
    s3_endpoint_url: str | None = Field(
        None,
        description="Address of an S3-compatible server. null: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or AWS.",
    )
    resume: str = Field(
        "auto",
        pattern=r"^(auto|never|from:.+)$",
        description="auto: the same experiment continues. never: an existing run folder is an error. "
        "from:<checkpoint>: start a new run with the weights and the vocabulary of that checkpoint, an absolute folder "
        "or s3:// URL; its optimizer, schedule and steps are the new run's own.",
    )
    seed: int = Field(
        42, ge=0, le=2**32 - 1, description="Seed of weights, order of utterances and dropout; below 2³², as NumPy's."
    )
    max_failures: int = Field(
        3,
        ge=-1,
        le=MAX_INTEGER,
        description="How often a failed worker group is started again within an attempt. -1: without limit.",
    )

    @property
    def storage_options(self) -> StorageOptions:
        return StorageOptions.of(dict(self))

    @field_validator("resume")
    @classmethod
    def _a_supported_checkpoint(cls, resume: str) -> str:
        refuse_unsupported(resume.removeprefix("from:"))
        return resume

    @field_validator("name")
    @classmethod
    def _a_name_of_its_own(cls, name: str | None) -> str | None:
        if name in FOLDERS_BESIDE_RUNS:
            raise ValueError("is a folder that Rayscribe keeps next to the runs: take another name")
        return name
