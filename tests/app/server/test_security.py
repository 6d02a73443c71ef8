"""Passwords and host names."""

import os

from helpers.commands import fails
from helpers.errors import refusal
from mlx_gateloop.app.server import security


def test_only_this_machine_needs_no_password():
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert security.credentials(None, host, share=False) is None
    for host, share in (("0.0.0.0", False), ("192.168.1.2", False), ("127.0.0.1", True)):
        assert "--auth" in refusal(security.credentials, None, host, share)
        assert security.credentials("me:a:b", host, share) == ("me", "a:b")
    line = refusal(security.credentials, None, "127.0.0.1", False, proxied=True)
    assert line.startswith("--allow-host: others")


def test_a_password_comes_from_the_argument_or_a_file(tmp_path):
    (tmp_path / "password").write_text("me:secret\n")
    assert security.credentials(f"@{tmp_path / 'password'}", "0.0.0.0", False) == ("me", "secret")
    for auth in ("me", "me:", ":secret", "@/nowhere"):
        assert "--auth" in refusal(security.credentials, auth, "127.0.0.1", False)


def test_hosts():
    assert security.allowed_hosts("127.0.0.1", False) == ["127.0.0.1", "localhost"]
    assert security.allowed_hosts("me.lan", False) == ["me.lan", "localhost", "127.0.0.1"]
    assert "*.gradio.live" in security.allowed_hosts("127.0.0.1", True)
    assert security.allowed_hosts("0.0.0.0", False) == ["*"]
    assert security.allowed_hosts("::1", False) == ["[::1]", "localhost", "127.0.0.1"]


def test_the_environment_cannot_open_the_app(monkeypatch):
    names = ("GRADIO_SHARE", "GRADIO_SERVER_NAME", "GRADIO_ALLOWED_PATHS")
    monkeypatch.setattr(os, "environ", dict.fromkeys(names, "true"))
    monkeypatch.setitem(os.environ, "ALL_PROXY", "socks5://127.0.0.1:9")
    security.environment(allow_hub=True, share=False)
    assert "ALL_PROXY" in os.environ
    security.environment(allow_hub=False, share=False)
    assert "ALL_PROXY" not in os.environ  # nobody is asked
    assert not set(names) & set(os.environ)
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_bad_arguments_end_with_one_line(capsys):
    assert fails(capsys, "app", "--host", "0.0.0.0").startswith("error: --host 0.0.0.0: ")
