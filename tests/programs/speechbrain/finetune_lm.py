"""Fine-tunes only the language model of a recognizer: python finetune_lm.py hparams/finetune_lm.yaml --lr=0.001"""

import sys

import speechbrain as sb
import torch
from fsdd_prepare import prepare_fsdd
from hyperpyyaml import load_hyperpyyaml
from speechbrain.dataio.sampler import DynamicBatchSampler
from speechbrain.utils.distributed import run_on_main


class LanguageModel(sb.Brain):
    """Learns from text, and is scored by what the recognizer finds with it."""

    def compute_forward(self, batch, stage):
        batch = batch.to(self.device)
        tokens_bos, _ = batch.tokens_bos
        logits, _ = self.modules.lm(tokens_bos)
        p_lm = self.hparams.log_softmax(logits)
        if stage == sb.Stage.TRAIN:
            return p_lm, None
        wavs, wav_lens = batch.sig
        features = self.modules.normalize(self.hparams.compute_features(wavs), wav_lens)
        encoded, _ = self.modules.encoder(features)
        hypotheses, _, _, _ = self.hparams.search(encoded, wav_lens)
        return p_lm, hypotheses

    def compute_objectives(self, predictions, batch, stage):
        p_lm, hypotheses = predictions
        tokens_eos, lengths = batch.tokens_eos
        if stage != sb.Stage.TRAIN:
            words = ["".join(self.hparams.label_encoder.decode_ndim(each)).split(" ") for each in hypotheses]
            self.wer_metric.append(batch.id, words, [text.split(" ") for text in batch.words])
        return sb.nnet.losses.nll_loss(p_lm, tokens_eos, length=lengths)

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
                stats_meta={"epoch": epoch}, train_stats={"loss": self.train_loss}, valid_stats=stats
            )
            self.checkpointer.save_and_keep_only(meta={"loss": stage_loss}, min_keys=["loss"])
            return
        self.hparams.train_logger.log_stats({"Epoch loaded": self.hparams.epoch_counter.current}, test_stats=stats)
        with open(self.hparams.test_wer_file, "w", encoding="utf-8") as file:
            self.wer_metric.write_stats(file)


def dataio_prepare(hparams):
    """The data sets, by their names; that of training has no sound."""

    @sb.utils.data_pipeline.takes("wav")
    @sb.utils.data_pipeline.provides("sig")
    def audio_pipeline(wav):
        return sb.dataio.dataio.read_audio(wav)

    encoder = hparams["label_encoder"]

    @sb.utils.data_pipeline.takes("words")
    @sb.utils.data_pipeline.provides("words", "tokens_bos", "tokens_eos")
    def text_pipeline(words):
        yield words
        tokens = encoder.encode_sequence(list(words))
        yield torch.LongTensor([hparams["bos_index"], *tokens])
        yield torch.LongTensor([*tokens, hparams["eos_index"]])

    text = ["id", "words", "tokens_bos", "tokens_eos"]
    return {
        split: sb.dataio.dataset.DynamicItemDataset.from_json(
            json_path=hparams[f"{split}_json"],
            replacements={"data_root": hparams["data_folder"]},
            dynamic_items=[audio_pipeline, text_pipeline],
            output_keys=text if split == "train" else [*text, "sig"],
        )
        for split in ("train", "valid", "test")
    }


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
    run_on_main(hparams["pretrainer"].collect_files)
    hparams["pretrainer"].load_collected()
    for module in (hparams["encoder"], hparams["decoding"]):
        module.requires_grad_(False)
        module.eval()
    datasets = dataio_prepare(hparams)
    brain = LanguageModel(
        modules=hparams["modules"],
        opt_class=hparams["opt_class"],
        hparams=hparams,
        run_opts=run_opts,
        checkpointer=hparams["checkpointer"],
    )
    sampler = DynamicBatchSampler(
        datasets["train"], length_func=lambda item: len(item["words"]), **hparams["dynamic_batch_sampler"]
    )
    brain.fit(
        brain.hparams.epoch_counter,
        datasets["train"],
        datasets["valid"],
        train_loader_kwargs={"batch_sampler": sampler},
        valid_loader_kwargs=hparams["test_dataloader_opts"],
    )
    brain.evaluate(datasets["test"], min_key="loss", test_loader_kwargs=hparams["test_dataloader_opts"])
