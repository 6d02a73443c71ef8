"""Passwords and host names."""

import os

import pytest
from mlx_gateloop.app.server import security

from mlx_gateloop.cli import main
from mlx_gateloop.errors import InputError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_only_this_machine_needs_no_password(host):
    assert security.is_local(host)
    assert security.credentials(None, host, share=False) is None


@pytest.mark.parametrize(
    ("host", "share"), [("0.0.0.0", False), ("192.168.1.2", False), ("127.0.0.1", True)]
)
def test_others_need_a_password(host, share):
    with pytest.raises(InputError, match="--auth"):
        security.credentials(None, host, share)
    assert security.credentials("me:a:b", host, share) == ("me", "a:b")
    with pytest.raises(InputError, match="--allow-host: others"):
        security.credentials(None, "127.0.0.1", False, proxied=True)


def test_a_password_from_a_file(tmp_path):
    (tmp_path / "password").write_text("me:secret\n")
    assert security.credentials(f"@{tmp_path / 'password'}", "0.0.0.0", False) == ("me", "secret")


@pytest.mark.parametrize("auth", ["me", "me:", ":secret", "@/nowhere"])
def test_a_malformed_password_is_refused(auth):
    with pytest.raises(InputError, match="--auth"):
        security.credentials(auth, "127.0.0.1", False)


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
    assert main(["app", "--host", "0.0.0.0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --host 0.0.0.0: ")
    assert error.count("\n") == 1
