"""Access control: environment, password and host names."""

import os
import re
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from mlx_gateloop.errors import InputError


def environment(allow_hub: bool, share: bool) -> None:
    """Set the environment of Gradio and the hub client; call this before importing them."""
    online = allow_hub or share
    for name in list(os.environ):
        # Gradio's variables could share the app, bind it elsewhere or allow more files. Its import
        # fails with some proxies, which only requests to other machines need.
        is_gradios = name.startswith("GRADIO_") and name != "GRADIO_TEMP_DIR"
        if is_gradios or (name.lower().endswith("_proxy") and not online):
            del os.environ[name]
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    if not allow_hub:
        os.environ["HF_HUB_OFFLINE"] = "1"


def is_local(host: str) -> bool:
    """Return True if only this machine can connect to a server on this host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def credentials(
    auth: str | None, host: str, share: bool, proxied: bool = False
) -> tuple[str, str] | None:
    """Parse "USER:PASSWORD" or "@FILE"; required if others can reach the app."""
    if auth is None:
        if share or proxied or not is_local(host):
            what = "--share" if share else "--allow-host" if proxied else f"--host {host}"
            raise InputError(f"{what}: others can reach the app; add --auth USER:PASSWORD or @FILE")
        return None
    if auth.startswith("@"):
        try:
            auth = Path(auth[1:]).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--auth {auth}: cannot be read: {error}") from None
    user, _, password = auth.partition(":")
    if not user or not password:
        raise InputError("--auth: expected USER:PASSWORD, or @FILE with that content")
    return user, password


def allowed_hosts(host: str, share: bool) -> list[str]:
    """Return the accepted Host headers; "*." matches all subdomains. Others are foreign sites."""
    if host in ("0.0.0.0", "::"):  # the machine may have any name; a password is required
        return ["*"]
    public = ["*.gradio.live"] if share else []
    return [*dict.fromkeys([in_address(host), "localhost", "127.0.0.1"]), *public]


def is_allowed(host: str, allowed: Sequence[str]) -> bool:
    """Return True for an allowed host, with or without a port."""
    name = re.sub(r":\d*$", "", host).lower()
    return any(
        pattern in ("*", name) or (pattern.startswith("*.") and name.endswith(pattern[1:]))
        for pattern in map(str.lower, allowed)
    )


def in_address(host: str) -> str:
    """Format a host for a URL and a Host header: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host
