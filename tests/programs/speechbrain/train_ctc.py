"""Trains a CTC recognizer whose encoder was trained before: python train_ctc.py hparams/train_ctc.yaml --lr=0.001"""

import logging
import os
import sys

import speechbrain as sb
import torch
from fsdd_prepare import prepare_fsdd
from hyperpyyaml import load_hyperpyyaml
from speechbrain.dataio.sampler import DynamicBatchSampler
from speechbrain.utils.distributed import if_main_process, run_on_main

logger = logging.getLogger(__name__)


class CTC(sb.Brain):
    """The encoder has an optimizer of its own."""

    def compute_forward(self, batch, stage):
        batch = batch.to(self.device)
        wavs, wav_lens = batch.sig
        features = self.modules.normalize(self.hparams.compute_features(wavs), wav_lens)
        encoded, _ = self.modules.encoder(features)
        return self.hparams.log_softmax(self.modules.ctc_lin(encoded)), wav_lens

    def compute_objectives(self, predictions, batch, stage):
        p_ctc, wav_lens = predictions
        tokens, lengths = batch.tokens
        if stage != sb.Stage.TRAIN:
            sequences = sb.decoders.ctc_greedy_decode(p_ctc, wav_lens, blank_id=self.hparams.blank_index)
            words = ["".join(letters).split(" ") for letters in self.hparams.label_encoder.decode_ndim(sequences)]
            targets = [text.split(" ") for text in batch.wrd]
            self.wer_metric.append(batch.id, words, targets)
            self.cer_metric.append(batch.id, words, targets)
        return self.hparams.ctc_cost(p_ctc, tokens, wav_lens, lengths)

    def init_optimizers(self):
        self.head_optimizer = self.hparams.opt_class(self.hparams.head.parameters())
        self.encoder_optimizer = self.hparams.encoder_opt_class(self.modules.encoder.parameters())
        self.optimizers_dict = {"head_optimizer": self.head_optimizer, "encoder_optimizer": self.encoder_optimizer}
        if self.checkpointer is not None:
            self.checkpointer.add_recoverable("head_optimizer", self.head_optimizer)
            self.checkpointer.add_recoverable("encoder_optimizer", self.encoder_optimizer)

    def on_evaluate_start(self, max_key=None, min_key=None):
        super().on_evaluate_start(max_key=max_key, min_key=min_key)
        best = self.checkpointer.find_checkpoints(
            max_key=max_key, min_key=min_key, max_num_checkpoints=self.hparams.avg_checkpoints
        )
        for name in ("encoder", "head"):
            mean = sb.utils.checkpoints.average_checkpoints(best, recoverable_name=name)
            getattr(self.hparams, name).load_state_dict(mean)

    def on_stage_start(self, stage, epoch=None):
        if stage != sb.Stage.TRAIN:
            self.wer_metric = self.hparams.error_rate_computer()
            self.cer_metric = self.hparams.cer_computer()

    def on_stage_end(self, stage, stage_loss, epoch=None):
        if stage == sb.Stage.TRAIN:
            self.train_stats = {"loss": stage_loss}
            return
        stats = {
            "loss": stage_loss,
            "CER": self.cer_metric.summarize("error_rate"),
            "WER": self.wer_metric.summarize("error_rate"),
        }
        if stage == sb.Stage.VALID:
            old_lr, new_lr = self.hparams.lr_annealing(stats["loss"])
            sb.nnet.schedulers.update_learning_rate(self.head_optimizer, new_lr)
            self.hparams.train_logger.log_stats(
                stats_meta={"epoch": epoch, "lr": old_lr}, train_stats=self.train_stats, valid_stats=stats
            )
            self.checkpointer.save_and_keep_only(
                meta={"WER": stats["WER"]}, min_keys=["WER"], num_to_keep=self.hparams.avg_checkpoints
            )
            return
        self.hparams.train_logger.log_stats({"Epoch loaded": self.hparams.epoch_counter.current}, test_stats=stats)
        if if_main_process():
            with open(self.hparams.test_wer_file, "w", encoding="utf-8") as file:
                self.wer_metric.write_stats(file)


def dataio_prepare(hparams):
    """The data sets, by their names."""

    @sb.utils.data_pipeline.takes("wav")
    @sb.utils.data_pipeline.provides("sig")
    def audio_pipeline(wav):
        return sb.dataio.dataio.read_audio(wav)

    encoder = hparams["label_encoder"]

    @sb.utils.data_pipeline.takes("wrd")
    @sb.utils.data_pipeline.provides("wrd", "letters", "tokens")
    def text_pipeline(wrd):
        yield wrd
        letters = list(wrd)
        yield letters
        yield torch.LongTensor(encoder.encode_sequence(letters))

    datasets = {
        split: sb.dataio.dataset.DynamicItemDataset.from_csv(
            csv_path=hparams[f"{split}_csv"], replacements={"data_root": hparams["data_folder"]}
        )
        for split in ("train", "valid", "test")
    }
    datasets["valid"] = datasets["valid"].filtered_sorted(sort_key="duration")
    every = list(datasets.values())
    sb.dataio.dataset.add_dynamic_item(every, audio_pipeline)
    sb.dataio.dataset.add_dynamic_item(every, text_pipeline)
    encoder.load_or_create(
        path=os.path.join(hparams["save_folder"], "label_encoder.txt"),
        from_didatasets=[datasets["train"]],
        output_key="letters",
        special_labels={"blank_label": hparams["blank_index"]},
        sequence_input=True,
    )
    sb.dataio.dataset.set_output_keys(every, ["id", "sig", "wrd", "tokens"])
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
    run_on_main(hparams["pretrainer"].collect_files)
    hparams["pretrainer"].load_collected()
    brain = CTC(modules=hparams["modules"], hparams=hparams, run_opts=run_opts, checkpointer=hparams["checkpointer"])
    train_loader_kwargs = hparams["train_dataloader_opts"]
    if hparams["dynamic_batching"]:
        sampler = DynamicBatchSampler(
            datasets["train"], length_func=lambda item: float(item["duration"]), **hparams["dynamic_batch_sampler"]
        )
        train_loader_kwargs = {"batch_sampler": sampler, "num_workers": train_loader_kwargs["num_workers"]}
    brain.fit(
        brain.hparams.epoch_counter,
        datasets["train"],
        datasets["valid"],
        train_loader_kwargs=train_loader_kwargs,
        valid_loader_kwargs=hparams["valid_dataloader_opts"],
    )
    brain.evaluate(datasets["test"], min_key="WER", test_loader_kwargs=hparams["test_dataloader_opts"])
