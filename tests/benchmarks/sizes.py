"""How much of everything one benchmark runs: the counts that the table states next to its ratios."""

from dataclasses import dataclass, replace

RANKS = 2
FULL_CONTEXT_S = 30.0


@dataclass(frozen=True)
class Sizes:
    """Counts, lengths and the model's geometry; the same for both sides except where a name says otherwise.

    Attributes:
        our_clips: Clips that Rayscribe prepares in a turn.
        stock_clips: Clips that the stock recipe prepares in a turn; fewer, as its figure is a rate, and no fewer than
            `score_clips`, since it scores them.
        score_clips: Clips scored in a turn; a multiple of ranks × `score_batch`, so that no rank pads its share.
        rounds: Turns of each side.
        starts: Starts of each command.
        limits: Whether bare loops, codecs alone and a bare TorchTrainer are sides, too.
        variants: Whether each comparison has all of its rows, and not only the one that stands for the others.
        train_batch: Utterances of one forward pass of one rank.
        turn_steps: Optimizer steps in a turn at 30 s.
        short_turn_clips: Clips in a turn of training in buckets.
        short_score_batches: Batches of each rank in a turn of scoring in buckets, where they have as many seconds.
        ctc_turn_steps: Steps in a turn of CTC; enough that the lengths of a turn's clips are about those of all.
        ctc_clips: Clips that the stock recipe trains and scores of CTC.
        score_batch: Utterances of one generate call of one rank.
        max_new_tokens: Tokens of each hypothesis; new weights end few of them earlier.
        d_model: Width of the model.
        vocab_size: Most tokens of text.
        encoder_layers: Encoder layers.
        decoder_layers: Decoder layers.
        short_context_s: Context of the bucketed training, seconds.
        known_steps: Optimizer steps in which a Whisper learns the clips that are scored.
    """

    our_clips: int = 6000
    stock_clips: int = 256
    score_clips: int = 32
    rounds: int = 3
    starts: int = 2
    limits: bool = True
    variants: bool = True
    train_batch: int = 4
    turn_steps: int = 1
    short_turn_clips: int = 240
    short_score_batches: int = 2
    ctc_turn_steps: int = 16
    ctc_clips: int = 512
    score_batch: int = 8
    max_new_tokens: int = 12
    d_model: int = 384
    vocab_size: int = 50_257
    encoder_layers: int = 4
    decoder_layers: int = 4
    short_context_s: int = 4
    known_steps: int = 240

    @property
    def short_batch(self) -> int:
        """Utterances of a forward pass in training that are as many padded seconds as `train_batch` at 30 s."""
        return round(self.train_batch * FULL_CONTEXT_S / self.short_context_s)

    def short_turn_steps(self, batch: int) -> int:
        """Optimizer steps in a turn in buckets, of about as many clips whatever the batch is."""
        return max(1, self.short_turn_clips // (RANKS * batch))

    @property
    def short_score_batch(self) -> int:
        """The same in scoring."""
        return round(self.score_batch * FULL_CONTEXT_S / self.short_context_s)

    @property
    def short_score_clips(self) -> int:
        """Clips scored in a turn in buckets: enough that the ranks' shares are about equal."""
        return min(self.our_clips, RANKS * self.short_score_batches * self.short_score_batch)

    def with_clips(self, count: int) -> "Sizes":
        """The same with another number of clips to prepare."""
        return replace(self, our_clips=count, score_clips=min(self.score_clips, count))


# Whisper tiny, see its published config.json.
FULL = Sizes()
QUICK = Sizes(
    our_clips=1000,
    stock_clips=48,
    score_clips=16,
    rounds=2,
    starts=1,
    limits=False,
    variants=False,
    short_turn_clips=64,
    short_score_batches=1,
    ctc_turn_steps=2,
    ctc_clips=64,
    d_model=256,
    encoder_layers=1,
    decoder_layers=1,
)
# Whether it runs at all; its figures mean nothing.
SMOKE = Sizes(
    our_clips=16,
    stock_clips=4,
    score_clips=4,
    rounds=2,
    starts=1,
    train_batch=1,
    short_turn_clips=16,
    ctc_turn_steps=1,
    ctc_clips=4,
    score_batch=2,
    max_new_tokens=2,
    d_model=64,
    vocab_size=400,
    encoder_layers=1,
    decoder_layers=1,
    known_steps=2,
)
