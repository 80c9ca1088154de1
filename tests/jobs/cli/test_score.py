"""`rayscribe score`: our counts on files of any system, against jiwer and against NIST's sclite."""

import json
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import jiwer
import pytest
from typer.testing import CliRunner, Result

from jobs.cli.app import app, main
from tests.trainers.scoring.sentences import SENTENCES
from trainers.scoring.error_rate import score_utterance
from trainers.scoring.normalizers import NORMALIZERS

KEYS = {"utterances", "words", "insertions", "deletions", "substitutions", "wer", "cer", "ser"}
VOCABULARY = sorted({word for sentence in SENTENCES for word in sentence.basic.split()})
# sclite aligns by these costs: NIST's SCTK, doc/sclite.htm, "DP alignment".
SCLITE_INSERTION = SCLITE_DELETION = 3
SCLITE_SUBSTITUTION = 4


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["score", *arguments])


def scored(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


def random_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """References and what was misheard of them, in many scripts; some of either are empty."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        said = [rng.choice(VOCABULARY) for _ in range(rng.randrange(9))]
        heard = [word if rng.random() < 0.6 else rng.choice(VOCABULARY) for word in said if rng.random() < 0.85]
        heard += [rng.choice(VOCABULARY) for _ in range(rng.choice((0, 0, 1, 3)))]
        pairs.append((" ".join(said), " ".join(heard)))
    return pairs


def files_of(folder: Path, pairs: list[tuple[str, str]], suffix: str) -> tuple[str, str]:
    """Hypotheses and references in one format."""

    def line(number: int, text: str, key: str) -> str:
        if suffix == ".txt":
            return text
        return f"{text} (s_{number})" if suffix == ".trn" else json.dumps({"id": f"s_{number}", key: text})

    heard, said = (
        "".join(line(number, pair[place], key) + "\n" for number, pair in enumerate(pairs))
        for place, key in ((1, "hypothesis"), (0, "reference"))
    )
    return written(folder / f"heard{suffix}", heard), written(folder / f"said{suffix}", said)


@pytest.mark.parametrize("suffix", [".txt", ".trn", ".jsonl"])
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_counts_and_rates_are_those_of_jiwer(tmp_path: Path, suffix: str, normalizer: str) -> None:
    pairs = random_pairs(60, seed=1)
    heard, said = files_of(tmp_path, pairs, suffix)
    total = scored(heard, "--reference", said, "--normalizer", normalizer)["total"]
    normalize = NORMALIZERS[normalizer]
    references, hypotheses = ([normalize(pair[place]) for pair in pairs] for place in (0, 1))
    words, characters = jiwer.process_words(references, hypotheses), jiwer.process_characters(references, hypotheses)
    assert KEYS | {"normalizer", "normalizer_version"} <= set(total)
    assert (total["insertions"], total["deletions"], total["substitutions"]) == (
        words.insertions,
        words.deletions,
        words.substitutions,
    )
    assert total["words"] == sum(len(text.split()) for text in references)
    assert (total["wer"], total["cer"]) == (pytest.approx(100 * words.wer), pytest.approx(100 * characters.cer))
    wrong = sum(said != heard for said, heard in zip(references, hypotheses, strict=True))
    assert total["ser"] == pytest.approx(100 * wrong / len(pairs))
    assert (total["normalizer"], total["normalizer_version"]) == (normalizer, normalize.version)


def sclite_counts(heard: str, said: str) -> dict[str, tuple[int, int, int]]:
    """Of each id, the insertions, deletions and substitutions that NIST's sclite finds."""
    command = ["sctk", "sclite", "-i", "spu_id", "-e", "utf-8", "-s", "-o", "pralign", "stdout"]
    command += ["-r", said, "trn", "-h", heard, "trn"]
    report = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout.decode("utf-8", "replace")
    found = re.findall(r"^id: \((\S+)\)\nScores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)", report, re.MULTILINE)
    return {id: (int(inserted), int(deleted), int(replaced)) for id, _, replaced, deleted, inserted in found}


def cost(insertions: int, deletions: int, substitutions: int) -> int:
    """What an alignment costs sclite."""
    return SCLITE_INSERTION * insertions + SCLITE_DELETION * deletions + SCLITE_SUBSTITUTION * substitutions


@pytest.mark.system
def test_counts_are_those_of_sclite_but_where_its_costs_prefer_another_alignment(tmp_path: Path) -> None:
    """sclite weighs a substitution 4 and the other edits 3, we weigh each 1, so that ours is the shortest.

    Both are then right by their own costs: ours has never more errors, and sclite's alignment is never the dearer one.
    """
    pairs = random_pairs(400, seed=2)
    heard, said = files_of(tmp_path, pairs, ".trn")
    details = tmp_path / "details.jsonl"
    scored(heard, "--reference", said, "--normalizer", "none", "--details", str(details))
    ours = {line["id"]: line for line in map(json.loads, details.read_bytes().splitlines())}
    theirs = sclite_counts(heard, said)
    assert set(theirs) == set(ours)
    same = 0
    for id, line in ours.items():
        mine = (line["insertions"], line["deletions"], line["substitutions"])
        assert mine[0] - mine[1] == theirs[id][0] - theirs[id][1], "both are alignments of these lengths"
        assert sum(mine) <= sum(theirs[id]), id
        assert cost(*theirs[id]) <= cost(*mine), id
        same += sum(mine) == sum(theirs[id])
    assert same > 0.95 * len(pairs)


def test_marks_of_a_script_count(tmp_path: Path) -> None:
    said = written(tmp_path / "said.txt", "मेरी बहन की किताब मेज़ पर\n")
    heard = written(tmp_path / "heard.txt", "मेरा बहन का किताब मेज़ पर\n")
    total = scored(heard, "--reference", said)["total"]
    assert (total["words"], total["substitutions"], total["wer"]) == (6, 2, pytest.approx(100 * 2 / 6))
    eaten = scored(heard, "--reference", said, "--normalizer", "whisper_basic")["total"]
    assert eaten["wer"] == 0.0


def test_a_normalizer_that_hides_marks_is_warned_of(tmp_path: Path) -> None:
    said = written(tmp_path / "said.txt", "മലയാളം പഠിക്കുന്നു നല്ലത്\n")
    heard = written(tmp_path / "heard.txt", "മലയാളം പഠീക്കുന്നു നല്ലത്\n")
    result = run(heard, "--reference", said, "--language", "ml", "--normalizer", "whisper_basic")
    assert "warning: the normalizer whisper_basic removes marks from 3 of 3 words" in result.stderr
    plain = run(heard, "--reference", said, "--language", "ml")
    assert (plain.stderr, plain.stdout.splitlines()[0]) == ("", "WER 33.3% on 1 utterance · normalizer basic 1")


def test_a_language_without_spaces_shows_cer_first_and_says_why(tmp_path: Path) -> None:
    said, heard = written(tmp_path / "said.txt", "กินน้ำ\n"), written(tmp_path / "heard.txt", "กินน้า\n")
    lines = run(heard, "--reference", said, "--language", "th").output.splitlines()
    assert lines == [
        "CER 16.7%, WER 100.0% on 1 utterance · CER ranks: th is written without spaces between words"
        " · normalizer basic 1",
        "  1 words: 0 insertions, 0 deletions, 1 substitutions",
        "  6 characters: 0 insertions, 0 deletions, 1 substitutions",
        "  CER 16.7% · SER 100.0% · 0 empty references",
    ]
    content = scored(heard, "--reference", said, "--language", "th")
    assert (content["ranked_by"], content["total"]["wer"]) == ("cer", 100.0)
    assert scored(heard, "--reference", said)["ranked_by"] == "wer"


def test_lines_are_compared_as_they_stand_and_ids_in_them_are_not_guessed(tmp_path: Path) -> None:
    said = written(tmp_path / "said.txt", "u1 yes\n\nline\u2028separator\nu2 no\n")
    heard = written(tmp_path / "heard.txt", "u2 no\r\nuh\r\nline separator\r\nu1 yes")
    total = scored(heard, "--reference", said)["total"]
    assert (total["utterances"], total["substitutions"], total["insertions"], total["words"]) == (4, 4, 1, 6)
    assert total["empty_references"] == 1


def test_ids_may_come_in_any_order_and_from_another_kind_of_file(tmp_path: Path) -> None:
    said = written(tmp_path / "said.trn", ";; a comment\nhello (the) world (b-2)\n\nyes (a-1)\n(c-3)\n")
    lines = [
        {"id": "c-3", "pred_text": ""},
        {"id": "a-1", "pred_text": "yes"},
        {"id": "b-2", "pred_text": "hello world"},
    ]
    heard = written(tmp_path / "heard.jsonl", "".join(json.dumps(line) + "\n\n" for line in lines))
    total = scored(heard, "--reference", said)["total"]
    assert (total["utterances"], total["words"], total["deletions"], total["substitutions"]) == (3, 4, 1, 0)


def test_quotes_in_two_texts_of_a_table_take_no_utterance_between_them(tmp_path: Path) -> None:
    lines = 'id,text\nu1,one\nu2,"two he\nu3,three\nu4,four"\nu5,five\n'
    table = written(tmp_path / "a.csv", lines)
    result = CliRunner().invoke(app, ["score", table, "--reference", table])
    assert "the quote that opens in line 3 closes in line 5" in str(result.exception)
    assert "if the file has no quotes around fields, save it with tabs as .tsv" in str(result.exception)
    tabs = written(tmp_path / "a.tsv", lines.replace(",", "\t"))
    assert scored(tabs, "--reference", tabs)["total"]["utterances"] == 5
    quoted = written(tmp_path / "b.csv", 'id,text\nu1,"one\ntwo"\nu2,three\n')
    assert scored(quoted, "--reference", quoted)["total"]["utterances"] == 2


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", "id,text\nu1,one\nu2,one two, three\n", "line 3 has 3 fields where the header has 2: quote a field"),
        ("a.tsv", "id\ttext\nu1\tone\ttwo\n", "line 2 has 3 fields where the header has 2: take tabs out"),
        ("a.csv", "id,text,text\nu1,one,two\n", "the column 'text' is listed twice"),
        ("a.csv", "id,text,speaker\nu1,one\n", "line 2 has 2 fields where the header has 3"),
    ],
)
def test_words_of_a_table_that_no_column_has_are_refused(tmp_path: Path, name: str, content: str, problem: str) -> None:
    table = written(tmp_path / name, content)
    result = run(table, "--reference", table)
    assert problem in str(result.exception)


def test_a_table_that_says_what_separates_its_columns_is_read_by_it(tmp_path: Path) -> None:
    table = written(tmp_path / "a.csv", "sep=;\nid;text\nu1;one, two\nu2;three\n")
    total = scored(table, "--reference", table)["total"]
    assert (total["utterances"], total["words"]) == (2, 3)


def test_an_evaluation_of_ours_is_scored_again_and_its_details_are_lines_of_an_evaluation(tmp_path: Path) -> None:
    lines = [score_utterance(str(number), *pair, 1.5) for number, pair in enumerate(random_pairs(9, seed=3))]
    path = written(tmp_path / "test.jsonl", "".join(json.dumps(line.to_json_dict()) + "\n" for line in lines))
    again = tmp_path / "again.jsonl"
    scored(path, "--reference", path, "--normalizer", "none", "--details", str(again))
    assert [json.loads(line) for line in again.read_bytes().splitlines()] == [line.to_json_dict() for line in lines]


def test_details_replace_no_file_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = written(tmp_path / "a.jsonl", '{"id": "1", "text": "a"}\n')
    before = Path(table).read_bytes()
    arguments = ["score", table, "--reference", table, "--details", table]
    assert main(arguments) == 2
    assert "a.jsonl: already exists: add --force" in capsys.readouterr().err
    assert Path(table).read_bytes() == before
    assert main([*arguments, "--force"]) == 0
    assert "sentence" not in Path(table).read_text() and '"words": 1' in Path(table).read_text()


def test_references_without_words_have_no_rate(tmp_path: Path) -> None:
    said, heard = written(tmp_path / "said.txt", "...\n"), written(tmp_path / "heard.txt", "uh\n")
    assert scored(heard, "--reference", said)["total"]["wer"] is None
    assert run(heard, "--reference", said).output.startswith("WER undefined on 1 utterance · normalizer basic 1")


@pytest.mark.parametrize(
    ("hypotheses", "references", "code", "expected"),
    [
        (("h.txt", "a\nb\n"), ("r.txt", "a\n"), 3, "h.txt has 2 lines and {folder}/r.txt has 1"),
        (("h.txt", "a\n\n"), ("r.txt", "a\n"), 3, "h.txt has 2 lines"),
        (("h.trn", "a (1)\n"), ("r.trn", "a (1)\nb (2)\n"), 3, "1 not scored ('2')"),
        (("h.trn", "a (1)\nb (3)\n"), ("r.trn", "a (1)\n"), 3, "1 scored but not asked for ('3')"),
        (("h.trn", "a (1)\nb (1)\n"), ("r.trn", "a (1)\n"), 3, "h.trn: the id '1' comes more than once"),
        (("h.txt", "a\n"), ("r.trn", "a (1)\n"), 3, "h.txt goes by line and {folder}/r.trn by id"),
        (("h.trn", "a\n"), ("r.trn", "a (1)\n"), 3, "h.trn: line 1 does not end with an id in parentheses"),
        (("h.trn", "{ a / b } c (1)\n"), ("r.trn", "a (1)\n"), 3, "h.trn: line 1 has alternatives"),
        (("h.jsonl", '{"text": "a"}\n'), ("r.trn", "a (1)\n"), 3, "h.jsonl: line 1 has no id"),
        (("h.jsonl", '{"id": "1"}\n'), ("r.trn", "a (1)\n"), 3, "h.jsonl: line 1 has no text"),
        (("h.jsonl", "{\n"), ("r.trn", "a (1)\n"), 3, "h.jsonl: line 1 is not JSON"),
        (("h.txt", ""), ("r.txt", ""), 3, "h.txt: no utterances"),
        (("h.docx", "a\n"), ("r.txt", "a\n"), 2, "h.docx: the extension '.docx' is not known"),
    ],
)
def test_files_that_cannot_be_compared_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    hypotheses: tuple[str, str],
    references: tuple[str, str],
    code: int,
    expected: str,
) -> None:
    heard, said = (written(tmp_path / name, text) for name, text in (hypotheses, references))
    assert main(["score", heard, "--reference", said]) == code
    assert expected.format(folder=tmp_path) in capsys.readouterr().err


def test_a_file_that_is_not_there_or_not_text_and_an_unknown_normalizer_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, latin = written(tmp_path / "said.txt", "a\n"), tmp_path / "latin.txt"
    latin.write_bytes(b"a\nna\xefve\n")
    for arguments, code, expected in (
        ([str(tmp_path / "no.txt"), "--reference", said], 2, "no.txt: No such file or directory"),
        ([str(latin), "--reference", said], 3, "latin.txt: line 2 is not UTF-8"),
        ([said, "--reference", said, "--normalizer", "whisper"], 2, "normalizer 'whisper' is not known"),
        ([said, "--reference", said, "--details", str(tmp_path / "no" / "x")], 2, "no/x: No such file or directory"),
    ):
        assert main(["score", *arguments]) == code
        assert expected in capsys.readouterr().err
