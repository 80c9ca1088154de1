"""Trains a small CTC recognizer as SpeechBrain's recipes do: python train.py hparams.yaml --lr 0.01"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jiwer
import soundfile
import torch
import yaml
from digits_prepare import prepare_digits  # type: ignore[import-not-found]
from hparams_file import load_hparams  # type: ignore[import-not-found]
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

LETTERS = " abcdefghijklmnopqrstuvwxyz"
Utterance = dict[str, Any]
Batch = list[Utterance]


def parse_arguments(words: Sequence[str]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The file of hyperparameters, options of the run, and other hyperparameters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("param_file")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--distributed_backend", default="nccl")
    options, rest = parser.parse_known_args(words)
    overrides = {}
    while rest:
        name, equals, value = rest.pop(0).removeprefix("--").partition("=")
        overrides[name] = yaml.safe_load(value if equals else rest.pop(0))
    return options.param_file, vars(options), overrides


def ddp_init_group(run_opts: dict[str, Any]) -> None:
    """Joins the other processes, where there are any."""
    rank = os.environ.get("RANK")
    if rank is None or os.environ.get("LOCAL_RANK") is None:
        return
    if run_opts["device"] == "cuda":
        run_opts["device"] = f"cuda:{os.environ['LOCAL_RANK']}"
    elif run_opts["distributed_backend"] == "nccl":
        raise ValueError("--distributed_backend=nccl needs GPUs: give --distributed_backend=gloo")
    distributed.init_process_group(
        run_opts["distributed_backend"], rank=int(rank), world_size=int(os.environ["WORLD_SIZE"])
    )


def rank() -> int:
    """Of this process; 0 where it is alone."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def run_on_main(function: Callable[..., None], kwargs: dict[str, Any]) -> None:
    """Runs it on rank 0, while the others wait."""
    if rank() == 0:
        function(**kwargs)
    if distributed.is_initialized():
        distributed.barrier()


def create_experiment_directory(folder: str, param_file: str) -> None:
    """Makes the output folder, with a copy of the hyperparameters."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(param_file, Path(folder) / "hyperparams.yaml")


class Checkpointer:
    """Checkpoints in folders CKPT+<time>+<number>; what they hold is written after CKPT.yaml, as SpeechBrain does."""

    def __init__(self, folder: str, recoverables: dict[str, Any]):
        """Writes nothing yet."""
        self.folder, self.recoverables = Path(folder), recoverables

    def save_checkpoint(self, meta: dict[str, Any], counters: dict[str, Any], keep: int) -> None:
        """Rank 0 saves one, and deletes those before the last ones."""
        if rank() == 0:
            stamp = time.strftime("CKPT+%Y-%m-%d+%H-%M-%S")
            path = next(path for number in range(100) if not (path := self.folder / f"{stamp}+{number:02d}").exists())
            path.mkdir(parents=True)
            (path / "CKPT.yaml").write_text(yaml.safe_dump({**meta, "unixtime": time.time()}))
            for name, part in self.recoverables.items():
                torch.save(part.state_dict(), path / f"{name}.ckpt")
            for name, value in counters.items():
                (path / f"{name}.ckpt").write_text(yaml.safe_dump(value))
            kind = "end-of-epoch" if meta["end-of-epoch"] else "intra-epoch"
            print(f"Saved an {kind} checkpoint in {path}", flush=True)
            for old in self._found()[:-keep]:
                shutil.rmtree(old)
        if distributed.is_initialized():
            distributed.barrier()

    def recover_if_possible(self) -> dict[str, Any] | None:
        """Loads the newest one; gives its counters and `end-of-epoch`. None: there is none."""
        found = self._found()
        if not found:
            return None
        newest = found[-1]
        print(f"Loading a checkpoint from {newest}", flush=True)
        for name, part in self.recoverables.items():
            part.load_state_dict(torch.load(newest / f"{name}.ckpt"))
        names = ("counter", "brain", "dataloader-TRAIN")
        counters = {name: yaml.safe_load((newest / f"{name}.ckpt").read_text()) for name in names}
        return {**counters, **yaml.safe_load((newest / "CKPT.yaml").read_text())}

    def _found(self) -> list[Path]:
        """All, the newest last."""
        metas = [(yaml.safe_load(path.read_text()), path.parent) for path in self.folder.glob("CKPT+*/CKPT.yaml")]
        return [path for _, path in sorted(metas, key=lambda pair: pair[0]["unixtime"])]


class DynamicBatchSampler:
    """Batches of about as many seconds; each rank has as many of them."""

    def __init__(self, utterances: Sequence[Utterance], max_batch_length: float, seed: int):
        """Forms them, of utterances of about a length."""
        self._batches: list[Batch] = [[]]
        self._seed = seed
        for utterance in sorted(utterances, key=lambda each: each["length"]):
            if sum(each["length"] for each in self._batches[-1]) + utterance["length"] > max_batch_length:
                self._batches.append([])
            self._batches[-1].append(utterance)

    def __len__(self) -> int:
        return len(self._batches) // world_size()

    def epoch(self, number: int) -> Iterator[Batch]:
        """Those of this rank, in an order of the epoch's own."""
        generator = torch.Generator().manual_seed(self._seed + number)
        order = torch.randperm(len(self._batches), generator=generator).tolist()
        return (self._batches[index] for index in order[rank() :: world_size()][: len(self)])


class Recognizer(nn.Module):
    """The modules of hparams.yaml, one after the other."""

    def __init__(self, hparams: dict[str, Any]):
        """Takes them."""
        super().__init__()
        self.normalize, self.encoder, self.decoder = (hparams[name] for name in ("normalize", "encoder", "decoder"))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.encoder(self.normalize(features))
        scores: torch.Tensor = self.decoder(hidden)
        return scores.log_softmax(-1)


class ASR:
    """The training of a recognizer, with its hyperparameters."""

    def __init__(self, hparams: dict[str, Any], run_opts: dict[str, Any]):
        """Makes what is trained."""
        self.hparams, self.device = hparams, torch.device(run_opts["device"])
        self.network = Recognizer(hparams).to(self.device)
        self.model = DistributedDataParallel(self.network) if distributed.is_initialized() else self.network
        self.optimizer = torch.optim.Adam(self.network.parameters(), hparams["lr"])
        self.checkpointer = Checkpointer(hparams["save_folder"], {"model": self.network, "optimizer": self.optimizer})
        self.step, self.epoch, self.batches_done = 0, 1, 0
        self.train_losses: list[float] = []

    def fit(self, train: DynamicBatchSampler, valid: Sequence[Utterance]) -> None:
        """Trains to the last epoch, from the last checkpoint on."""
        found = self.checkpointer.recover_if_possible()
        if found is not None:
            self.epoch, self.step = found["counter"], found["brain"]["optimizer_step"]
            self.train_losses, self.batches_done = found["brain"]["losses"], found["dataloader-TRAIN"]
            if found["end-of-epoch"]:
                self._next_epoch()
        while self.epoch <= self.hparams["number_of_epochs"]:
            for number, batch in enumerate(train.epoch(self.epoch), start=1):
                if number > self.batches_done:
                    self.fit_batch(batch)
                    self.batches_done = number
                    if self.step % self.hparams["ckpt_interval_steps"] == 0 and number < len(train):
                        self._save({"end-of-epoch": False})
            self._end_epoch(valid)
            self._next_epoch()

    def fit_batch(self, batch: Batch) -> None:
        """One step of the optimizer."""
        hold = self.hparams["hold_until"] if self.step + 1 == self.hparams["hold_at_step"] else None
        while hold and not Path(hold).exists():
            time.sleep(0.1)
        self.model.train()
        loss = self.compute_objectives(batch)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 5.0)
        self.optimizer.step()
        self.step += 1
        mean = loss.detach() / world_size()
        if distributed.is_initialized():
            distributed.all_reduce(mean)
        self.train_losses.append(float(mean))
        self._log(f"step {self.step} loss {float(mean)!r}", "log.txt")

    def compute_objectives(self, batch: Batch) -> torch.Tensor:
        """The CTC loss of a batch."""
        features = [self.features(each) for each in batch]
        labels = [torch.tensor([1 + LETTERS.index(letter) for letter in each["words"]]) for each in batch]
        scores = self.model(nn.utils.rnn.pad_sequence(features, batch_first=True).to(self.device)).transpose(0, 1)
        frames, letters = (torch.tensor([len(each) for each in part]) for part in (features, labels))
        return nn.functional.ctc_loss(scores, torch.cat(labels).to(self.device), frames, letters, zero_infinity=True)

    def features(self, utterance: Utterance) -> torch.Tensor:
        """Log power (T, n_bins)."""
        size, hop, bins = (self.hparams[name] for name in ("n_fft", "hop_length", "n_bins"))
        samples, _ = soundfile.read(utterance["wav"], dtype="float32")
        window = torch.hann_window(size)
        power = torch.stft(torch.from_numpy(samples), size, hop, window=window, return_complex=True).abs().square()
        return torch.log(power[:bins] + 1e-4).T

    @torch.no_grad()
    def evaluate(self, utterances: Sequence[Utterance]) -> tuple[float, jiwer.WordOutput]:
        """The loss, and the words that were recognized; every rank computes the same."""
        self.model.eval()
        loss = float(self.compute_objectives(list(utterances)))
        hypotheses = []
        for utterance in utterances:
            best = self.network(self.features(utterance)[None].to(self.device))[0].argmax(-1).unique_consecutive()
            hypotheses.append("".join(LETTERS[number - 1] for number in best.tolist() if number))
        return loss, jiwer.process_words([each["words"] for each in utterances], hypotheses)

    def test(self, utterances: Sequence[Utterance]) -> None:
        """Writes the scores of the test set."""
        loss, words = self.evaluate(utterances)
        self._log(f"Epoch loaded: {self.epoch - 1} - test loss: {loss:.2f}, test WER: {100 * words.wer:.2f}")
        if rank() == 0:
            edits = words.insertions + words.deletions + words.substitutions
            total = words.hits + words.deletions + words.substitutions
            Path(self.hparams["test_wer_file"]).write_text(
                f"%WER {100 * words.wer:.2f} [ {edits} / {total}, {words.insertions} ins, {words.deletions} del, "
                f"{words.substitutions} sub ]\n"
            )

    def _end_epoch(self, valid: Sequence[Utterance]) -> None:
        train_loss = sum(self.train_losses) / len(self.train_losses)
        loss, words = self.evaluate(valid)
        wer = 100 * words.wer
        self._log(
            f"epoch: {self.epoch}, lr: {self.hparams['lr']:.2e} - train loss: {train_loss:.2f} - "
            f"valid loss: {loss:.2f}, valid WER: {wer:.2f}"
        )
        self._save({"WER": wer, "end-of-epoch": True})

    def _next_epoch(self) -> None:
        self.epoch, self.batches_done, self.train_losses = self.epoch + 1, 0, []

    def _save(self, meta: dict[str, Any]) -> None:
        brain = {"optimizer_step": self.step, "losses": self.train_losses}
        counters = {"counter": self.epoch, "brain": brain, "dataloader-TRAIN": self.batches_done}
        self.checkpointer.save_checkpoint(meta, counters, self.hparams["num_to_keep"])

    def _log(self, line: str, name: str | None = None) -> None:
        if rank() == 0:
            print(line, flush=True)
            path = Path(self.hparams["output_folder"]) / name if name else Path(self.hparams["train_log"])
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")


def read_json(path: str, data_root: str) -> list[Utterance]:
    """The utterances of a manifest."""
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    return [{**each, "wav": each["wav"].replace("{data_root}", data_root)} for each in content.values()]


def main() -> None:
    """Prepares the data, trains, and tests."""
    param_file, run_opts, overrides = parse_arguments(sys.argv[1:])
    ddp_init_group(run_opts)
    hparams = load_hparams(Path(param_file).read_text(encoding="utf-8"), overrides)
    run_on_main(create_experiment_directory, {"folder": hparams["output_folder"], "param_file": param_file})
    names = ("data_folder", "manifest_folder", "skip_prep")
    run_on_main(prepare_digits, {name: hparams[name] for name in names})
    train, valid, test = (
        read_json(hparams[f"{split}_annotation"], hparams["data_folder"]) for split in ("train", "valid", "test")
    )
    brain = ASR(hparams, run_opts)
    brain.fit(DynamicBatchSampler(train, hparams["max_batch_length"], hparams["seed"]), valid)
    brain.test(test)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
