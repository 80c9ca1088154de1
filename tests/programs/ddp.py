"""Trains a small CTC recognizer with DistributedDataParallel, and nothing else than torch."""

import argparse
import csv
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jiwer
import soundfile
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

LETTERS = " abcdefghijklmnopqrstuvwxyz"
WINDOW, HOP, BINS = 400, 160, 64
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class Clips(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The clips of a CSV file: log power (T, BINS), and the numbers of its letters (L,)."""

    def __init__(self, manifest: Path):
        """Reads all of them."""
        with manifest.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.texts = [row["text"] for row in rows]
        self.features = [self._features(manifest.parent / row["audio"]) for row in rows]

    @staticmethod
    def _features(path: Path) -> torch.Tensor:
        samples, _ = soundfile.read(path, dtype="float32")
        window = torch.hann_window(WINDOW)
        power = torch.stft(torch.from_numpy(samples), WINDOW, HOP, window=window, return_complex=True).abs().square()
        return torch.log(power[:BINS] + 1e-4).T

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = [1 + LETTERS.index(letter) for letter in self.texts[index]]
        return self.features[index], torch.tensor(numbers)


def pad(clips: list[tuple[torch.Tensor, torch.Tensor]]) -> Batch:
    """Features (B, T, BINS), their lengths, all labels in a row, their lengths."""
    features, labels = zip(*clips, strict=True)
    return (
        nn.utils.rnn.pad_sequence(list(features), batch_first=True),
        torch.tensor([len(each) for each in features]),
        torch.cat(labels),
        torch.tensor([len(each) for each in labels]),
    )


class Recognizer(nn.Module):
    """A recurrent network that scores each letter, and a blank, at each frame."""

    def __init__(self, size: int):
        """Makes its layers."""
        super().__init__()
        self.norm = nn.LayerNorm(BINS)
        self.recurrent = nn.GRU(BINS, size, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.1)
        self.output = nn.Linear(2 * size, 1 + len(LETTERS))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.norm(features))
        scores: torch.Tensor = self.output(self.dropout(hidden))
        return scores.log_softmax(-1)


class Checkpoints:
    """Folders of an output folder, `checkpoint_epoch_N`; that of an epoch which is not over is replaced at its end."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer):
        """Writes nothing yet."""
        self._folder, self._model, self._optimizer = folder, model, optimizer

    def save(self, state: dict[str, Any]) -> None:
        """Rank 0 writes one under another name, so that a folder of this name is complete."""
        if dist.get_rank() == 0:
            path = self._folder / f"checkpoint_epoch_{state['epoch']}"
            part = path.with_name(f"tmp_{path.name}")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            torch.save(self._model.state_dict(), part / "model.pt")
            torch.save(self._optimizer.state_dict(), part / "optimizer.pt")
            (part / "state.json").write_text(json.dumps(state))
            shutil.rmtree(path, ignore_errors=True)
            part.rename(path)
            print(f"saved {path}", flush=True)
        dist.barrier()

    def load_newest(self) -> dict[str, Any]:
        """Where training goes on."""
        found = [path for path in self._folder.glob("checkpoint_epoch_*") if path.is_dir()]
        if not found:
            return {"epoch": 1, "step": 0, "log": []}
        newest = max(found, key=lambda path: int(path.name.rpartition("_")[2]))
        self._model.load_state_dict(torch.load(newest / "model.pt"))
        self._optimizer.load_state_dict(torch.load(newest / "optimizer.pt"))
        state: dict[str, Any] = json.loads((newest / "state.json").read_text())
        if dist.get_rank() == 0:
            print(f"resumed from {newest}: epoch {state['epoch']}, {state['step']} of its steps", flush=True)
        return state


class Training:
    """A training of this process, one of several."""

    def __init__(self, args: argparse.Namespace):
        """Makes or loads all that it needs."""
        self.args, self.folder = args, Path(args.output_dir)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.valid, train = Clips(Path(args.data) / "valid.csv"), Clips(Path(args.data) / "train.csv")
        self.sampler: DistributedSampler[Any] = DistributedSampler(train, seed=args.seed)
        self.loader = DataLoader(train, args.batch_size, sampler=self.sampler, collate_fn=pad)
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else "cpu"
        self.network = Recognizer(args.size).to(self.device)
        self.model = DistributedDataParallel(self.network)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), args.lr)
        self.checkpoints = Checkpoints(self.folder, self.network, self.optimizer)
        self.state = self.checkpoints.load_newest()
        if self.state["step"] == len(self.loader):
            self.state.update(epoch=self.state["epoch"] + 1, step=0)
        self.stop = torch.zeros(1, device=self.device)
        signal.signal(signal.SIGTERM, self._ask_to_stop)

    def run(self) -> None:
        """Trains to the last epoch, or to a signal."""
        if self.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
        while self.state["epoch"] <= self.args.epochs:
            self._train_epoch()
            if self.rank == 0:
                self.state["log"][-1]["valid_wer"] = self._word_error_rate()
                (self.folder / "log.json").write_text(json.dumps(self.state["log"], indent=1))
                print(f"epoch {self.state['epoch']} valid WER {self.state['log'][-1]['valid_wer']:.2f}", flush=True)
            self.checkpoints.save(self.state)
            self.state.update(epoch=self.state["epoch"] + 1, step=0)
        if self.rank == 0:
            torch.save(self.network.state_dict(), self.folder / "model.pt")

    def _train_epoch(self) -> None:
        self.sampler.set_epoch(self.state["epoch"])
        self.model.train()
        for step, batch in enumerate(self.loader, start=1):
            if step <= self.state["step"]:
                continue
            number = (self.state["epoch"] - 1) * len(self.loader) + step
            self._hold_or_fail_where_asked(number)
            # What is random depends on nothing before.
            torch.manual_seed(1000 * self.args.seed + self.world_size * number + self.rank)
            loss = self._train_step(batch)
            self.state["step"] = step
            self.state["log"].append({"epoch": self.state["epoch"], "step": number, "loss": loss})
            if self.rank == 0:
                print(f"epoch {self.state['epoch']} step {number} loss {loss!r}", flush=True)
            dist.all_reduce(self.stop, dist.ReduceOp.MAX)
            if self.stop.item() and step < len(self.loader):
                self.checkpoints.save(self.state)
                print(f"rank {self.rank} stopped at step {number}", flush=True)
                sys.exit(128 + signal.SIGTERM)

    def _train_step(self, batch: Batch) -> float:
        """The mean loss of all ranks."""
        loss = self._loss(self.model, batch)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 5.0)
        self.optimizer.step()
        shown = loss.detach() / self.world_size
        dist.all_reduce(shown)
        return float(shown)

    def _loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        features, frames, labels, letters = (each.to(self.device) for each in batch)
        scores = model(features).transpose(0, 1)
        return nn.functional.ctc_loss(scores, labels, frames, letters, zero_infinity=True)

    @torch.no_grad()
    def _word_error_rate(self) -> float:
        """Percent."""
        self.network.eval()
        hypotheses = []
        for features in self.valid.features:
            best = self.network(features[None].to(self.device))[0].argmax(-1).unique_consecutive()
            hypotheses.append("".join(LETTERS[number - 1] for number in best.tolist() if number))
        return 100 * float(jiwer.wer(self.valid.texts, hypotheses))

    def _ask_to_stop(self, number: int, frame: object) -> None:
        self.stop.fill_(1)

    def _hold_or_fail_where_asked(self, number: int) -> None:
        hold = self.args.hold_until if number == self.args.hold_at_step else None
        while hold and not Path(hold).exists() and not self.stop.item():
            time.sleep(0.1)
        if number == self.args.fail_at_step and self.args.fail_rank in (None, self.rank):
            print(f"rank {self.rank} gives up at step {number}", flush=True)
            sys.exit(self.args.exit_code)


def main() -> None:
    """Reads arguments, joins the other processes, and trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data", help="folder of train.csv and valid.csv")
    parser.add_argument("--output-dir", default="out")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hold-at-step", type=int, help="waits before this step for --hold-until, a file")
    parser.add_argument("--hold-until")
    parser.add_argument("--fail-at-step", type=int)
    parser.add_argument("--fail-rank", type=int, help="the rank that fails; default: all")
    parser.add_argument("--exit-code", type=int, default=1)
    args = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    Training(args).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
