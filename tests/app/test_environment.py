"""The app in environments that lack something: it starts, answers, and says what it lacks."""

import pytest
from helpers.browser import served
from mlx_gateloop.app.conversations.folder import ConversationFolder

from mlx_gateloop.errors import InputError

gradio_client = pytest.importorskip("gradio_client")
PROXIES = ("http_proxy", "HTTPS_PROXY", "ALL_PROXY")
# A user without an entry in passwd.
PRELUDE = """
import pwd
def getpwuid(uid): raise KeyError(uid)
pwd.getpwuid = getpwuid
"""
SOFT_LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""


@pytest.mark.parametrize(
    "home",
    [None, "/proc/nowhere"],  # no HOME; one in which nothing can be written
)
def test_the_app_starts_and_answers(monkeypatch, tmp_path, home):
    for name in PROXIES:
        monkeypatch.setenv(name, "socks5://127.0.0.1:9")  # nor is there a network
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HF_HOME", raising=False)
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    prelude = PRELUDE + SOFT_LIMIT
    log = tmp_path / "log"
    with served(log, "--model", "demo-fixed", prelude=prelude) as server:
        for name in PROXIES:  # of this process
            monkeypatch.delenv(name)
        client = gradio_client.Client(server.url, verbose=False)
        answer = client.predict("What does `str.split` do?", max_tokens=8, api_name="/generate")
        assert answer
    assert "Traceback" not in log.read_text()


def test_without_a_home_a_conversation_is_refused_in_a_line(monkeypatch):
    monkeypatch.delenv("HOME")

    def none(uid):
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", none)
    folder = ConversationFolder("~/.gateloop/conversations", None, None)
    assert folder.names() == []
    with pytest.raises(InputError, match="--conversations DIR"):
        folder.save("x", "c", "tiny", [{"role": "user", "content": "a"}])
