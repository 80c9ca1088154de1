"""ONNX and OpenVINO: graphs that transformers' own exporters trace, run by ONNX Runtime and by OpenVINO.

A CTC model is one graph, from samples or mel frames to logits. A Whisper is two: `prefill`, from mel frames and the
prompt to logits and the keys and values of attention, and `decode`, from one more token and these to the next.
transformers' `ExportedModel.from_pretrained` opens both; the processor lies next to them.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import torch
from transformers import AutoTokenizer

from trainers.data.features.model_input import LENGTHS
from trainers.models.families import family_of_folder
from trainers.models.whisper.whisper_generation import suppressed_tokens
from trainers.pipeline.export.exporter import Runtime, Source

# Of what is traced: a length of 1 would be the only one that the graph takes.
TRACED_CLIPS, TRACED_SAMPLES = 2, 16_000


class _Graphs:
    """A format of transformers' exporters."""

    # Module and class of its exporter and of that one's config, and what of the config is not as it comes.
    exporter: ClassVar[str]
    config: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}

    def refusal(self, source: Source) -> str | None:
        family = source.recognizer.codec.name
        if family not in ("ctc", "whisper"):
            return (
                f"CTC models and Whispers are converted, and this model is of the family {family}: leave it out of --to"
            )
        if source.decoding.num_beams > 1:
            return (
                f"its graphs are searched greedily, and the run was scored with training.generation_num_beams "
                f"{source.decoding.num_beams}: leave it out of --to"
            )
        return None

    def convert(self, source: Source, folder: Path) -> None:
        exporter, config = resolve_name(self.exporter)(), resolve_name(self.config)(dynamic=True, **self.options)
        # As transformers makes it: what a recognizer changes of a network for speed is not traced.
        network = family_of_folder(source.folder).auto_class().from_pretrained(source.folder, dtype=torch.float32)
        network.eval()
        trace = _trace_ctc if source.recognizer.limits.new_tokens is None else _trace_whisper
        with _quiet():
            trace(exporter, config, network, source).save_pretrained(folder)
        source.recognizer.processor.save_pretrained(folder)

    def open(self, folder: Path, source: Source) -> Runtime:
        from transformers.exporters import ExportedModel  # noqa: PLC0415

        exported = ExportedModel.from_pretrained(folder, device="cpu")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if source.recognizer.limits.new_tokens is None:
            return _Ctc(exported, tokenizer)
        return _Whisper(exported, tokenizer, source)


class Onnx(_Graphs):
    """ONNX, run by ONNX Runtime."""

    exporter = "transformers.exporters:OnnxExporter"
    config = "transformers.exporters:OnnxConfig"


class OpenVino(_Graphs):
    """OpenVINO's format, run by OpenVINO."""

    exporter = "transformers.exporters:OpenVINOExporter"
    config = "transformers.exporters:OpenVINOConfig"
    # Keys and values go from a graph of a Whisper to the other, so that neither may keep them.
    options: ClassVar[Mapping[str, Any]] = {"stateful": False}


@contextmanager
def _quiet() -> Iterator[None]:
    """Within it, torch says nothing of operators that no model of ours has."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch._export")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _trace_ctc(exporter: Any, config: Any, network: Any, source: Source) -> Any:
    clips = [torch.zeros(TRACED_SAMPLES, dtype=torch.int16)] * TRACED_CLIPS
    inputs = source.recognizer.new_features().inputs(clips, None)
    inputs.pop(LENGTHS)
    return exporter.export(network, inputs, config)


def _trace_whisper(exporter: Any, config: Any, network: Any, source: Source) -> Any:
    from transformers.exporters import ExportedModel  # noqa: PLC0415

    clips = [torch.zeros(TRACED_SAMPLES, dtype=torch.int16)] * TRACED_CLIPS
    limits = source.recognizer.limits
    given = source.recognizer.new_features().inputs(clips, limits.context_s)
    prompt = torch.full((TRACED_CLIPS, 1 + limits.prefix_tokens), network.config.decoder_start_token_id)
    begun = {**given, "decoder_input_ids": prompt, "use_cache": True}
    prefill = exporter.export(network, begun, config)
    with torch.no_grad():
        outputs = network(**begun)
    step = {
        "encoder_outputs": (outputs.encoder_last_hidden_state,),
        "past_key_values": outputs.past_key_values,
        "decoder_input_ids": prompt[:, :1],
        "use_cache": True,
    }
    decode = exporter.export(network, step, config)
    components = {"prefill": prefill.components["model"], "decode": decode.components["model"]}
    return ExportedModel(components, exporter.export_format, network.config, network.generation_config)


class _Ctc:
    """The best path."""

    def __init__(self, exported: Any, tokenizer: Any):
        self._exported, self._tokenizer = exported, tokenizer

    def recognize(self, inputs: Mapping[str, torch.Tensor], label: Sequence[int]) -> str:
        given = {name: value for name, value in inputs.items() if name != LENGTHS}
        path = self._exported(**given).logits[0].argmax(dim=-1)
        text: str = self._tokenizer.decode(path.tolist())
        return text.strip()


class _Whisper:
    """The likeliest token at each step."""

    def __init__(self, exported: Any, tokenizer: Any, source: Source):
        self._runners, self._tokenizer = exported.runners, tokenizer
        recognizer, generation = source.recognizer, exported.generation_config
        self._start, self._end = int(generation.decoder_start_token_id), int(generation.eos_token_id)
        self._prefix, self._most = recognizer.limits.prefix_tokens, source.most_new_tokens
        self._never = suppressed_tokens(recognizer.model, tokenizer, as_written=source.decoding.as_written)
        self._not_first = [*(generation.begin_suppress_tokens or ())]

    def recognize(self, inputs: Mapping[str, torch.Tensor], label: Sequence[int]) -> str:
        prompt = torch.tensor([[self._start, *label[: self._prefix]]])
        outputs = self._runners["prefill"](input_features=inputs["input_features"], decoder_input_ids=prompt)
        encoded = (outputs.encoder_last_hidden_state,)
        tokens: list[int] = []
        while len(tokens) < self._most:
            logits = outputs.logits[0, -1].clone()
            logits[self._never if tokens else [*self._never, *self._not_first]] = -torch.inf
            token = int(logits.argmax())
            if token == self._end:
                break
            tokens.append(token)
            given = {"encoder_outputs": encoded, "past_key_values": outputs.past_key_values}
            outputs = self._runners["decode"](decoder_input_ids=torch.tensor([[token]]), **given)
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text.strip()
