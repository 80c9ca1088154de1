"""How much of everything one benchmark runs: the counts that the table states beside its ratios."""

from dataclasses import asdict, dataclass
from typing import Any

RANKS = 2


@dataclass(frozen=True)
class Sizes:
    """Counts, lengths and the model's geometry; the same for both sides except where a name says otherwise.

    Attributes:
        our_clips: Clips that Rayscribe prepares.
        stock_clips: Clips that the stock recipe prepares; fewer, as its figure is a rate.
        score_clips: Clips of the evaluation; a multiple of ranks × `score_batch`, so that no rank pads its share.
        rounds: How often each pair of steps is run, one side after the other.
        train_batch: Utterances of one forward pass of one rank.
        train_steps: Optimizer steps; the first `log_every` of them warm up and are not counted.
        log_every: Optimizer steps between two readings of the clock.
        score_batch: Utterances of one generate call of one rank.
        max_new_tokens: Tokens of each hypothesis; new weights end few of them earlier.
        d_model: Width of the model.
        encoder_layers: Encoder layers.
        decoder_layers: Decoder layers.
        short_context_s: Context of the bucketed training, seconds.
    """

    our_clips: int = 6000
    stock_clips: int = 512
    score_clips: int = 96
    rounds: int = 2
    train_batch: int = 4
    train_steps: int = 12
    log_every: int = 2
    score_batch: int = 8
    max_new_tokens: int = 12
    d_model: int = 192
    encoder_layers: int = 4
    decoder_layers: int = 2
    short_context_s: int = 4

    def to_json_dict(self) -> dict[str, Any]:
        """For the steps, which are processes of their own."""
        return asdict(self)


FULL = Sizes()
QUICK = Sizes(our_clips=2000, stock_clips=128, score_clips=32, rounds=1, train_steps=6)
