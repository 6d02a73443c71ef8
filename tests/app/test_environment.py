"""The app with a password behind a proxy: no home, no network, no locale, few files."""

import urllib.parse

import pytest
from helpers.browser import Server, request
from helpers.cases import first

Client = pytest.importorskip("gradio_client").Client
# A user without an entry in passwd, and a soft limit of 256 open files.
PRELUDE = """
import pwd, resource
def getpwuid(uid): raise KeyError(uid)
pwd.getpwuid = getpwuid
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""


@pytest.fixture(scope="module", params=first(1, [None, "/proc/nowhere"]))  # cannot be written
def locked(request, tmp_path_factory):
    log = tmp_path_factory.mktemp("locked") / "log"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            patch.setenv(name, "socks5://127.0.0.1:9")
        patch.setenv("LC_ALL", "C")
        for name in ("XDG_CACHE_HOME", "HF_HOME", "HOME"):
            patch.delenv(name, raising=False)
        if request.param:
            patch.setenv("HOME", request.param)
        options = ("--model", "demo-fixed", "--auth", "me:se:cret", "--root-path", "/here")
        server = Server(log, *options, prelude=PRELUDE)
    yield server
    server.stop()
    assert "Traceback" not in log.read_text()


def log_in(locked, password):
    form = urllib.parse.urlencode({"username": "me", "password": password}).encode()
    return request(locked.url + "login", data=form)


def test_without_the_password_there_is_nothing_and_with_it_everything(locked):
    """At the app's own path behind a proxy and without it, as some proxies leave it out."""
    front, same = (request(locked.url + place).body.decode() for place in ("", "here/"))
    assert "auth_required" in front
    assert front == same
    assert "/here/" in front
    for word in ("System prompt", "chat-view", "What does `str.split` do?", "Temperature"):
        assert word not in front
    call = {"data": b'{"data": ["x"], "fn_index": 0, "session_hash": "x"}'}
    call["headers"] = {"Content-Type": "application/json"}
    paths = {path: {} for path in ("config", "gradio_api/info", "gradio_api/queue/data?x=x")}
    for path in ("queue/join", "call/generate", "run/generate", "component_server"):
        paths[f"gradio_api/{path}"] = call
    assert {request(locked.url + path, **paths[path]).status for path in paths} == {401}
    with pytest.raises(Exception, match=r"(?i)auth|credential|login|401"):
        Client(locked.url, verbose=False)
    wrong = log_in(locked, "secret")
    assert (wrong.status, wrong.headers.get("set-cookie")) == (400, None)
    cookies = {"Cookie": log_in(locked, "se:cret").headers["set-cookie"]}
    assert b"chat-view" in request(locked.url, headers=cookies).body
    client = Client(locked.url + "here/", auth=("me", "se:cret"), verbose=False)
    options = {"max_tokens": 3, "chat": True, "api_name": "/generate"}
    assert client.predict("What does `str.split` do?", **options)["tokens"] == 3
