"""Trains an encoder, an attentional decoder and a language model: python train_seq2seq.py hparams/train_seq2seq.yaml"""

import sys

import speechbrain as sb
import torch
from fsdd_prepare import prepare_fsdd
from hyperpyyaml import load_hyperpyyaml
from speechbrain.utils.distributed import run_on_main


class Seq2Seq(sb.Brain):
    """All modules learn; letters are the tokens."""

    def compute_forward(self, batch, stage):
        batch = batch.to(self.device)
        wavs, wav_lens = batch.sig
        tokens_bos, _ = batch.tokens_bos
        features = self.modules.normalize(self.hparams.compute_features(wavs), wav_lens)
        encoded, _ = self.modules.encoder(features)
        hidden, _ = self.modules.decoder(self.modules.embedding(tokens_bos), encoded, wav_lens)
        p_seq = self.hparams.log_softmax(self.modules.seq_lin(hidden))
        logits, _ = self.modules.lm(tokens_bos)
        p_lm = self.hparams.log_softmax(logits)
        hypotheses = None
        if stage != sb.Stage.TRAIN:
            hypotheses, _, _, _ = self.hparams.search(encoded, wav_lens)
        return p_seq, p_lm, hypotheses

    def compute_objectives(self, predictions, batch, stage):
        p_seq, p_lm, hypotheses = predictions
        tokens_eos, lengths = batch.tokens_eos
        loss = sb.nnet.losses.nll_loss(p_seq, tokens_eos, length=lengths)
        loss = loss + self.hparams.lm_loss_weight * sb.nnet.losses.nll_loss(p_lm, tokens_eos, length=lengths)
        if stage != sb.Stage.TRAIN:
            words = ["".join(self.hparams.label_encoder.decode_ndim(each)).split(" ") for each in hypotheses]
            self.wer_metric.append(batch.id, words, [text.split(" ") for text in batch.words])
        return loss

    def on_stage_start(self, stage, epoch=None):
        if stage != sb.Stage.TRAIN:
            self.wer_metric = self.hparams.error_rate_computer()

    def on_stage_end(self, stage, stage_loss, epoch=None):
        if stage == sb.Stage.TRAIN:
            self.train_loss = stage_loss
            return
        stats = {"loss": stage_loss, "WER": self.wer_metric.summarize("error_rate")}
        if stage == sb.Stage.VALID:
            self.hparams.train_logger.log_stats(
                stats_meta={"epoch": epoch, "lr": self.hparams.lr},
                train_stats={"loss": self.train_loss},
                valid_stats=stats,
            )
            self.checkpointer.save_and_keep_only(meta={"WER": stats["WER"]}, min_keys=["WER"])
            return
        self.hparams.train_logger.log_stats({"Epoch loaded": self.hparams.epoch_counter.current}, test_stats=stats)
        with open(self.hparams.test_wer_file, "w", encoding="utf-8") as file:
            self.wer_metric.write_stats(file)


def dataio_prepare(hparams):
    """The data sets, by their names."""

    @sb.utils.data_pipeline.takes("wav")
    @sb.utils.data_pipeline.provides("sig")
    def audio_pipeline(wav):
        return sb.dataio.dataio.read_audio(wav)

    encoder = hparams["label_encoder"]

    @sb.utils.data_pipeline.takes("words")
    @sb.utils.data_pipeline.provides("words", "letters", "tokens_bos", "tokens_eos")
    def text_pipeline(words):
        yield words
        letters = list(words)
        yield letters
        tokens = encoder.encode_sequence(letters)
        yield torch.LongTensor([hparams["bos_index"], *tokens])
        yield torch.LongTensor([*tokens, hparams["eos_index"]])

    datasets = {
        split: sb.dataio.dataset.DynamicItemDataset.from_json(
            json_path=hparams[f"{split}_json"],
            replacements={"data_root": hparams["data_folder"]},
            dynamic_items=[audio_pipeline, text_pipeline],
            output_keys=["id", "sig", "words", "tokens_bos", "tokens_eos"],
        )
        for split in ("train", "valid", "test")
    }
    encoder.load_or_create(
        path=f"{hparams['save_folder']}/label_encoder.txt",
        from_didatasets=[datasets["train"]],
        output_key="letters",
        special_labels={"bos_label": hparams["bos_index"], "eos_label": hparams["eos_index"]},
        sequence_input=True,
    )
    return datasets


if __name__ == "__main__":
    hparams_file, run_opts, overrides = sb.parse_arguments(sys.argv[1:])
    sb.utils.distributed.ddp_init_group(run_opts)
    with open(hparams_file, encoding="utf-8") as fin:
        hparams = load_hyperpyyaml(fin, overrides)
    sb.create_experiment_directory(
        experiment_directory=hparams["output_folder"], hyperparams_to_save=hparams_file, overrides=overrides
    )
    run_on_main(
        prepare_fsdd,
        kwargs={
            "data_folder": hparams["data_folder"],
            "save_folder": hparams["output_folder"],
            "skip_prep": hparams["skip_prep"],
        },
    )
    datasets = dataio_prepare(hparams)
    brain = Seq2Seq(
        modules=hparams["modules"],
        opt_class=hparams["opt_class"],
        hparams=hparams,
        run_opts=run_opts,
        checkpointer=hparams["checkpointer"],
    )
    brain.fit(
        brain.hparams.epoch_counter,
        datasets["train"],
        datasets["valid"],
        train_loader_kwargs=hparams["train_dataloader_opts"],
        valid_loader_kwargs=hparams["test_dataloader_opts"],
    )
    brain.evaluate(datasets["test"], min_key="WER", test_loader_kwargs=hparams["test_dataloader_opts"])
