"""WER, CER and SER as one `evaluate` metric that needs no network; it counts as scoring does.

`evaluate.load("wer")` fetches a script from the Hub at run time. This is the same interface on our own counts:
`ErrorRates()`, or `evaluate.load("<path of this file>", "wer")` where code knows only `evaluate`.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import evaluate
from datasets import Features, Value

from trainers.errors import ConfigError
from trainers.scoring.error_rate import Score, score_texts

_CITATION = "Levenshtein alignment by jiwer and RapidFuzz: https://github.com/jitsi/jiwer"
_INPUTS = """
Args:
    predictions: List of recognized texts.
    references: List of transcripts, one for each prediction. An empty one is scored: the hypothesis's words are
        insertions.
    normalize: Applied to both texts before they are compared. None: not at all.
    ids: Id of each utterance; then `per_utterance` of the result holds an `error_rate.UtteranceScore` each.
    durations_s: Length of each recording in seconds, with `ids`.
    utterances: How many were asked for, with those that could not be decoded. None: as many as there are predictions.
"""

# Under each name, what the result calls the fields of `error_rate.Score`.
_EDITS = ("insertions", "deletions", "substitutions")
_FIELDS = {
    "wer": {name: name for name in ("wer", *_EDITS, "words")},
    "cer": {"cer": "cer", **{name: f"character_{name}" for name in _EDITS}, "characters": "characters"},
    "ser": {"ser": "ser", "sentence_errors": "sentence_errors", "utterances": "scored"},
}


class ErrorRates(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
    """Error rates in percent with the counts that they are made of; a rate is None where the references are empty.

    All of them, or one by its name: `wer` (insertions, deletions, substitutions, words), `cer` (the same in
    characters), `ser` (sentence_errors, utterances).
    """

    def __init__(
        self,
        config_name: str | None = None,
        *,
        experiment_id: str | None = None,
        num_process: int = 1,
        **options: Any,
    ) -> None:
        """Makes a metric that holds its two columns in memory.

        evaluate's default keeps them in a file named after the experiment in a folder that all processes of a machine
        share, under a lock. In memory there is no file to collide on; a caller who asks for evaluate's distributed
        mode (`num_process` above 1), which cannot work in memory, gets the files back.

        Args:
            config_name: "wer", "cer" or "ser". None: all.
            experiment_id: evaluate's name for this computation; None: one that no other process has.
            num_process: Processes that compute together, in evaluate's distributed mode.
            options: Further options of `evaluate.Metric`.

        Raises:
            ConfigError: there is no metric of this name.
        """
        if config_name is not None and config_name not in _FIELDS:
            raise ConfigError(f"metric {config_name!r} is not known: use one of {', '.join(_FIELDS)}")
        options.setdefault("keep_in_memory", num_process == 1)
        if num_process == 1:
            experiment_id = experiment_id or uuid4().hex
            # evaluate makes a folder there at once, also in memory; a node's home may be read-only.
            options.setdefault("cache_dir", str(Path(tempfile.gettempdir()) / f"rayscribe-evaluate-{os.getuid()}"))
        super().__init__(config_name, experiment_id=experiment_id, num_process=num_process, **options)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=type(self).__doc__ or "",
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=Features({"predictions": Value("string"), "references": Value("string")}),
            reference_urls=["https://en.wikipedia.org/wiki/Word_error_rate"],
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[str], **given: Any) -> dict[str, Any]:
        score, scores = score_texts(predictions, references, **given)
        result = _result(self.config_name, score)
        return {**result, "per_utterance": scores} if given.get("ids") is not None else result


def _result(name: str, score: Score) -> dict[str, Any]:
    everything = score.to_json_dict()
    if name not in _FIELDS:
        return everything
    return {key: everything[field] for key, field in _FIELDS[name].items()}
