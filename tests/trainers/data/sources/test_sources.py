from pathlib import Path

import pytest

from tests.object_stores import options_of
from tests.s3 import FaultProxy, of_every_bucket
from tests.trainers.synthetic import add_languages, speechlike, write_recording, write_rows
from trainers.config.parts.data_part import DataPart, FingerprintKind
from trainers.config.storage_location import StorageOptions
from trainers.data.sources.data_source import SPLITS, SourceSplit
from trainers.data.sources.known_sources import open_sources, source_of
from trainers.data.sources.manifest_source import open_mixed_sources
from trainers.errors import DataError, NotHereError
from trainers.storage import Storage, open_storage


def test_a_recording_at_a_url_that_none_opens_is_named_without_its_password(tmp_path: Path) -> None:
    manifest = write_rows(tmp_path / "train.csv", [("https://me:word@host/a.wav?key=1", "text")])
    data = DataPart(train=str(manifest), validation="/nowhere.csv")
    with pytest.raises(DataError, match=r"recording https://…@host/a.wav: it contains a user name"):
        open_sources(data, storage_options=StorageOptions(), splits=("train",))


def test_what_opens_a_manifest_says_which_column_is_not_read_because_of_its_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.csv").write_text("path,text,Speaker,Language\na.wav,x,ana,sr\n")
    data = DataPart(train=str(tmp_path / "train.csv"), validation="/nowhere.csv")
    with pytest.raises(DataError, match="the column 'Language' is not read"):
        open_sources(data, storage_options=StorageOptions(), splits=("train",))
    one_language = data.model_copy(update={"use_language_column": False})
    open_sources(one_language, storage_options=StorageOptions(), splits=("train",))
    assert "warning: data.train: " in (said := capsys.readouterr().out) and "'Speaker' is not read" in said


def test_manifests_of_this_machine_are_missed_without_being_read(tmp_path: Path) -> None:
    (tmp_path / "train.csv").touch()
    (tmp_path / "speech.tar").touch()
    places = {"train": str(tmp_path / "train.csv"), "test": str(tmp_path / "speech.tar" / "test.csv")}
    source = source_of(DataPart(**places, validation="/nowhere/validation.csv"), StorageOptions())
    source.refuse_missing(("train", "test"))
    with pytest.raises(NotHereError, match=r"data.validation: /nowhere/validation.csv: no such file; give the path"):
        source.refuse_missing(("train", "validation"))
    source_of(DataPart(train="s3://bucket/a.csv", validation="kaldi:/x"), StorageOptions()).refuse_missing(SPLITS)


def in_two_folders(
    root: str, options: StorageOptions, kind: FingerprintKind, folder: Path, *, replaced: bool = False
) -> list[str]:
    """Fingerprints of the same manifest of relative paths in two folders, whose recordings are not the same."""
    found = []
    for number, name in enumerate(("clean", "other")):
        storage = open_storage(f"{root}/{name}", options)
        seed = 7 if replaced and name == "clean" else number
        storage.upload_file(write_recording(folder / "x.wav", speechlike(0.1, seed=seed)), "a.wav")
        storage.upload_file(write_rows(folder / "x.csv", [("a.wav", "text")]), "train.csv")
        data = DataPart(train=storage.url("train.csv"), validation="/nowhere.csv", fingerprint=kind)
        (source,) = open_sources(data, storage_options=options, splits=("train",))
        found.append(source.fingerprint)
    return found


@pytest.mark.parametrize("kind", ["content", "metadata", "manifest"])
def test_the_same_manifest_of_other_recordings_in_a_bucket_is_another_set(
    s3_bucket: str, s3_endpoint: str, tmp_path: Path, kind: FingerprintKind
) -> None:
    one, other = in_two_folders(s3_bucket, StorageOptions(s3_endpoint), kind, tmp_path)
    assert one != other


@pytest.mark.parametrize("kind", ["content", "metadata", "manifest"])
def test_the_same_manifest_of_other_recordings_in_a_folder_is_another_set(
    tmp_path: Path, kind: FingerprintKind
) -> None:
    one, other = in_two_folders(str(tmp_path), StorageOptions(), kind, tmp_path)
    assert one != other


def test_recordings_that_no_driver_reads_are_told_apart_by_their_place(tmp_path: Path) -> None:
    manifests = [write_rows(tmp_path / f"{name}.csv", [(f"/{name}/a.wav", "text")]) for name in ("x", "y")]
    for manifest in manifests:
        manifest.parent.joinpath(manifest.stem).mkdir()
        manifest.rename(manifest.parent / manifest.stem / "train.csv")
    sources = [DataPart(train=str(tmp_path / name / "train.csv"), validation="/nowhere.csv") for name in ("x", "y")]
    opened = [open_sources(data, storage_options=StorageOptions(), splits=("train",))[0] for data in sources]
    assert opened[0].fingerprint != opened[1].fingerprint


def test_contents_are_the_same_set_wherever_they_are(tmp_path: Path) -> None:
    found = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        write_recording(tmp_path / name / "a.wav", speechlike(0.1))
        manifest = write_rows(tmp_path / name / "train.csv", [("a.wav", "text")])
        (source,) = open_sources(
            DataPart(train=str(manifest), validation="/nowhere.csv"),
            storage_options=StorageOptions(),
            splits=("train",),
        )
        found.append(source.fingerprint)
    assert found[0] == found[1]


@of_every_bucket
@pytest.mark.integration
def test_a_recording_that_is_replaced_in_a_bucket_is_prepared_again(
    shaky_storage: Storage, bucket_kind: str, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    root, options = shaky_storage.url(), options_of(bucket_kind, fault_proxy.url)
    before = in_two_folders(root, options, "content", tmp_path)
    fault_proxy.requests.clear()
    after = in_two_folders(root, options, "content", tmp_path, replaced=True)
    # Azure's mark of an object is another after each write, also of the same bytes.
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, bucket_kind != "az"]
    assert [method for method, _ in fault_proxy.requests if method == "HEAD"] == [], "a listing, and no request each"


@of_every_bucket
def test_a_bucket_that_may_not_be_listed_is_known_by_place_and_said(
    shaky_storage: Storage, bucket_kind: str, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    storage, options = shaky_storage, options_of(bucket_kind, fault_proxy.url)
    storage.upload_file(write_rows(tmp_path / "x.csv", [("a.wav", "text")]), "train.csv")
    fault_proxy.fail_next(1000, 403, "GET", error_code="AccessDenied", matches=lambda _, path: "list" in path)
    data = DataPart(train=storage.url("train.csv"), validation="/nowhere.csv")
    (source,) = open_sources(data, storage_options=options, splits=("train",))
    assert "its bucket cannot be listed" in source.warnings[0]


class TestLanguages:
    def test_only_a_set_with_languages_is_another_one_for_them(self, tmp_path: Path) -> None:
        write_recording(tmp_path / "0.wav", speechlike(0.1))
        manifest = add_languages(write_rows(tmp_path / "train.csv", [("0.wav", "a"), ("0.wav", "b")]), [" sr", " "])
        used, same, unused = (self._opened(manifest, use) for use in (None, True, False))
        assert used.table["language"].to_pylist() == ["sr", None]
        assert unused.table["language"].to_pylist() == [None, None]
        assert used.fingerprint == same.fingerprint != unused.fingerprint
        write_rows(manifest, [("0.wav", "a"), ("0.wav", "b")])
        assert len({self._opened(manifest, use).fingerprint for use in (None, True, False)}) == 1

    def _opened(self, manifest: Path, use: bool | None) -> SourceSplit:
        data = DataPart(train=str(manifest), validation="/nowhere.csv", use_language_column=use)
        (source,) = open_sources(data, storage_options=StorageOptions(), splits=("train",))
        return source


class TestMixedRecordings:
    def test_are_fingerprinted_as_training_data_is(self, tmp_path: Path) -> None:
        manifest = self._manifest(tmp_path)
        first = self._opened(str(manifest))
        assert (first.split, first.table["audio"].to_pylist()) == ("augment.noise_manifest", [str(tmp_path / "n.wav")])
        assert list(first.recording_fingerprints) == [str(tmp_path / "n.wav")]
        write_recording(tmp_path / "n.wav", speechlike(0.1, seed=2))
        assert self._opened(str(manifest)).fingerprint != first.fingerprint
        write_recording(tmp_path / "n.wav", speechlike(0.1, seed=1))
        assert self._opened(str(manifest)).fingerprint == first.fingerprint

    @pytest.mark.integration
    def test_in_a_bucket_a_listing_decides_unless_the_manifest_is_to(
        self, tmp_path: Path, s3_bucket: str, s3_endpoint: str
    ) -> None:
        options = StorageOptions(s3_endpoint)
        storage = open_storage(f"{s3_bucket}/mixed", options)
        storage.upload_file(self._manifest(tmp_path), "noise.csv")
        storage.upload_file(tmp_path / "n.wav", "n.wav")
        kinds: tuple[FingerprintKind, ...] = ("content", "metadata", "manifest")
        before = [self._opened(storage.url("noise.csv"), kind, options).fingerprint for kind in kinds]
        storage.upload_file(write_recording(tmp_path / "n.wav", speechlike(0.2)), "n.wav")
        after = [self._opened(storage.url("noise.csv"), kind, options).fingerprint for kind in kinds]
        assert [one == other for one, other in zip(before, after, strict=True)] == [False, False, True]
        (tmp_path / "noise.csv").write_text("path,kind\nn.wav,hum\n")
        storage.upload_file(tmp_path / "noise.csv", "noise.csv")
        later = [self._opened(storage.url("noise.csv"), kind, options).fingerprint for kind in kinds]
        assert not {*later} & {*before, *after}

    def _manifest(self, folder: Path) -> Path:
        write_recording(folder / "n.wav", speechlike(0.1, seed=1))
        manifest = folder / "noise.csv"
        manifest.write_text("path\nn.wav\n")
        return manifest

    def _opened(
        self, location: str, kind: FingerprintKind = "content", options: StorageOptions | None = None
    ) -> SourceSplit:
        data = DataPart(train="/train.csv", validation="/valid.csv", fingerprint=kind)
        wanted = {"augment.noise_manifest": location}
        (source,) = open_mixed_sources(data, wanted, storage_options=options or StorageOptions())
        return source


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1250", "iso8859-2"])
def test_texts_are_read_in_the_encoding_that_the_config_names(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "train.csv").write_text("path,text\na.wav,šaš i čaj\r\nb.wav,đak\r\n", encoding=encoding, newline="")
    data = DataPart(train=str(tmp_path / "train.csv"), validation="/nowhere.csv", encoding=encoding)
    (source,) = open_sources(data, storage_options=StorageOptions(), splits=("train",))
    assert source.table["text"].to_pylist() == ["šaš i čaj", "đak"]
    assert not source.warnings


def test_utf_8_that_is_read_in_another_encoding_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.csv").write_text("path,text\na.wav,kuća\nb.wav,sat\nc.wav,šaš\n", encoding="utf-8")
    data = DataPart(train=str(tmp_path / "train.csv"), validation="/nowhere.csv", encoding="cp1250")
    open_sources(data, storage_options=StorageOptions(), splits=("train",))
    said = capsys.readouterr().out
    assert f"warning: data.train: {tmp_path}/train.csv: 2 of 3 texts are UTF-8 and were read as cp1250" in said
    assert "such as 'kuÄ‡a' for 'kuća': leave out data.encoding" in said


def test_a_text_in_another_encoding_is_refused_with_byte_line_and_fix(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes("path,text\na.wav,one\nb.wav,čaj\n".encode("cp1250"))
    for encoding, problem in {
        "utf-8": r"byte 26 \(line 3\) is not UTF-8: save it as UTF-8, or set data.encoding",
        "ascii": r"byte 26 \(line 3\) is not ascii: correct data.encoding",
    }.items():
        data = DataPart(train=str(tmp_path / "train.csv"), validation="/nowhere.csv", encoding=encoding)
        with pytest.raises(DataError, match=problem):
            open_sources(data, storage_options=StorageOptions(), splits=("train",))
    for name in ("rot13", "undefined"):
        with pytest.raises(ValueError, match=f"'{name}' is not a text encoding"):
            DataPart(train="a.csv", validation="b.csv", encoding=name)
