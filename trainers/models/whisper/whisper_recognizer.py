"""Runs a Whisper model for training and scoring, with inputs of any even length."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    WhisperConfig,
    WhisperForConditionalGeneration,
    set_seed,
)
from transformers.modeling_outputs import BaseModelOutput

from trainers.data.features import LogMel
from trainers.models.label_codec import LabelCodec
from trainers.models.pretrained import network_options
from trainers.models.recognizer import (
    Alternative,
    Decoding,
    LabelCollator,
    Recognition,
    Recognizer,
    Segment,
    Timestamps,
    Word,
    computing_in,
    given_token,
    label_loss,
    pad_labels,
    row_losses,
    without_end,
)
from trainers.models.sources.loaded_weights import weights_from_pretrained
from trainers.models.whisper.timestamps import PREVIOUS_TEXT, STEP_S, generate_segments, timed_label
from trainers.models.whisper.whisper_generation import allowing_text, is_multilingual, language_of, resolve_generation
from trainers.models.whisper.whisper_part import WhisperPart
from trainers.models.whisper.whisper_scratch import regularization
from trainers.models.whisper.word_alignment import has_alignment_heads, word_times


class WhisperRecognizer(Recognizer):
    """WhisperForConditionalGeneration and WhisperProcessor."""

    @classmethod
    def load(
        cls,
        codec: LabelCodec,
        model: WhisperPart,
        processor: Any,
        description: Path | None,
        seed: int,
        weights: Path | None,
    ) -> "WhisperRecognizer":
        if description is not None:
            set_seed(seed)
            config = WhisperConfig.from_pretrained(description, **network_options(model))
            network: Any = WhisperForConditionalGeneration(config)
            if weights is not None:
                # Loaded into a new network, since from_pretrained makes the encoder's positions trainable.
                loaded = WhisperForConditionalGeneration.from_pretrained(weights, config=config, dtype=model.dtype)
                network.to(dtype=loaded.dtype).load_state_dict(loaded.state_dict())
            network.generation_config = GenerationConfig.from_pretrained(description)
            return cls(network, processor, codec)
        options = {**regularization(model), **network_options(model)}
        network = weights_from_pretrained(model, WhisperForConditionalGeneration, **options)
        generation = network.generation_config
        notes = resolve_generation(generation, processor.tokenizer, language_of(generation, model))
        # Outdated ids would override the language.
        if hasattr(network.config, "forced_decoder_ids"):
            network.config.forced_decoder_ids = None
        return cls(network, processor, codec, tuple(notes))

    def new_features(self) -> LogMel:
        return LogMel(self.processor.feature_extractor)

    @property
    def collate_labels(self) -> LabelCollator:
        config = self.model.config
        return partial(pad_labels, start_id=config.decoder_start_token_id, pad_id=config.pad_token_id)

    @property
    def gives_word_times(self) -> bool:
        return has_alignment_heads(self.model)

    def with_input_length(self, inputs: Mapping[str, torch.Tensor]) -> AbstractContextManager[None]:
        return input_frames(self.model, inputs["input_features"].shape[-1])

    def new_regularizer(self, part: WhisperPart, autocast: torch.dtype | None) -> "FullContextMatching | None":
        return FullContextMatching(self, part, autocast) if part.full_context_matching else None

    @torch.no_grad()
    def recognize(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], decoding: Decoding
    ) -> list[Recognition]:
        model, recorder = self.model, GenerationRecorder()
        text = (
            allowing_text(model.generation_config, self.processor.tokenizer) if decoding.as_written else nullcontext()
        )
        most = self.limits.new_tokens
        assert most is not None, "a Whisper generates tokens"
        with self.with_input_length(inputs), decoding.precision(model.device), text:
            # Once for both the loss and the hypothesis, since the encoder is most of the work.
            encoded = model.get_encoder()(inputs["input_features"])
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
            given = {"encoder_outputs": encoded, "past_key_values": cache}
            losses = row_losses(model, given, self.collate_labels(labels, ()))
            options: dict[str, Any] = {
                "max_new_tokens": max(1, min(decoding.part.max_length, most)),
                "num_beams": decoding.part.num_beams,
                "do_sample": False,
                "logits_processor": [NoTimestamps(model.generation_config.no_timestamps_token_id + 1), recorder],
                **self._languages(labels),
                **cache_options(model.device),
            }
            is_greedy = decoding.part.num_beams == 1
            with recorder.listening(model.get_output_embeddings()) if is_greedy else nullcontext():
                # Each call needs its own output object, since a beam search repeats the clips in its argument.
                output = BaseModelOutput(encoded.last_hidden_state)
                known: dict[str, Any] = {}
                if is_greedy and "cache_implementation" not in options:
                    # Reuses the encoder projections of the pass before, which are a tenth of a generation's work.
                    known["past_key_values"] = EncoderDecoderCache(DynamicCache(), cache.cross_attention_cache)
                tokens = model.generate(encoder_outputs=output, **options, **known)
            prompts = recorder.prompts[:: decoding.part.num_beams]
            if is_greedy:
                texts, ended = self._hypotheses(tokens, options["max_new_tokens"])
                best = [Alternative(*each) for each in zip(texts, recorder.mean_logprobs(ended), strict=True)]
            else:
                best = self._alternatives(encoded, prompts, tokens, options["max_new_tokens"])
            nbest: list[tuple[Alternative, ...] | None] = [None] * len(losses)
            if decoding.nbest is not None:
                nbest = [*self._nbest(encoded, prompts, decoding.nbest, options)]
            words: list[tuple[Word, ...] | None] = [None] * len(losses)
            if decoding.word_times:
                rows = [self._without_end(row) for row in tokens.tolist()]
                output = BaseModelOutput(encoded.last_hidden_state)
                words = [*word_times(model, self.processor.tokenizer, output, prompts, rows)]
        return [
            Recognition(item.text, loss, item.avg_logprob, others, words=timed)
            for item, loss, others, timed in zip(best, losses, nbest, words, strict=True)
        ]

    @torch.no_grad()
    def segments(
        self, inputs: Mapping[str, torch.Tensor], labels: Sequence[Sequence[int]], autocast: torch.dtype | None
    ) -> list[list[Segment] | None]:
        model, limits = self.model, self.limits
        assert limits.new_tokens is not None, "a Whisper generates tokens"
        start, device = model.config.decoder_start_token_id, model.device
        # Without the no-timestamps token, which is the last one before the text.
        prompts = torch.tensor([[start, *label[: limits.prefix_tokens - 1]] for label in labels], device=device)
        with self.with_input_length(inputs), computing_in(autocast, device):
            encoded = model.get_encoder()(inputs["input_features"])
            return generate_segments(model, self.processor.tokenizer, encoded, prompts, limits.new_tokens)

    @property
    def timestamps(self) -> Timestamps:
        return Timestamps(self.model.generation_config.no_timestamps_token_id + 1, STEP_S)

    def timed_label(self, label: Sequence[int], segments: Sequence[Segment], duration_s: float) -> list[int]:
        prefix, longest_s = label[: self.limits.prefix_tokens - 1], min(duration_s, self.limits.context_s)
        timed = timed_label(segments, self.processor.tokenizer, self.timestamps, longest_s)
        return [*prefix, *timed, label[-1]]

    def label_after(self, label: Sequence[int], previous: str) -> list[int]:
        tokenizer, start = self.processor.tokenizer, self.model.config.decoder_start_token_id
        # Whisper gives as many at most (`--condition_on_previous_text`).
        room = min(self.limits.label_tokens - len(label) - 2, self.model.config.max_target_positions // 2 - 1)
        before = tokenizer.convert_tokens_to_ids(PREVIOUS_TEXT)
        if room <= 0 or before is None:
            return list(label)
        text = tokenizer.backend_tokenizer.encode(f" {previous}", add_special_tokens=False).ids
        return [*map(given_token, (before, *text[-room:], start)), *label]

    def _languages(self, labels: Sequence[Sequence[int]]) -> dict[str, list[str]]:
        """Returns options with which `generate` begins each hypothesis with its labels' language."""
        generation = self.model.generation_config
        if not is_multilingual(generation):
            return {}
        firsts = [ids[0] for ids in labels]
        tokens: list[str] = self.processor.tokenizer.convert_ids_to_tokens(firsts)
        # The table may have fewer languages than the tokenizer, and than the model is trained on.
        generation.lang_to_id.update(zip(tokens, firsts, strict=True))
        return {"language": tokens}

    def _nbest(
        self, encoded: Any, prompts: torch.Tensor, count: int, options: Mapping[str, Any]
    ) -> list[tuple[Alternative, ...]]:
        """Returns the best hypotheses of each utterance by a second beam search, equal to that of `recognize`.

        It uses the inherited `generate`, since Whisper's own repeats the utterances instead of returning several beams.
        """
        sequences = GenerationMixin.generate(
            self.model,
            encoder_outputs=BaseModelOutput(encoded.last_hidden_state),
            decoder_input_ids=prompts,
            num_return_sequences=count,
            **{name: value for name, value in options.items() if name != "language"},
        )[:, prompts.shape[1] :]
        each = BaseModelOutput(encoded.last_hidden_state.repeat_interleave(count, dim=0))
        limit = options["max_new_tokens"]
        found = self._alternatives(each, prompts.repeat_interleave(count, dim=0), sequences, limit)
        return [tuple(found[start : start + count]) for start in range(0, len(found), count)]

    def _alternatives(self, encoded: Any, prompts: torch.Tensor, tokens: torch.Tensor, limit: int) -> list[Alternative]:
        """Returns hypotheses of padded tokens, (R, T); `prompts` is (R, P), `limit` the maximum of generated tokens."""
        texts, ended = self._hypotheses(tokens, limit)
        labels = pad_labels(ended, start_id=0, pad_id=self.model.config.pad_token_id)["labels"].to(prompts.device)
        inputs = torch.cat([prompts, labels[:, :-1].clamp(min=0)], dim=1)
        logits = self.model(encoder_outputs=encoded, decoder_input_ids=inputs).logits[:, prompts.shape[1] - 1 :]
        means = [-float(label_loss(row[None], target[None], None)) for row, target in zip(logits, labels, strict=True)]
        return [Alternative(*each) for each in zip(texts, means, strict=True)]

    def _hypotheses(self, tokens: torch.Tensor, limit: int) -> tuple[list[str], list[list[int]]]:
        """Returns texts of tokens (R, T), and the generated tokens of each, including its end token if it has one."""
        end_id = self.model.generation_config.eos_token_id
        rows = [self._without_end(row) for row in tokens.tolist()]
        texts = self.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [text.strip() for text in texts], [row if len(row) == limit else [*row, end_id] for row in rows]

    def _without_end(self, tokens: Sequence[int]) -> list[int]:
        generation = self.model.generation_config
        return without_end(tokens, {generation.pad_token_id, generation.eos_token_id})


def cache_options(device: torch.device) -> dict[str, Any]:
    """Returns options of the cache of keys and values, which on a GPU is allocated once, at the bucket's length.

    Compilation, which transformers would repeat for each bucket and batch size, is turned off.
    """
    return {"cache_implementation": "static", "disable_compile": True} if device.type == "cuda" else {}


class NoTimestamps(LogitsProcessor):
    """Suppresses timestamps, the last tokens of the vocabulary, since generation would return to the audio after one.

    SuppressTokensLogitsProcessor searches each token in a list, which takes a tenth of the time of a token on a CPU.
    """

    def __init__(self, first: int):
        self._first = first

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns the scores (B × beams, V) with minus infinity for each timestamp."""
        kept = scores.clone()
        kept[:, self._first :] = -torch.inf
        return kept


class GenerationRecorder(LogitsProcessor):
    """Records the prompts of a generation, and the log-probabilities of the tokens that greedy search chooses.

    The probabilities are those of the model's own logits, before any token is suppressed. Another pass of the decoder
    over the hypotheses would have the same result, and take a fifth of the time of scoring short clips.
    """

    # The start, language and task tokens, (B × beams, P).
    prompts: torch.Tensor

    def __init__(self) -> None:
        # Logits of the last pass, and of the pass whose token is chosen next, (B, V).
        self._newest: torch.Tensor | None = None
        self._logits: torch.Tensor | None = None
        self._logprobs: list[torch.Tensor] = []

    @contextmanager
    def listening(self, output_layer: torch.nn.Module) -> Iterator[None]:
        """Returns a context that records the logits of the output layer; without it, only the prompts are recorded."""

        def keep(layer: torch.nn.Module, inputs: Any, logits: torch.Tensor) -> None:
            self._newest = logits[:, -1]

        handle = output_layer.register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns the scores unchanged."""
        if not hasattr(self, "prompts"):
            self.prompts = input_ids.clone()
        elif self._logits is not None:
            self._choose(input_ids[:, -1])
        self._logits = self._newest
        return scores

    def mean_logprobs(self, hypotheses: Sequence[Sequence[int]]) -> list[float]:
        """Returns the mean log-probability of the tokens of each hypothesis, including its end token, nats."""
        step = len(self._logprobs)
        last = [tokens[step] if step < len(tokens) else 0 for tokens in hypotheses]
        self._choose(torch.tensor(last, device=self.prompts.device))
        rows = torch.stack(self._logprobs, dim=1)
        return [float(row[: len(tokens)].mean()) for row, tokens in zip(rows, hypotheses, strict=True)]

    def _choose(self, tokens: torch.Tensor) -> None:
        assert self._logits is not None
        logits = self._logits.float()
        self._logprobs.append(logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1))


@contextmanager
def input_frames(network: Any, frames: int) -> Iterator[None]:
    """Returns a context in which a Whisper takes inputs of exactly `frames` frames, also in generation.

    The encoder reads the length from its config and the number of rows from its position table; both are changed.
    """
    config, positions = network.config, network.get_encoder().embed_positions
    full = config.max_source_positions
    config.max_source_positions = positions.num_embeddings = frames // 2
    try:
        yield
    finally:
        config.max_source_positions = positions.num_embeddings = full


class FullContextMatching:
    """The mean squared difference of the last hidden states of the trained encoder and of a frozen original.

    It is computed within the network's own forward pass, so that a wrapper of the network for training (DDP) has only
    one pass, and is returned as the `loss` of its output, which is otherwise None without labels.
    """

    name = "full_context_matching"

    def __init__(self, recognizer: Recognizer, part: WhisperPart, autocast: torch.dtype | None):
        """Copies the encoder, which must still have the weights of the start of training."""
        self.weight, self.fraction = part.full_context_matching, part.full_context_matching_fraction
        self._recognizer, self._features, self._autocast = recognizer, recognizer.new_features(), autocast
        self._context_s = recognizer.limits.context_s
        self._original = copy.deepcopy(recognizer.model.get_encoder()).eval().requires_grad_(False)
        self._given: tuple[torch.Tensor, torch.Tensor] | None = None
        recognizer.model.register_forward_hook(self._add)

    @contextmanager
    def of(self, clips: Sequence[torch.Tensor], shares: torch.Tensor) -> Iterator[None]:
        device = clips[0].device
        inputs = self._features.to(device).inputs(clips, self._context_s)
        self._given = self._recognizer.in_type_of_weights(inputs)["input_features"], shares.to(device)
        try:
            yield
        finally:
            self._given = None

    def _add(self, network: Any, inputs: Any, output: Any) -> None:
        # Generation calls the network, too.
        if self._given is not None:
            output["loss"] = self._difference(network, *self._given)

    def _difference(self, network: Any, features: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        self._original.to(features.device)
        with computing_in(self._autocast, features.device):
            with torch.no_grad():
                wanted = self._original(features).last_hidden_state
            with input_frames(network, features.shape[-1]):
                given = network.get_encoder()(features).last_hidden_state
        difference: torch.Tensor = (given.float() - wanted.float()).square().mean(dim=(1, 2)) @ shares
        return difference
