import os

from trainers.storage import web_files


def test_a_forked_process_has_connections_of_its_own() -> None:
    client = web_files._client()
    child = os.fork()
    if not child:
        os._exit(web_files._client() is client)
    assert os.waitpid(child, 0)[1] == 0
    assert web_files._client() is client
