"""The config's run part: name, storage and failures; its checkpoint part; and its hub part. See `schema`."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator

from trainers.config.parts.conditions import Condition
from trainers.config.parts.part import MAX_INTEGER, Location, Part, Positive, refuse_unsupported, rule
from trainers.config.storage_location import StorageOptions

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
RESUME = r"^(auto|never|from:.+)$"
BUCKET = r"^[a-zA-Z0-9._-]+$"
# Regions and accounts become parts of AWS's and Azure's host names.
REGION, ACCOUNT = r"^[a-z0-9-]+$", r"^[a-z0-9]+$"
PREPARED, EVALUATIONS, BASE_SCORES = FOLDERS_BESIDE_RUNS = ("prepared", "evaluations", "base_scores")
# From huggingface_hub's utils/_validators.py; `refuse_model_id` refuses further names as it does.
_REPOSITORY = re.compile(r"(\b[\w.-]{1,96}\b/)?\b[\w.-]{1,96}\b", re.ASCII)
# The size of a float32.
BYTES_PER_NUMBER = 4
# A trained weight takes this much of a checkpoint, with AdamW's two moments.
BYTES_PER_WEIGHT = 3 * BYTES_PER_NUMBER


class S3BucketPart(Part):
    """Access to one bucket; replaces all `run.s3_…` fields for it, which have the same meanings."""

    endpoint_url: str | None = Field(None, description="As run.s3_endpoint_url. null: as there.")
    region: str | None = Field(None, pattern=REGION, description="As run.s3_region. null: as there.")
    profile: str | None = Field(None, min_length=1, description="As run.s3_profile. null: as there.")
    anonymous: bool = Field(False, description="As run.s3_anonymous.")

    @rule
    def _one_identity(self) -> None:
        _refuse_two_identities(self.profile, "profile", anonymous=self.anonymous)


class RunPart(Part):
    """The run's name, its storage, and how it survives failures."""

    name: str | None = Field(
        None,
        pattern=NAME,
        max_length=100,
        description="Name of the run and of its folder. null: the recipe's name and the time, so a new run each time.",
    )
    storage_path: Location | None = Field(
        None,
        description="Folder, or s3://, gs:// or az:// URL, in which the run folder is made. null: Ray's default, "
        "~/ray_results.",
    )
    s3_endpoint_url: str | None = Field(
        None,
        description="Address of an S3-compatible server. null: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or AWS.",
    )
    s3_region: str | None = Field(
        None, pattern=REGION, description="Region of the buckets. null: AWS_REGION, or that of AWS's config file."
    )
    s3_profile: str | None = Field(
        None,
        min_length=1,
        description="Profile with the credentials, in the AWS config and credentials files of every node; a recipe "
        "holds no credentials. null: AWS_PROFILE, or the credentials that boto3 finds first.",
    )
    s3_anonymous: bool = Field(False, description="Send no credentials, for public buckets.")
    s3_buckets: dict[Annotated[str, StringConstraints(pattern=BUCKET)], S3BucketPart] = Field(
        {},
        description="Buckets with access of their own, such as data of another account: {speech: {profile: partner}}.",
    )
    gs_endpoint_url: str | None = Field(
        None,
        description="Address of a server with the API of Google Cloud Storage; it gets no token. null: "
        "STORAGE_EMULATOR_HOST or Google.",
    )
    az_account: str | None = Field(
        None,
        pattern=ACCOUNT,
        description="Storage account of az://container. null: AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT or "
        "that of AZURE_STORAGE_CONNECTION_STRING.",
    )
    az_endpoint_url: str | None = Field(
        None,
        description="Address of a blob service other than Azure's, such as http://host:10000/account. null: "
        "AZURE_STORAGE_ENDPOINT, that of AZURE_STORAGE_CONNECTION_STRING or Azure.",
    )
    resume: str = Field(
        "auto",
        pattern=RESUME,
        description="auto: continue the same experiment. never: an existing run folder is an error. "
        "from:<checkpoint>: start a new run with the weights and the vocabulary of that checkpoint, an absolute folder "
        "or URL, but not with its optimizer, schedule and steps.",
    )
    seed: int = Field(
        42, ge=0, le=2**32 - 1, description="Seed of weights, order of utterances and dropout; below 2³², as for NumPy."
    )
    max_failures: int = Field(
        3,
        ge=-1,
        le=MAX_INTEGER,
        description="Restarts of a failed worker group within an attempt. -1: no limit.",
    )

    @property
    def storage_options(self) -> StorageOptions:
        return StorageOptions.of(dict(self))

    @rule
    def _one_identity(self) -> None:
        _refuse_two_identities(self.s3_profile, "s3_profile", anonymous=self.s3_anonymous)

    @field_validator("resume")
    @classmethod
    def _a_supported_checkpoint(cls, resume: str) -> str:
        refuse_unsupported(resume.removeprefix("from:"))
        return resume

    @field_validator("name")
    @classmethod
    def _a_name_of_its_own(cls, name: str | None) -> str | None:
        if name in FOLDERS_BESIDE_RUNS:
            raise ValueError("is a folder that Rayscribe keeps next to the runs: choose another name")
        return name


def _refuse_two_identities(profile: str | None, name: str, *, anonymous: bool) -> None:
    if anonymous and profile is not None:
        raise ValueError(f"{name} is {profile}, but anonymous access sends no credentials: keep one of them")


Share = Annotated[float, Field(gt=0, le=1)]


class CheckpointPart(Part):
    """The checkpoints that are kept, over all attempts of a run."""

    num_to_keep: Positive | None = Field(3, description="Keep the newest, and this many of the best. null: keep all.")
    checkpoint_score_attribute: str | None = Field(
        None,
        description="Score on the validation set that ranks checkpoints: eval_wer, eval_cer, eval_ser, or "
        "`eval_<name>` of scoring.metrics; not the loss. null: eval_cer for a model.language that is written without "
        "spaces between words, else eval_wer.",
    )
    checkpoint_score_order: Literal["min", "max"] = Field(
        "min",
        description="The better score. min: the smaller, as for error rates. max: the larger.",
    )

    refuse_if: dict[str, str] = Field(
        default_factory=dict,
        description="Conditions under which a checkpoint cannot be the best: `{validation.wer: '> base + 1.0', "
        "silence.words_per_minute: '> base + 2'}`. `base` is the rate of the weights that the run begins with. Rates: "
        "wer, cer and ser of validation and of sets of evaluate.also; words_per_minute and characters_per_minute of "
        "silence and noise (evaluate.guard). These sets are scored at each validation. If all checkpoints are refused, "
        "the run fails (exit code 17).",
    )

    interpolate: list[Share] = Field(
        [],
        description="Weights of the best checkpoint, such as [0.3, 0.5, 0.7], when it is averaged with the weights "
        "that the run began with (WiSE-FT). At the end, each average and the best checkpoint itself are scored on the "
        "validation set, and the best becomes the run's model. []: the best checkpoint.",
    )

    average: int | None = Field(
        None,
        ge=2,
        le=MAX_INTEGER,
        description="Also score the average of the weights of this many kept checkpoints, those with the best scores; "
        "it becomes the run's model if it is better than the best checkpoint. null: no average.",
    )

    @rule
    def _average_fits(self) -> Iterator[str]:
        if self.average is not None and self.num_to_keep is not None and self.average > self.num_to_keep:
            yield f"average is {self.average}, but num_to_keep is {self.num_to_keep}: keep at least as many checkpoints"

    @field_validator("refuse_if")
    @classmethod
    def _valid_conditions(cls, refuse_if: dict[str, str]) -> dict[str, str]:
        problems = []
        for name, text in refuse_if.items():
            try:
                Condition.parse(name, text)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("; ".join(problems))
        return refuse_if

    @property
    def conditions(self) -> list[Condition]:
        return [Condition.parse(name, text) for name, text in self.refuse_if.items()]

    @property
    def score_attribute(self) -> str:
        """The score that ranks checkpoints, in the config of a run that has started."""
        assert self.checkpoint_score_attribute is not None, "it is resolved when the run begins"
        return self.checkpoint_score_attribute


def refuse_model_id(text: str) -> str:
    """Returns OWNER/NAME or NAME unchanged; raises ValueError if it is not a valid name on the Hub."""
    if _REPOSITORY.fullmatch(text) is None or "--" in text or ".." in text or text.endswith(".git"):
        raise ValueError(
            "is not a valid name on the Hub: give OWNER/NAME or NAME, each of at most 96 letters, digits, - _ and ., "
            "without -- or .., without - or . at its ends, and without .git at its end"
        )
    return text


class HubPart(Part):
    """Pushing the best model to the Hugging Face Hub, with the token of HF_TOKEN or of a login."""

    push: bool = Field(
        False,
        description="Push the best model at the end of the run. Token, rights and name are checked before training. If "
        "the push fails, the run succeeds anyway, and `rayscribe push` can repeat it.",
    )
    model_id: Annotated[str, AfterValidator(refuse_model_id)] | None = Field(
        None,
        description="Repository, as OWNER/NAME, or NAME in the token's account; it is created if it does not exist. "
        "null: run.name.",
    )
    private: bool | None = Field(
        None,
        description="Make a new repository private; an existing one is not changed. null: the Hub's default, which is "
        "public unless an organization has another.",
    )
    license: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")] | None = Field(
        None,
        description="License in the model card, as the Hub writes it, e.g. apache-2.0. null: that of the weights that "
        "the run started from, if their own card names one.",
    )
