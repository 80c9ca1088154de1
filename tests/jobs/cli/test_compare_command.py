"""`rayscribe compare`: runs and files of any system, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jobs.cli.app import app, main
from tests.trainers.scoring.report.parsed_page import Page, check_page
from trainers.run_folder.layout import RunFolder
from trainers.scoring.error_rate import score_texts
from trainers.scoring.normalizers import normalizer_named
from trainers.storage import open_storage

REFERENCES = {
    "a-1": "One, two three four.",
    "a-2": "Five six seven!",
    "b-1": "Eight nine",
    "b-2": "Ten eleven twelve",
}
FIRST = {"a-1": "one two tree four", "a-2": "five six seven", "b-1": "ate nine", "b-2": "ten twelve"}
SECOND = {"a-1": "one two three four", "a-2": "five six seven", "b-1": "eight nine", "b-2": "ten eleven eleven twelve"}


def evaluated(
    folder: Path,
    hypotheses: dict[str, str],
    references: dict[str, str] = REFERENCES,
    normalizer: str = "basic",
    experiment: dict[str, Any] | None = None,
) -> str:
    """What a run, or `rayscribe evaluate`, leaves of a score."""
    normalize = normalizer_named(normalizer)
    total, scores = score_texts(
        [hypotheses[id] for id in references], [*references.values()], normalize, ids=[*references]
    )
    run = RunFolder(open_storage(str(folder)))
    totals = {**total.to_json_dict(), **normalize.to_json_dict()}
    run.write_evaluation("test", totals, (score.to_json_dict() for score in scores))
    run.write_json("experiment.json", {"id": "x", "experiment": experiment or {}, "lengths": [{"max_steps": 8}]})
    run.write_json("environment.json", {"data": {"test": "d1"}, "packages": {"torch": "2.13.0"}})
    return str(folder)


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def compared(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["compare", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))
    small = evaluated(tmp_path / "small", FIRST, experiment={"model.d_model": 32, "run.seed": 1})
    return small, evaluated(tmp_path / "large", SECOND, experiment={"model.d_model": 64, "run.seed": 1})


def test_two_evaluations_are_compared_by_utterance_and_what_differs_is_named(runs: tuple[str, str]) -> None:
    found = compared(*runs)
    assert found["systems"]["small"]["rate"] == pytest.approx(100 * 3 / 12)
    assert found["systems"]["large"]["rate"] == pytest.approx(100 * 1 / 12)
    pair = found["paired"]["large"]
    assert (pair["wins"], pair["losses"], pair["ties"]) == (2, 0, 2)
    assert pair["difference"] == pytest.approx(-100 * 2 / 12)
    assert (pair["test"]["segments"], pair["test"]["mean"]) == (3, pytest.approx(2 / 3))
    assert (found["against"], found["utterances"], found["normalizer"]) == ("small", 4, "basic")
    assert found["differing_settings"] == {"model.d_model": [32, 64]}


def test_a_score_at_the_full_context_stands_next_to_the_one_that_is_compared(
    tmp_path: Path, runs: tuple[str, str]
) -> None:
    totals = Path(runs[0]) / "evaluation" / "test.json"
    full = {"context_s": 30.0, "wer": 41.5, "cer": 20.0, "ser": 75.0}
    written(totals, json.dumps({**json.loads(totals.read_bytes()), "full_context": full}))
    systems = compared(*runs)["systems"]
    assert (systems["small"]["full_context_rate"], systems["large"]["full_context_rate"]) == (41.5, None)
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["compare", *runs, "--html", str(page)])
    both = "small: WER 25.00% short context, 41.50% full context; the comparison uses the short context"
    assert both in result.output.splitlines()
    assert "Full context" in page.read_text() and "41.50%" in page.read_text()
    # Of another normalizer than that of the score, it is not known.
    assert compared(*runs, "--normalizer", "none")["systems"]["small"]["full_context_rate"] is None


def test_other_systems_output_is_compared_with_a_runs_references(tmp_path: Path, runs: tuple[str, str]) -> None:
    rows = [*FIRST.items()]
    csv = written(tmp_path / "w.csv", "id,hypothesis\n" + "".join(f'{id},"{text}, "\n' for id, text in rows[::-1]))
    tsv = written(tmp_path / "x.tsv", "text\tid\n" + "".join(f"{text}\t{id}\n" for id, text in rows))
    trn = written(tmp_path / "y.trn", "".join(f"{text} ({id})\n" for id, text in rows))
    jsonl = written(tmp_path / "z.jsonl", "".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in rows))
    semicolons = written(tmp_path / "v.csv", "id;text\n" + "".join(f"{id};{text}\n" for id, text in rows))
    found = compared(runs[0], csv, tsv, trn, jsonl, semicolons)
    assert [*found["paired"]] == ["w.csv", "x.tsv", "y.trn", "z.jsonl", "v.csv"]
    for pair in found["paired"].values():
        assert (pair["difference"], pair["interval"], pair["ties"], pair["test"]["p"]) == (0.0, [0.0, 0.0], 4, 1.0)
    assert found["differing_settings"] == {}


def test_the_table_says_who_is_better_and_details_have_each_utterance(tmp_path: Path, runs: tuple[str, str]) -> None:
    details = tmp_path / "details.jsonl"
    result = CliRunner().invoke(app, ["compare", *runs, "--details", str(details)])
    lines = result.output.splitlines()
    assert lines[0] == "4 utterances, 12 words · normalizer basic 1"
    assert lines[1].split() == ["SYSTEM", "WER", "95%", "DIFFERENCE", "95%", "P", "BETTER", "WORSE"]
    assert lines[2].startswith("small   25.00%") and lines[3].startswith("large   8.33%")
    assert lines[4] == (
        "large has significantly fewer errors than small: p = 0.046, z = 2.00 (matched pairs, 3 segments of words)"
    )
    assert lines[5:] == ["what differs:", "FIELD          small  large", "model.d_model  32     64"]
    first, *others = map(json.loads, details.read_text(encoding="utf-8").splitlines())
    assert first == {
        "id": "a-1",
        "reference": "one two three four",
        "hypotheses": {"small": "one two tree four", "large": "one two three four"},
        "errors": {"small": 1, "large": 0},
    }
    assert len(others) == 3


def test_the_page_has_the_utterances_that_differ_most_and_escapes_names(tmp_path: Path, runs: tuple[str, str]) -> None:
    other = written(tmp_path / "<b>.csv", "id,text\n" + "".join(f"{id},{text}\n" for id, text in FIRST.items()))
    page = tmp_path / "compared.html"
    result = CliRunner().invoke(app, ["compare", *runs[::-1], other, "--html", str(page)])
    assert result.exit_code == 0, result.output
    html = page.read_text(encoding="utf-8")
    check_page(html)
    texts = Page(html).texts
    assert texts["h1"] == ["large and small and <b>.csv"]
    assert texts["h2"] == ["Scores", "small and large", "<b>.csv and large", "What differs"]
    assert [text for text in texts["h3"] if "fewer" in text][:2] == [
        "Where small has fewer errors",
        "Where large has fewer errors",
    ]
    # Of both pairs: where large is right, and where each system has an error of its own is no difference.
    assert texts["strong"] == ["b-1", "a-1"] * 2 or texts["strong"] == ["a-1", "b-1"] * 2
    assert {"three", "eight"} <= {*texts["del"]} and {"tree", "ate"} <= {*texts["ins"]}
    assert "model.d_model" in texts["th"]
    assert any("small has significantly more errors than large" in text for text in texts["li"])


def test_a_difference_that_may_be_chance_is_said_to_be_one(tmp_path: Path, runs: tuple[str, str]) -> None:
    other = evaluated(tmp_path / "other", {**FIRST, "a-1": "one two three four", "a-2": "five six eleven"})
    lines = CliRunner().invoke(app, ["compare", runs[0], other]).output.splitlines()
    assert (
        "other and small do not differ significantly: p = 1.000, z = 0.00 (matched pairs, 4 segments of words)" in lines
    )


def test_a_language_without_spaces_is_compared_by_characters(tmp_path: Path, runs: tuple[str, str]) -> None:
    # Only a run has a config next to its score.
    written(Path(runs[0]) / "config.yaml", "model: {language: th}\n")
    assert compared(*runs)["metric"] == "cer"
    (Path(runs[0]) / "config.yaml").unlink()
    totals = Path(runs[1]) / "evaluation" / "test.json"
    written(totals, json.dumps({**json.loads(totals.read_bytes()), "language": "Thai"}))
    found = compared(*runs)
    assert (found["metric"], "characters" in found) == ("cer", True)
    assert compared(*runs, "--metric", "wer")["metric"] == "wer"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["compare", *arguments])
    return code, capsys.readouterr().err


def test_other_references_are_refused_and_ways_to_write_the_same_are_not(
    tmp_path: Path, runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {id: normalizer_named("basic")(text) for id, text in REFERENCES.items()}
    assert compared(runs[0], evaluated(tmp_path / "plain", SECOND, plain))["utterances"] == 4
    changed = evaluated(tmp_path / "changed", SECOND, {**REFERENCES, "b-1": "Eight men"})
    code, text = refused(capsys, runs[0], changed)
    assert code == 3
    assert "1 references of changed are not those of small (b-1: 'Eight nine' and 'Eight men')" in text
    fewer = evaluated(tmp_path / "fewer", SECOND, {id: REFERENCES[id] for id in ("a-1", "a-2", "b-1")})
    code, text = refused(capsys, runs[0], fewer)
    assert (code, "the utterances of fewer are not the 4 of small: 1 not scored ('b-2')" in text) == (3, True)


def test_other_normalizers_are_refused_unless_all_are_scored_again(
    tmp_path: Path, runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    other = evaluated(tmp_path / "other", SECOND, normalizer="none")
    code, text = refused(capsys, runs[0], other)
    assert (code, "(small: basic 1, other: none 1), so they do not compare" in text) == (2, True)
    assert "--normalizer basic" in text
    assert compared(runs[0], other, "--normalizer", "basic")["systems"]["other"]["errors"] == 1
    # Scores of an earlier version of a normalizer are not those of now.
    totals = json.loads((Path(runs[0]) / "evaluation" / "test.json").read_bytes())
    written(Path(runs[0]) / "evaluation" / "test.json", json.dumps({**totals, "normalizer_version": "0"}))
    code, text = refused(capsys, runs[0], written(tmp_path / "x.trn", ""))
    assert code == 3 and "x.trn: no utterances" in text
    code, text = refused(capsys, runs[0], other)
    assert (code, "small: basic 0" in text) == (2, True)


def test_what_cannot_be_compared_is_named_with_its_fix(
    tmp_path: Path, runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (written(tmp_path / name, "a (1)\n") for name in ("one.trn", "two.trn"))
    for arguments, expected_code, expected in (
        ((runs[0],), 2, "name at least two systems"),
        ((runs[0], runs[0]), 2, "each once"),
        ((one, two), 2, "none of these has references"),
        ((*runs, "--split", "validation"), 2, "validation has not been scored: it has test (--split)"),
        ((*runs, "--metric", "ser"), 2, "--metric ser: systems are compared by wer or cer"),
        ((runs[0], str(tmp_path / "nothing")), 21, "no run is in"),
        ((runs[0], "unheard-of"), 21, "no run is named unheard-of"),
        ((*runs, "--normalizer", "nfkc"), 2, "normalizer 'nfkc' is not known"),
    ):
        code, text = refused(capsys, *arguments)
        assert (code, expected in text) == (expected_code, True), text
    # Of files alone the references are named; they are scored as `rayscribe score` does.
    assert compared(one, two, "--reference", one)["normalizer"] == "basic"


def test_a_normalizer_that_hides_marks_is_warned_of(tmp_path: Path) -> None:
    one, two = (written(tmp_path / f"{name}.trn", f"{text} (1)\n") for name, text in (("a", "किताब"), ("b", "कीताब")))
    arguments = ["compare", one, two, "--reference", one, "--json"]
    result = CliRunner().invoke(app, [*arguments, "--normalizer", "whisper_basic"])
    assert "warning: the normalizer whisper_basic removes marks from 1 of 1 words" in result.stderr
    assert CliRunner().invoke(app, arguments).stderr == ""


def test_a_damaged_line_is_named(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(runs[0]) / "evaluation" / "test.jsonl"
    for line, expected in (("{", "line 5 is not JSON"), ('{"id": "x"}', "line 5 lacks id, reference, hypothesis")):
        good = path.read_text(encoding="utf-8")
        path.write_text(f"{good}{line}\n", encoding="utf-8")
        code, text = refused(capsys, *runs)
        assert (code, expected in text) == (3, True), text
        path.write_text(good, encoding="utf-8")
