import hashlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

import boto3
import pytest

from tests.azurite import KEY
from tests.s3 import FAST_RETRY, FaultProxy, fails, of_every_bucket
from trainers.config.storage_location import StorageOptions
from trainers.errors import StorageError
from trainers.storage import Storage, open_storage, sha256_of

ODD_KEYS = ["100 % + more?#&", "a b/c d.txt", "здраво/свете.json", "plus+and&%20=?#.bin", "…/日本語 (1)/ä.wav"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    (folder / "rng").mkdir(parents=True)
    for name in ("MANIFEST.json", "a.bin", "b.bin", "rng/0.pt", "zz.bin"):
        (folder / name).write_bytes(name.encode() * 100)
    return folder


def keys(storage: Storage, prefix: str = "") -> list[str]:
    return [entry.key for entry in storage.list_files(prefix)]


class TestOpening:
    @pytest.mark.parametrize(
        "root",
        [
            "runs",
            "./runs",
            "",
            "~/runs",
            "s3:/bucket/x",
            "S3://bucket",
            "s3:bucket",
            "GS://bucket",
            "gs:/bucket",
            "az:container",
            "abfs://container/x",
            "file:///runs",
        ],
    )
    def test_a_root_that_is_no_absolute_folder_and_no_bucket_is_refused_with_the_fix(self, root: str) -> None:
        message = fails(lambda: open_storage(root))
        assert repr(root) in message
        assert "s3://bucket/prefix" in message

    @pytest.mark.parametrize("root", ["s3://", "s3:///x", "gs://b//x", "az://b/../c", "s3://a b/x", "/runs/../x"])
    def test_a_root_that_cannot_exist_is_refused(self, root: str) -> None:
        assert repr(root) in fails(lambda: open_storage(root))

    @pytest.mark.parametrize("endpoint", ["localhost:9000", "s3://x", "http://", "ftp://host"])
    def test_an_endpoint_that_is_no_url_is_refused(self, endpoint: str) -> None:
        assert endpoint in fails(lambda: open_storage("s3://b", StorageOptions(endpoint)))

    def test_a_password_in_the_endpoint_is_refused_and_not_repeated(self) -> None:
        endpoint = "http://me:hush@host"
        assert "hush" not in fails(lambda: open_storage("s3://b", StorageOptions(endpoint)))

    def test_the_endpoint_comes_from_the_environment_where_none_is_given(
        self, s3_bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
        storage = open_storage(s3_bucket, retry=FAST_RETRY)
        monkeypatch.delenv("AWS_ENDPOINT_URL")
        storage.write_bytes("a", b"1")
        assert open_storage(s3_bucket, StorageOptions(s3_endpoint)).read_bytes("a") == b"1"

    def test_urls_keep_both_slashes(self) -> None:
        for root in ("s3://bucket", "s3://bucket/", "s3://bucket/a/b/"):
            storage = open_storage(root)
            urls = [
                storage.url(),
                storage.url("x/y"),
                storage.sub("x").url(),
                storage.sub("x/").sub("y").url("z"),
            ]
            assert all(url.startswith("s3://bucket") and "//" not in url[5:] for url in urls)
            assert not any(url.endswith("/") for url in urls)
        assert open_storage("s3://bucket/a").sub("b").url("c") == "s3://bucket/a/b/c"
        assert open_storage("/runs/").sub("b").url("c") == "/runs/b/c"
        assert open_storage("/runs").url() == "/runs"


class TestFiles:
    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_what_is_written_is_read_listed_and_deleted_under_any_name(
        self, storage: Storage, key: str, tmp_path: Path
    ) -> None:
        storage.write_bytes(key, b"old")
        storage.write_bytes(key, b"content")
        assert storage.read_bytes(key) == b"content"
        assert storage.exists(key)
        [entry] = storage.list_files()
        assert storage.list_some({entry.key, "a key that is not there"}) == {entry.key: entry}
        assert (entry.key, entry.size_bytes) == (key, 7)
        assert entry.modified_s > 1.7e9
        storage.download_file(key, tmp_path / "here" / "x")
        assert (tmp_path / "here" / "x").read_bytes() == b"content"
        storage.delete(key)
        storage.delete(key)
        assert not storage.exists(key)
        assert storage.list_files() == []

    @pytest.mark.parametrize(
        ("start", "most", "part"), [(0, 3, b"abc"), (2, 2, b"cd"), (4, 9, b"e"), (5, 9, b""), (9, 1, b"")]
    )
    @pytest.mark.integration
    def test_a_part_is_read_up_to_the_end(self, storage: Storage, start: int, most: int, part: bytes) -> None:
        storage.write_bytes("a", b"abcde")
        assert storage.read_part("a", start, most) == part
        storage.write_bytes("empty", b"")
        assert storage.read_part("empty", 0, 9) == b""
        with pytest.raises(StorageError):
            storage.read_part("b", 0, 1)

    @pytest.mark.parametrize("key", ["", "/", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "a//b", "./a", "a\0b"])
    @pytest.mark.integration
    def test_a_key_that_leaves_the_root_is_refused_everywhere(self, storage: Storage, key: str, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        calls: list[Callable[[], object]] = [
            lambda: storage.read_bytes(key),
            lambda: storage.read_part(key, 0, 1),
            lambda: storage.write_bytes(key, b""),
            lambda: storage.append_line(key, ""),
            lambda: storage.exists(key),
            lambda: storage.delete(key),
            lambda: storage.delete_tree(key),
            lambda: storage.delete_tree("a", first=key),
            lambda: storage.create_exclusive(key, b""),
            lambda: storage.upload_file(tmp_path / "file", key),
            lambda: storage.download_file(key, tmp_path / "file"),
        ]
        if key:
            calls += [
                lambda: storage.url(key),
                lambda: storage.sub(key),
                lambda: storage.list_files(key),
                lambda: storage.list_folders(key),
                lambda: storage.upload_folder(tmp_path, key),
                lambda: storage.download_folder(key, tmp_path),
            ]
        for call in calls:
            assert "storage key" in fails(call)

    def test_a_missing_file_is_named_and_leaves_nothing_behind(self, storage: Storage, tmp_path: Path) -> None:
        assert storage.url("no/such") in fails(lambda: storage.read_bytes("no/such"))
        assert storage.url("no/such") in fails(lambda: storage.download_file("no/such", tmp_path / "d" / "x"))
        assert list((tmp_path / "d").iterdir()) == []
        assert str(tmp_path / "gone") in fails(lambda: storage.upload_file(tmp_path / "gone", "x"))
        assert storage.list_files() == []

    def test_lines_are_appended_also_after_one_that_a_crash_cut_short(self, storage: Storage) -> None:
        storage.append_line("log.jsonl", '{"step": 1}')
        storage.append_line("log.jsonl", '{"wer": "č"}')
        storage.write_bytes("log.jsonl", storage.read_bytes("log.jsonl") + b'{"ste')
        storage.append_line("log.jsonl", "{}")
        assert storage.read_bytes("log.jsonl").decode() == '{"step": 1}\n{"wer": "č"}\n{"ste\n{}\n'
        assert "more than one line" in fails(lambda: storage.append_line("log.jsonl", "a\nb"))

    def test_a_reader_never_sees_a_part_of_a_write(self, storage: Storage) -> None:
        contents = [letter * 300_000 for letter in (b"a", b"b", b"c")]
        storage.write_bytes("x", contents[0])
        done = threading.Event()

        def read() -> set[bytes]:
            seen = set()
            while not done.is_set():
                seen.add(storage.read_bytes("x"))
                assert keys(storage) == ["x"]
            return seen

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            try:
                for turn in range(30):
                    storage.write_bytes("x", contents[turn % 3])
            finally:
                done.set()
            assert all(reader.result() <= set(contents) for reader in readers)

    def test_of_racing_creators_exactly_one_wins_and_its_bytes_stay(self, storage: Storage) -> None:
        for race in range(5):
            start = threading.Barrier(8)

            def create(name: int, key: str = f"claims/{race}", start: threading.Barrier = start) -> bool:
                start.wait()
                return storage.create_exclusive(key, f"{name}".encode() * 1000)

            with ThreadPoolExecutor(8) as pool:
                won = list(pool.map(create, range(8)))
            assert won.count(True) == 1
            assert storage.read_bytes(f"claims/{race}") == f"{won.index(True)}".encode() * 1000
        assert len(storage.list_files()) == 5

    def test_a_pickled_storage_is_the_same_place(self, storage: Storage) -> None:
        storage.write_bytes("a", b"1")
        pickled = pickle.dumps(storage)
        assert not any(secret in pickled for secret in (b"test-secret", KEY.encode()))
        again = pickle.loads(pickled)
        assert again.url() == storage.url()
        assert again.read_bytes("a") == b"1"

    def test_a_forked_process_reads_after_its_parent(self, storage: Storage) -> None:
        storage.write_bytes("a", b"1")
        assert storage.read_bytes("a") == b"1"
        child = os.fork()
        if child == 0:
            # What would wait forever ends here.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
            os._exit(0 if storage.read_bytes("a") == b"1" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert storage.read_bytes("a") == b"1"


class TestFolders:
    def test_files_and_folders_are_listed_sorted_below_a_prefix_only(self, storage: Storage) -> None:
        for key in ("top", "runs/b/2", "runs/b/1", "runs/a/deep/er", "runs/file", "runs-not/x"):
            storage.write_bytes(key, b"")
        assert keys(storage, "runs") == ["runs/a/deep/er", "runs/b/1", "runs/b/2", "runs/file"]
        assert keys(storage, "runs/") == keys(storage, "runs")
        assert keys(storage) == sorted(keys(storage))
        assert storage.list_folders("runs") == ["runs/a", "runs/b"]
        assert storage.list_folders() == ["runs", "runs-not"]
        assert storage.list_folders(start="runs-") == ["runs-not"]
        assert storage.list_folders("runs", start="b") == ["runs/b"]
        assert keys(storage.sub("runs/b")) == ["1", "2"]
        assert keys(storage, "none") == storage.list_folders("none") == []
        assert keys(storage, "top") == storage.list_folders("top") == []
        assert not storage.exists("runs")
        storage.delete("runs/a/deep/er")
        assert storage.list_folders("runs") == ["runs/b"]

    @pytest.mark.long
    @of_every_bucket
    def test_more_files_than_one_answer_holds_are_all_listed(self, shaky_storage: Storage, bucket_kind: str) -> None:
        storage = shaky_storage
        names = [f"{number:04}" for number in range(1005)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: storage.write_bytes(name, b""), names))
        assert keys(storage) == names

    def test_a_tree_is_deleted_and_its_neighbors_stay(self, storage: Storage) -> None:
        for key in ("a/1", "a/b/2", "ab/3"):
            storage.write_bytes(key, b"")
        storage.delete_tree("a", first="1")
        storage.delete_tree("a")
        assert keys(storage) == ["ab/3"]

    def test_a_folder_goes_there_and_back(self, storage: Storage, checkpoint: Path, tmp_path: Path) -> None:
        (checkpoint / "empty").mkdir()
        (checkpoint / ODD_KEYS[2]).parent.mkdir()
        (checkpoint / ODD_KEYS[2]).write_bytes(b"")
        storage.upload_folder(checkpoint, "checkpoints/1", last="MANIFEST.json")
        storage.download_folder("checkpoints/1", tmp_path / "back")
        files = [path.relative_to(checkpoint) for path in checkpoint.rglob("*") if path.is_file()]
        assert len(files) == 6
        assert all((checkpoint / name).read_bytes() == (tmp_path / "back" / name).read_bytes() for name in files)
        assert "no file is there" in fails(lambda: storage.download_folder("checkpoints/2", tmp_path / "no"))

    def test_a_half_done_upload_never_shows_the_last_file_not_even_an_older_one(
        self, storage: Storage, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage.upload_folder(checkpoint, "c", last="MANIFEST.json")
        assert storage.exists("c/MANIFEST.json")
        upload = type(storage).upload_file

        def upload_but_one(self: Storage, local: Path, key: str) -> None:
            if key == "zz.bin":
                raise StorageError("the disk is full")
            upload(self, local, key)

        monkeypatch.setattr(type(storage), "upload_file", upload_but_one)
        assert "full" in fails(lambda: storage.upload_folder(checkpoint, "c", last="MANIFEST.json"))
        assert not storage.exists("c/MANIFEST.json")

    @of_every_bucket
    def test_the_last_file_is_sent_after_all_others_are_there(
        self, shaky_storage: Storage, fault_proxy: FaultProxy, checkpoint: Path
    ) -> None:
        fault_proxy.fail_next(2, matches=lambda _, path: unquote(path).endswith("zz.bin"))
        shaky_storage.upload_folder(checkpoint, "c", last="MANIFEST.json")
        puts = [unquote(path) for method, path in fault_proxy.requests if method == "PUT"]
        assert len(puts) == 7
        assert puts[-1].endswith("MANIFEST.json")

    def test_a_process_killed_while_it_uploads_leaves_no_last_file(
        self, shaky_storage: Storage, fault_proxy: FaultProxy, checkpoint: Path
    ) -> None:
        fault_proxy.delay_put_s = 600.0
        program = (
            "import sys; from pathlib import Path; from trainers.storage import open_storage\n"
            "from trainers.config.storage_location import StorageOptions\n"
            "storage = open_storage(sys.argv[1], StorageOptions(sys.argv[2]))\n"
            "storage.upload_folder(Path(sys.argv[3]), 'c', last='MANIFEST.json')"
        )
        arguments = [shaky_storage.url(), fault_proxy.url, str(checkpoint)]
        child = subprocess.Popen([sys.executable, "-c", program, *arguments])
        try:
            wait_for(lambda: any(method == "PUT" for method, _ in fault_proxy.requests))
        finally:
            child.kill()
            child.wait()
        assert not shaky_storage.exists("c/MANIFEST.json")

    def test_a_folder_without_its_last_file_is_refused_before_anything_is_sent(
        self, storage: Storage, checkpoint: Path
    ) -> None:
        (checkpoint / "MANIFEST.json").unlink()
        assert "MANIFEST.json" in fails(lambda: storage.upload_folder(checkpoint, "c", last="MANIFEST.json"))
        assert "not a folder" in fails(lambda: storage.upload_folder(checkpoint / "no", "c"))
        assert storage.list_files() == []

    def test_an_object_named_to_escape_the_target_folder_is_not_downloaded(
        self, s3_bucket: str, s3_endpoint: str, tmp_path: Path
    ) -> None:
        client = boto3.session.Session().client("s3", endpoint_url=s3_endpoint)
        client.put_object(Bucket=s3_bucket.removeprefix("s3://"), Key="c/x/../../../escaped", Body=b"!")
        storage = open_storage(s3_bucket, StorageOptions(s3_endpoint))
        assert keys(storage) == ["c/x/../../../escaped"]
        assert "storage key" in fails(lambda: storage.download_folder("c", tmp_path / "a" / "b"))
        assert not (tmp_path / "escaped").exists()


def wait_for(condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
    done = threading.Event()
    for _ in range(int(deadline_s / 0.05)):
        if condition():
            return
        done.wait(0.05)
    raise AssertionError("the condition did not come true in time")


def test_the_hash_of_a_file_is_its_sha256(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc" * 100_000)
    assert sha256_of(tmp_path / "x") == hashlib.sha256(b"abc" * 100_000).hexdigest()
    assert str(tmp_path / "y") in fails(lambda: sha256_of(str(tmp_path / "y")))


def test_a_copy_is_complete_replaces_what_was_there_and_may_be_made_again(storage: Storage) -> None:
    storage.write_bytes("from/a", b"new" * 1000)
    storage.write_bytes("to/b", b"old")
    for _ in range(2):
        storage.copy_file("from/a", "to/b")
        assert storage.read_bytes("to/b") == storage.read_bytes("from/a") == b"new" * 1000
    assert [entry.key for entry in storage.list_files()] == ["from/a", "to/b"], "no part is left"
    storage.write_bytes("to/b", b"other")
    assert storage.read_bytes("from/a") == b"new" * 1000, "writing anew leaves the other alone"


def test_a_copy_on_a_disk_takes_no_space(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    storage.write_bytes("a", b"weights")
    storage.copy_file("a", "folder/b")
    assert (tmp_path / "a").stat().st_ino == (tmp_path / "folder/b").stat().st_ino


def test_copying_what_is_not_there_names_it(storage: Storage) -> None:
    assert "nothing-here" in fails(lambda: storage.copy_file("nothing-here", "b"))
